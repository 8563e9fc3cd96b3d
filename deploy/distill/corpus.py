"""Texts as token ids on disk: a folder of safetensors shards and one small file that says whose they are.

A shard is there whole or not at all, so writing goes on where it stopped. Text number i is held out where i is a
multiple of HELD_OUT_EVERY, in every corpus and however far it has been written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from twinspark.actors.errors import CheckpointError
from twinspark.cluster.small_files import write_whole
from twinspark.deploy.distill.tensor_files import save_whole

ABOUT_NAME = "corpus.json"
HELD_OUT_EVERY = 31  # no multiple of any usual number of temperatures


@dataclass(frozen=True)
class About:
    """What a corpus is of. `tokenizer` and `target` are hashes; two corpora with the same About hold the same texts."""

    tokenizer: str
    target: str
    vocab_size: int
    length: int
    texts_per_shard: int
    temperatures: tuple[float, ...]
    prompts: str
    seed: int


class Corpus:
    """The corpus in `folder`. Use `create` or `open`."""

    def __init__(self, folder: Path, about: About) -> None:
        self.folder, self.about = folder, about

    @classmethod
    def create(cls, folder: Path, about: About) -> Corpus:
        """Begun anew, or the one that is there. Raises CheckpointError where that is of something else."""
        if (folder / ABOUT_NAME).exists():
            there = cls.open(folder)
            for name, wanted in asdict(about).items():
                got = getattr(there.about, name)
                if got != wanted:
                    raise CheckpointError(f"{folder} must hold texts with {name} {_short(wanted)}, got {_short(got)}")
            return there
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / ABOUT_NAME, json.dumps(asdict(about), indent=1) + "\n")
        return cls(folder, about)

    @classmethod
    def open(cls, folder: Path) -> Corpus:
        """Raises CheckpointError where it is not there or damaged."""
        path = folder / ABOUT_NAME
        try:
            return cls(folder, TypeAdapter(About).validate_json(path.read_bytes()))
        except OSError as error:
            raise CheckpointError(f"{path} must be there and readable, got: {error.strerror}") from error
        except ValidationError as error:
            raise CheckpointError(f"{path} must describe a corpus, got {error.errors()[0]['msg']}") from error

    @property
    def num_shards(self) -> int:
        """Shards that are there, counted from the first."""
        count = 0
        while self._shard(count).exists():
            count += 1
        return count

    def add(self, ids: Tensor) -> None:
        """The next shard, int32 `[texts_per_shard, length]`. Raises OSError where the disk is full; nothing is left."""
        save_whole({"ids": ids}, self._shard(self.num_shards))

    def texts(self) -> tuple[Tensor, Tensor]:
        """int32 `[texts, length]`, to train on and held out. Raises CheckpointError for a damaged shard."""
        parts = list(self._loaded())
        if not parts:
            raise CheckpointError(f"{self.folder} must hold at least one shard of texts, got none")
        ids = torch.cat(parts)
        held_out = torch.arange(len(ids)) % HELD_OUT_EVERY == 0
        return ids[~held_out], ids[held_out]

    def held_out_is_greedy(self) -> Tensor:
        """bool [held-out texts]: those whose answers have temperature 0."""
        temperatures = self.about.temperatures
        numbers = range(0, self.num_shards * self.about.texts_per_shard, HELD_OUT_EVERY)
        return torch.tensor([temperatures[number % len(temperatures)] == 0 for number in numbers])

    def _loaded(self) -> Iterator[Tensor]:
        about = self.about
        for i in range(self.num_shards):
            path = self._shard(i)
            try:
                ids = load_file(path)["ids"]
            except (OSError, SafetensorError, KeyError) as error:
                raise CheckpointError(f"{path} must be a shard of texts, got a damaged file ({error})") from error
            if ids.dtype != torch.int32 or ids.shape != (about.texts_per_shard, about.length):
                raise CheckpointError(f"{path} must hold int32 ids [{about.texts_per_shard}, {about.length}]")
            if int(ids.min()) < 0 or int(ids.max()) >= about.vocab_size:
                raise CheckpointError(f"{path} must hold ids from 0 to {about.vocab_size - 1}, got others")
            yield ids

    def _shard(self, number: int) -> Path:
        return self.folder / f"texts-{number:05d}.safetensors"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 24 else text[:12] + "..."
