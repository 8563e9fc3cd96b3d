"""Deciding again while a pair runs: measurements replace predictions, and a move waits until it is sure to pay.

Pure: the time is told, nothing is remembered but what `Watch` holds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from twinspark.planner.candidates import candidates
from twinspark.planner.decide import PlanInputs, best_of, score
from twinspark.planner.footprint import Footprint
from twinspark.planner.placement import Candidate, Footprints, Kind, Site
from twinspark.planner.predict import Predictor
from twinspark.planner.timings import Grid, StepKey, Timings

MARGIN = 1.10  # how much better another place must be
HOLD_S = 15.0  # and for how long without a break
SETTLE_S = 20.0  # nothing is moved again so soon: the new place has to be measured first
RETRY_S = 60.0  # after drafting was switched off it is tried again, later each time
MOST_RETRY_S = 3600.0


@dataclass(frozen=True)
class Measured:
    """The running pair, since it was looked at last: means over rounds. `survival` as far as enough was judged."""

    num_requests: float
    num_drafts: float
    draft_ms: float
    link_ms: float
    verify_ms: float
    round_ms: float
    survival: tuple[float, ...] | None


@dataclass(frozen=True)
class Watch:
    """What is remembered from look to look. `better` is the place that has been better since `since_s`."""

    moved_s: float
    better: Site | None = None
    since_s: float = 0.0
    switched_off: bool = False
    retry_s: float = RETRY_S


@dataclass(frozen=True)
class Move:
    """Where to, and why in one sentence."""

    to: Candidate
    why: str


def corrected(inputs: PlanInputs, current: Candidate, measured: Measured) -> PlanInputs:
    """`inputs` with what was measured at `current`: the grids of its steps scaled to what they took, its link and its
    overhead replaced, acceptance by position as it was seen, the number of requests as it is.
    """
    site = current.site
    predictor = inputs.predictor
    timings, num_requests = inputs.timings, max(1, round(measured.num_requests))
    length = max(1, round(measured.num_drafts)) if current.placement != "off" else 0
    steps = dict(timings.steps)
    taken = {predictor.verify_key(site): measured.verify_ms}
    if current.placement != "off":
        taken[predictor.draft_key(site)] = measured.draft_ms
    for key, ms in taken.items():
        grid = timings.step(key)
        predicted = grid.ms(num_requests, length) if grid is not None else 0.0
        if predicted > 0 and ms > 0:
            steps |= _scaled(timings, key, ms / predicted)
    link = dict(timings.link_ms)
    if current.draft is not None:
        link.pop((current.draft.node, current.target.node), None)
        link[current.target.node, current.draft.node] = measured.link_ms
    beside_ms = measured.round_ms - measured.draft_ms - measured.link_ms - measured.verify_ms
    overhead = dict(timings.overhead_ms) | {predictor.device_class(current.target): max(0.0, beside_ms)}
    record = inputs.demand.survival or ()
    survival = inputs.demand.survival
    if measured.survival is not None:
        survival = measured.survival + record[len(measured.survival) :]
    return replace(
        inputs,
        demand=replace(inputs.demand, survival=survival, num_requests=num_requests),
        timings=Timings(steps, link, overhead),
    )


def consider(
    watch: Watch,
    now_s: float,
    current: Candidate,
    possible: Sequence[Candidate],
    inputs: PlanInputs,
    barred: Collection[Site] = (),
) -> tuple[Watch, Move | None]:
    """Whether to move the draft now. `possible` are the candidates that fit around the running target; `barred` are
    places that turned out not to have room.
    """
    predictor = inputs.predictor
    here = _now(current, predictor, inputs)
    others = [_now(c, predictor, inputs) for c in possible if c.feasible and c.site not in barred]
    others = [c for c in others if c.target == current.target and c.site != current.site]
    drafting = [c for c in others if c.placement != "off"]
    if watch.switched_off and current.placement == "off" and drafting and now_s - watch.moved_s >= watch.retry_s:
        again = best_of(drafting, inputs.demand)
        later = min(MOST_RETRY_S, 2 * watch.retry_s)
        why = f"drafting is tried again after {watch.retry_s:.0f} s without"
        return Watch(now_s, retry_s=later), Move(again, why)
    best = best_of([here, *others], inputs.demand)
    mine, its = score(here, inputs.demand), score(best, inputs.demand)
    if best is here or mine is None or its is None or its < MARGIN * mine:
        return replace(watch, better=None), None
    if watch.better != best.site:
        return replace(watch, better=best.site, since_s=now_s), None
    if now_s - watch.since_s < HOLD_S or now_s - watch.moved_s < SETTLE_S:
        return watch, None
    why = (
        f"measured, {best.placement} is worth {its / mine:.2f} times {current.placement} ({its:.4g} against {mine:.4g})"
    )
    off = best.placement == "off"
    return Watch(now_s, switched_off=off, retry_s=watch.retry_s), Move(best, why)


def elsewhere(inputs: PlanInputs, current: Candidate, num_requests: int) -> Candidate | None:
    """A place for a draft whose node is gone: around the same target, which is loaded already. None if there is none.

    A placement that a person asked for stays that placement.
    """
    demand = replace(inputs.demand, num_requests=num_requests)
    found = candidates(inputs.nodes, demand, _Loaded(inputs.footprints), inputs.timings)
    wanted = demand.requested
    fitting = [
        c
        for c in found
        if c.feasible
        and c.target == current.target
        and c.num_requests == num_requests
        and wanted in ("auto", c.placement)
    ]
    return best_of(fitting, demand) if fitting else None


@dataclass(frozen=True)
class _Loaded:
    """Footprints beside a target that has taken its memory already."""

    footprints: Footprints

    @property
    def has_head(self) -> bool:
        return self.footprints.has_head

    def target(self, kind: Kind, num_requests: int, verify_length: int) -> Footprint:
        return Footprint(0, 0, 0, 0, 0)

    def draft(self, kind: Kind, num_requests: int, verify_length: int) -> Footprint:
        return self.footprints.draft(kind, num_requests, verify_length)

    def colocated(self, kind: Kind, num_requests: int, verify_length: int) -> Footprint:
        return self.footprints.colocated(kind, num_requests, verify_length)


def _scaled(timings: Timings, key: StepKey, factor: float) -> dict[StepKey, Grid]:
    """The grids of this step, alone and beside another actor: what made one slower makes the other slower too."""
    same = [k for k in timings.steps if (k.role, k.device_class) == (key.role, key.device_class)]
    return {k: timings.steps[k].scaled(factor) for k in same}


def _now(candidate: Candidate, predictor: Predictor, inputs: PlanInputs) -> Candidate:
    """The candidate as predicted now. The running one's verify length is what it is."""
    num_requests = min(inputs.demand.num_requests, candidate.num_requests)
    lengths = [0] if candidate.placement == "off" else [max(1, candidate.verify_length)]
    length, speed = predictor.best_length(candidate.site, num_requests, lengths, candidate.verify_length)
    return replace(candidate, verify_length=length, predicted_tok_per_s=speed)
