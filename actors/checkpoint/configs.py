"""What a target and a head look like, as plain values. Knows no file format; the readers beside it fill these in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Family = Literal["llama", "qwen2", "qwen3"]
MarkovKind = Literal["none", "vanilla", "gated", "rnn"]
HeadFormat = Literal["deepspec", "speculators"]


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding. A `kind` other than "default" uses the fields of that scaling (Hugging Face names)."""

    theta: float = 10000.0
    kind: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True)
class DecoderConfig:
    """A dense decoder. `max_positions` is the longest context the model was made for."""

    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    max_positions: int
    tie_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    eos_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class HeadConfig:
    """A DSpark head. Tap ids are DeepSpec's: -1 the embedding output, i the output of decoder layer i.

    `layer_windows[i]` is None for full attention, else how many context positions before the anchor layer i sees.
    """

    format: HeadFormat
    decoder: DecoderConfig
    block_size: int
    anchor_predicts: bool
    tap_ids: tuple[int, ...]
    mask_token_id: int
    markov_kind: MarkovKind
    markov_rank: int
    has_confidence: bool
    confidence_uses_markov: bool
    draft_vocab_size: int
    num_target_layers: int | None = None
    layer_windows: tuple[int | None, ...] = field(default=())
    windows_are_causal: bool = True

    @property
    def num_draft_tokens(self) -> int:
        """Draft tokens a block yields: the largest verify length."""
        return self.block_size if self.anchor_predicts else self.block_size - 1

    @property
    def reduced_vocab(self) -> bool:
        return self.draft_vocab_size != self.decoder.vocab_size

    @property
    def num_trunk_layers(self) -> int:
        """Target layers a draft must recompute to get every tap."""
        return max(self.tap_ids) + 1
