"""From a candidate of the planner to the actors it stands for: one recipe makes the same pair wherever it is placed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from twinspark.actors.link.base import Transport
from twinspark.actors.specs import ActorSpec, DraftDtype, DraftSettings, DraftSpec, TargetSpec
from twinspark.planner.nodes import Seat
from twinspark.planner.placement import Kind

TargetDtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Recipe:
    """What is the same at every place. Dtypes by kind of device; `target_threads` 0 takes all CPUs of the node."""

    model_path: str
    head_path: str | None
    context: int
    target_dtypes: Mapping[Kind, TargetDtype]
    draft_dtypes: Mapping[Kind, DraftDtype]
    numerics: Literal["exact", "fast"] = "fast"
    min_confidence: float = 0.0
    target_threads: int = 0
    draft_threads: int = 1
    transport: Transport = "stream"
    record_path: str | None = None

    def target_spec(self, seat: Seat, max_seqs: int, num_cpus: int) -> TargetSpec:
        """The target at `seat`, on a node of `num_cpus`."""
        actor = ActorSpec(self.model_path, seat.kind, self.context, max_seqs, self.target_threads or num_cpus)
        return TargetSpec(actor, self.target_dtypes[seat.kind], self.numerics)

    def draft_spec(self, seat: Seat, max_seqs: int, verify_length: int) -> DraftSpec:
        """A draft actor at `seat`."""
        actor = ActorSpec(self.model_path, seat.kind, self.context, max_seqs, self.draft_threads)
        return DraftSpec(actor, self.draft_settings(seat, verify_length))

    def draft_settings(self, seat: Seat, verify_length: int) -> DraftSettings:
        """How to draft at `seat`. Raises ValueError where there is no head."""
        if self.head_path is None:
            raise ValueError("a draft needs a head, got none")
        return DraftSettings(self.head_path, self.draft_dtypes[seat.kind], verify_length, self.min_confidence)
