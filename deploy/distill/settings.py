"""What a person may set of a distillation, with defaults and ranges. Validated here, once."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class TextSettings(BaseModel):
    """What text the target writes. Text number i has the temperature number i, over and over."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    texts: int = Field(4096, ge=1, description="texts to write")
    length: int = Field(384, ge=16, le=65536, description="tokens of each")
    at_once: int = Field(256, ge=1, le=65536, description="texts written at once; a file each time")
    temperatures: tuple[float, ...] = Field((0.0, 0.3, 0.6, 0.8), description="temperatures of the answers, in turns")
    prompts: str | None = Field(None, description="jsonl of prompts to answer; without it the target asks, too")
    prompts_share: float = Field(1.0, gt=0, le=1, description="share of the texts that open with a prompt of the file")

    @model_validator(mode="after")
    def _temperatures_are_sound(self) -> TextSettings:
        if not self.temperatures or not all(0 <= value <= 10 for value in self.temperatures):
            raise ValueError(f"temperatures must be from 0 to 10, got {','.join(map(str, self.temperatures))}")
        return self


class DistillSettings(BaseModel):
    """One head's making. `taps` are DeepSpec's ids: -1 the embedding's output, i that of layer i."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    taps: tuple[int, ...] = Field(
        (-1, 0, 1, 2), description="target layers the head sees; shallow ones suit a CPU draft"
    )
    layers: int = Field(3, ge=1, le=64, description="layers of the head")
    block_size: int = Field(7, ge=1, le=32, description="draft tokens of a block")
    markov_rank: int = Field(64, ge=0, le=4096, description="rank of the Markov head; 0: none")
    markov_head: Literal["vanilla", "gated", "rnn"] = Field("vanilla", description="kind of the Markov head")
    confidence: Literal["markov", "plain", "none"] = Field(
        "markov", description="confidence head: with the Markov row, without it, none"
    )
    draft_vocab: int = Field(0, ge=0, description="most frequent ids the draft can say; 0: the whole vocabulary")
    intermediate_size: int = Field(0, ge=0, description="width of the head's feed-forward layers; 0: the target's")
    save_dtype: Literal["bfloat16", "float16", "float32"] = Field("bfloat16", description="precision of the saved head")
    steps: int = Field(0, ge=0, description="optimizer steps; 0: as many as --seconds allows")
    seconds: float = Field(0.0, ge=0, allow_inf_nan=False, description="time to train; 0: until --steps")
    texts_per_step: int = Field(64, ge=1, description="texts a step is made of")
    texts_at_once: int = Field(0, ge=0, description="of them in memory at once; 0: all")
    anchors: int = Field(48, ge=1, description="blocks trained on in each text")
    optimizer: Literal["adamw", "muon"] = Field(
        "muon", description="muon: for the matrices of the layers; tables, norms and biases stay with AdamW"
    )
    learning_rate: float = Field(3e-3, gt=0, le=1, allow_inf_nan=False, description="peak of the cosine schedule")
    weight_decay: float = Field(0.01, ge=0, le=1, description="of matrices")
    average: float = Field(
        0.0, ge=0, lt=1, description="decay of the averaged weights that are saved; 0: the last ones"
    )
    seed: int = Field(0, ge=0, le=2**31 - 1, description="seed of texts, weights, anchors and order")

    @model_validator(mode="after")
    def _go_together(self) -> DistillSettings:
        if not self.taps or len(set(self.taps)) != len(self.taps) or min(self.taps) < -1:
            raise ValueError(f"taps must be distinct layer ids from -1 on, got {','.join(map(str, self.taps))}")
        if self.markov_rank == 0 and self.confidence == "markov":
            raise ValueError("a Markov confidence head needs --markov-rank above 0, got 0 (or --confidence plain)")
        if (self.steps == 0) == (self.seconds == 0):
            raise ValueError(f"give --steps or --seconds, one of them, got {self.steps} and {self.seconds:g}")
        return self
