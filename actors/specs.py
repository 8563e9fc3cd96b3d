"""What an actor is told to be, as plain values that travel to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DraftDtype = Literal["float32", "bfloat16", "int8"]
Device = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class DraftSettings:
    """How to draft, wherever it happens. `dtype` "int8" means: trunk in bfloat16, everything else int8 (CPU only)."""

    head_path: str
    dtype: DraftDtype
    verify_length: int
    min_confidence: float = 0.0


@dataclass(frozen=True)
class ActorSpec:
    """What both actors need to know. `num_threads` is the OpenMP thread count of the compute thread."""

    model_path: str
    device: Device
    context: int
    max_seqs: int
    num_threads: int


@dataclass(frozen=True)
class TargetSpec:
    """A target actor."""

    actor: ActorSpec
    dtype: Literal["float32", "bfloat16"]
    numerics: Literal["exact", "fast"]


@dataclass(frozen=True)
class DraftSpec:
    """A draft actor of its own."""

    actor: ActorSpec
    settings: DraftSettings


@dataclass(frozen=True)
class ActorReport:
    """What an actor is, read off the actor itself."""

    pid: int
    node: str
    device: str
    dtype: str
    num_threads: int
    resident_bytes: int
    cpu_s: float
    cuda_bytes: int = 0
