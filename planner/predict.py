"""Predicted tokens per second of a placement: step times and expected acceptance, put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from twinspark.planner.acceptance import expected_length
from twinspark.planner.nodes import Node, Seat
from twinspark.planner.placement import Demand, Site
from twinspark.planner.timings import StepKey, Timings


@dataclass(frozen=True)
class Round:
    """A round of `num_requests`: `length` tokens each on average; `beside_ms` is what is neither step nor link."""

    num_requests: int
    length: float
    draft_ms: float
    link_ms: float
    verify_ms: float
    beside_ms: float

    @property
    def ms(self) -> float:
        return self.draft_ms + self.link_ms + self.verify_ms + self.beside_ms

    @property
    def tok_per_s(self) -> float | None:
        """Of all requests together; None for a round that takes no time."""
        return 1e3 * self.num_requests * self.length / self.ms if self.ms > 0 else None


@dataclass(frozen=True)
class Predictor:
    """`survival` is the conditional acceptance by position (None: unknown)."""

    nodes: Mapping[str, Node]
    timings: Timings
    survival: tuple[float, ...] | None

    @classmethod
    def of(cls, nodes: Sequence[Node], demand: Demand, timings: Timings) -> Predictor:
        return cls({node.name: node for node in nodes}, timings, demand.survival)

    def verify_key(self, site: Site) -> StepKey:
        return StepKey("verify", self.device_class(site.target), site.beside)

    def draft_key(self, site: Site) -> StepKey:
        if site.draft is None:
            return StepKey("colocated", self.device_class(site.target))
        return StepKey("draft", self.device_class(site.draft), site.beside)

    def device_class(self, seat: Seat) -> str:
        return self.nodes[seat.node].device_class(seat.device)

    def round(self, site: Site, num_requests: int, verify_length: int) -> Round | None:
        """What a round is expected to take and to give; None where a time, or the acceptance, is unknown."""
        verify = self.timings.step(self.verify_key(site))
        if verify is None:
            return None
        verify_ms = verify.ms(num_requests, verify_length)
        beside_ms = self.timings.overhead_ms.get(self.device_class(site.target), 0.0)
        if site.placement == "off":
            return Round(num_requests, 1.0, 0.0, 0.0, verify_ms, beside_ms)
        step = self.timings.step(self.draft_key(site))
        link_ms = 0.0 if site.draft is None else self.timings.link(site.target.node, site.draft.node)
        if step is None or link_ms is None or self.survival is None:
            return None
        length = expected_length(self.survival, verify_length)
        return Round(num_requests, length, step.ms(num_requests, verify_length), link_ms, verify_ms, beside_ms)

    def tok_per_s(self, site: Site, num_requests: int, verify_length: int) -> float | None:
        """Of all requests together; None where a time, or the acceptance, is unknown."""
        expected = self.round(site, num_requests, verify_length)
        return None if expected is None else expected.tok_per_s

    def best_length(
        self, site: Site, num_requests: int, lengths: Sequence[int], otherwise: int
    ) -> tuple[int, float | None]:
        """The verify length among `lengths` with the highest predicted speed (the shortest of equals), and that speed;
        `otherwise` where nothing can be predicted.
        """
        speeds = [(self.tok_per_s(site, num_requests, length), -length) for length in lengths]
        known = [(speed, minus) for speed, minus in speeds if speed is not None]
        if not known:
            return otherwise, None
        speed, minus_length = max(known)
        return -minus_length, speed
