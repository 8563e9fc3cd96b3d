"""The words of a decision: placements, candidates, what was asked for, what was decided."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

from twinspark.planner.footprint import Footprint
from twinspark.planner.nodes import Seat
from twinspark.planner.prices import Prices

Placement = Literal["off", "colocated", "cpu", "gpu"]
Requested = Literal["auto", "off", "colocated", "cpu", "gpu"]
Objective = Literal["speed", "cost"]
Kind = Literal["cpu", "cuda"]
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)


CPU_DRAFTS = 5  # up to 6 rows cost a CPU target what 1 does; the 7th and 8th do not (docs/performance.md)


class PlacementError(ValueError):
    """The placement asked for is not possible here."""


class TargetDoesNotFitError(PlacementError):
    """Not even the target fits anywhere."""


class Footprints(Protocol):
    """What a pair's sides would take, for this many requests at once and this many draft tokens each."""

    @property
    def has_head(self) -> bool: ...

    def target(self, kind: Kind, num_requests: int, verify_length: int) -> Footprint:
        """The target's actor."""
        ...

    def draft(self, kind: Kind, num_requests: int, verify_length: int) -> Footprint:
        """A draft actor of its own, trunk included."""
        ...

    def colocated(self, kind: Kind, num_requests: int, verify_length: int) -> Footprint:
        """What a head adds to the target's actor."""
        ...


@dataclass(frozen=True)
class Demand:
    """What is asked of a pair. `verify_length` 0: the planner's choice, up to `most_drafts` (what the head's block
    allows). `survival` is the conditional acceptance by position (None: no record). `draft_threads` are the cores a CPU
    draft takes.
    """

    requested: Requested = "auto"
    num_requests: int = 1
    verify_length: int = 0
    most_drafts: int = 0
    survival: tuple[float, ...] | None = None
    draft_threads: int = 1
    objective: Objective = "speed"
    prices: Prices = field(default_factory=Prices)

    def usual_drafts(self, kind: Kind) -> int:
        """The verify length where nothing was measured: all the head has on a GPU, what costs no more than one row on
        a CPU.
        """
        return self.verify_length or (self.most_drafts if kind == "cuda" else min(self.most_drafts, CPU_DRAFTS))

    @property
    def lengths(self) -> tuple[int, ...]:
        """The verify lengths to choose from."""
        return (self.verify_length,) if self.verify_length else tuple(range(1, self.most_drafts + 1))

    @property
    def priced_length(self) -> int:
        """The largest verify length there may be: what workspace is priced at."""
        return self.verify_length or self.most_drafts


@dataclass(frozen=True)
class Site:
    """Where a pair would sit. `draft` is None for `off` and `colocated`."""

    placement: Placement
    target: Seat
    draft: Seat | None

    @property
    def beside(self) -> bool:
        """Whether two actors compute on the same device."""
        return self.draft == self.target


@dataclass(frozen=True)
class Candidate:
    """One way to place a pair. `footprint_bytes` and `headroom_bytes` are of the draft on its device (of the target for
    `off`), the latter less what the target takes there. `num_requests` fit at once; `verify_length` is the best.
    """

    placement: Placement
    target: Seat
    draft: Seat | None
    feasible: bool
    why: str
    footprint_bytes: int
    headroom_bytes: int | None
    target_bytes: int
    num_requests: int
    verify_length: int
    predicted_tok_per_s: float | None = None
    price_per_hour: float | None = None

    @property
    def site(self) -> Site:
        """Where both sides sit."""
        return Site(self.placement, self.target, self.draft)

    @property
    def seat(self) -> Seat:
        """Where the draft is; for `off`, where the target is."""
        return self.draft or self.target


@dataclass(frozen=True)
class Decision:
    """What was decided, and every candidate it was chosen from. `fallbacks` are what to step down to, in order, where
    the memory is gone by the time of loading; empty for a placement that a person asked for.
    """

    requested: Requested
    chosen: Candidate
    reason: str
    measured: bool
    candidates: tuple[Candidate, ...]
    fallbacks: tuple[Candidate, ...] = ()

    @property
    def placement(self) -> Placement:
        return self.chosen.placement
