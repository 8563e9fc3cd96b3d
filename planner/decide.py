"""The choice among candidates, with its reason in one sentence. Pure (DESIGN section 4).

Explicit placements are the user's: they skip the arithmetic and say what was found. `auto` takes the feasible candidate
with the best predicted speed (or tokens per money), `off` among them; where nothing was measured, a static rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twinspark.planner.candidates import candidates, gib
from twinspark.planner.nodes import CPU, Node
from twinspark.planner.placement import (
    Candidate,
    Decision,
    Demand,
    Footprints,
    Placement,
    PlacementError,
    TargetDoesNotFitError,
)
from twinspark.planner.predict import Predictor
from twinspark.planner.timings import Timings

LEAST_CPUS_FOR_CPU_DRAFT = 4  # below that the static rule sees no core to spare; a measurement overrides it
STATIC_ORDER: tuple[Placement, ...] = ("colocated", "gpu", "cpu", "off")
STEPS_DOWN: dict[Placement, tuple[Placement, ...]] = {
    "colocated": ("cpu", "off"),
    "gpu": ("cpu", "off"),
    "cpu": ("off",),
    "off": (),
}
NAMED_IN_AN_ERROR = 6


@dataclass(frozen=True)
class PlanInputs:
    """All that a decision rests on: whoever holds it can decide again, with other nodes or with what was measured."""

    nodes: tuple[Node, ...]
    demand: Demand
    footprints: Footprints
    timings: Timings

    def decide(self) -> Decision:
        """As `decide`."""
        return decide(self.nodes, self.demand, self.footprints, self.timings)

    @property
    def predictor(self) -> Predictor:
        return Predictor.of(self.nodes, self.demand, self.timings)

    def node(self, name: str) -> Node:
        """Raises KeyError for a node that was not there."""
        return {node.name: node for node in self.nodes}[name]


def decide(nodes: Sequence[Node], demand: Demand, footprints: Footprints, timings: Timings) -> Decision:
    """Raises PlacementError where what was asked for cannot be had, TargetDoesNotFitError where nothing can."""
    if demand.requested not in ("auto", "off") and not footprints.has_head:
        raise PlacementError(f"placement {demand.requested} needs a draft head, got --dspark-model none")
    found = candidates(nodes, demand, footprints, timings)
    if demand.requested != "auto":
        return _asked_for(nodes, demand, found)
    possible = [candidate for candidate in found if candidate.feasible]
    if not any(candidate.placement == "off" for candidate in possible):
        raise TargetDoesNotFitError(_nowhere(nodes, demand, found))
    scored = [(found_score, c) for c in possible if (found_score := score(c, demand)) is not None]
    # What the static rule would choose must not lose for want of a timing.
    static = _static(possible, nodes, demand)
    measured = any(c is static for _, c in scored) and any(
        c.placement == "off" and c.target == static.target for _, c in scored
    )
    chosen = _fastest(scored) if measured else static
    reason = _measured_reason(chosen, scored, demand) if measured else _static_reason(chosen, footprints, demand)
    return Decision("auto", chosen, reason, measured, tuple(found), _fallbacks(chosen, possible, demand))


def score(candidate: Candidate, demand: Demand) -> float | None:
    """Higher is better: tokens per second, or tokens per unit of money. None where it cannot be told."""
    if candidate.predicted_tok_per_s is None or demand.objective == "speed":
        return candidate.predicted_tok_per_s
    if not candidate.price_per_hour:
        return None
    return candidate.predicted_tok_per_s * 3600 / candidate.price_per_hour


def best_of(among: Sequence[Candidate], demand: Demand) -> Candidate:
    """The best score; without any, the first by the static order, with the most headroom. `among` must not be empty."""
    scored = [(value, c) for c in among if (value := score(c, demand)) is not None]
    return _fastest(scored) if scored else min(among, key=_by_room)


def _fastest(scored: Sequence[tuple[float, Candidate]]) -> Candidate:
    """The best score; of equals `off`, then the placement that needs the least, then the first by name."""
    _, chosen = min(scored, key=lambda pair: (-pair[0], pair[1].placement != "off", _plainest(pair[1])))
    return chosen


def _plainest(candidate: Candidate) -> tuple[int, int, str, str]:
    away = candidate.draft is not None and candidate.draft.node != candidate.target.node
    return STATIC_ORDER.index(candidate.placement), int(away), str(candidate.target), str(candidate.draft)


def _static(possible: Sequence[Candidate], nodes: Sequence[Node], demand: Demand) -> Candidate:
    """Nothing was measured: a target on a GPU if one has room, the draft beside it, all requests at once."""
    cpus = {node.name: node.num_cpus for node in nodes}

    def allowed(candidate: Candidate) -> bool:
        enough = candidate.draft is None or cpus[candidate.draft.node] >= LEAST_CPUS_FOR_CPU_DRAFT
        apart = candidate.target.device != CPU and enough
        return candidate.num_requests == demand.num_requests and (candidate.placement != "cpu" or apart)

    choosable = [candidate for candidate in possible if allowed(candidate)]
    return min(choosable, key=lambda c: (c.target.device == CPU, *_by_room(c)))


def _by_room(candidate: Candidate) -> tuple[int, int, int, str, str]:
    order, away, target, draft = _plainest(candidate)
    return order, away, -(candidate.headroom_bytes or 0), target, draft


def _asked_for(nodes: Sequence[Node], demand: Demand, found: Sequence[Candidate]) -> Decision:
    matching = [candidate for candidate in found if candidate.placement == demand.requested]
    if not matching:
        searches = "; ".join(sorted({node.gpu_search for node in nodes if node.gpu_search}))
        found_none = f"found none ({searches})" if searches else "found none"
        raise PlacementError(f"placement {demand.requested} needs a GPU, {found_none}")

    def preference(candidate: Candidate) -> tuple[object, ...]:
        speed = candidate.predicted_tok_per_s
        return (not candidate.feasible, -(speed or 0.0), candidate.target.device == CPU, *_by_room(candidate))

    chosen = min(matching, key=preference)
    reason = f"asked for; {chosen.why}"
    return Decision(demand.requested, chosen, reason, chosen.predicted_tok_per_s is not None, tuple(found))


def _fallbacks(chosen: Candidate, possible: Sequence[Candidate], demand: Demand) -> tuple[Candidate, ...]:
    """What to step down to if the draft's memory is gone: the target stays where it is, nothing slower than `off`."""
    same = [c for c in possible if c.target == chosen.target and c.num_requests >= chosen.num_requests]
    [off] = [c for c in possible if c.target == chosen.target and c.placement == "off"]
    floor = score(off, demand)
    steps: list[Candidate] = []
    for placement in STEPS_DOWN[chosen.placement]:
        if placement == "off":
            steps.append(off)
            continue
        there = [c for c in same if c.placement == placement and (floor is None or (score(c, demand) or 0.0) > floor)]
        steps += sorted(there, key=lambda c: (-(score(c, demand) or 0.0), _plainest(c)))[:1]
    return tuple(steps)


def _unit(demand: Demand) -> str:
    return "tokens/s" if demand.objective == "speed" else "tokens per unit of money"


def _measured_reason(chosen: Candidate, scored: Sequence[tuple[float, Candidate]], demand: Demand) -> str:
    best = {c.placement: value for value, c in sorted(scored, key=lambda pair: pair[0])}
    mine = score(chosen, demand) or 0.0
    others = sorted(((value, name) for name, value in best.items() if name != chosen.placement), reverse=True)
    against = ", ".join(f"{name} {value:.4g}" for value, name in others) or "nothing else"
    what = "cheapest" if demand.objective == "cost" else "fastest"
    return f"predicted {what}: {mine:.4g} {_unit(demand)} ({against})"


def _static_reason(chosen: Candidate, footprints: Footprints, demand: Demand) -> str:
    if not footprints.has_head:
        return "no draft head was given"
    if demand.objective == "cost" and chosen.predicted_tok_per_s is not None and chosen.price_per_hour is None:
        return f"a device has no price, so nothing is weighed by money; by the static rule, {chosen.why}"
    return f"not measured; by the static rule, {chosen.why}"


def _nowhere(nodes: Sequence[Node], demand: Demand, found: Sequence[Candidate]) -> str:
    hosts = {node.name: node.host for node in nodes}
    tried = sorted((c for c in found if c.placement == "off"), key=lambda c: -(c.headroom_bytes or 0))
    seats = [
        f"{hosts[c.target.node]} {c.target.device} wanted {gib(c.footprint_bytes)}, headroom {gib(c.headroom_bytes)}"
        for c in tried[:NAMED_IN_AN_ERROR]
    ]
    return (
        f"the target must fit somewhere with its cache for {demand.num_requests} requests at once: "
        f"{'; '.join(seats) or 'no node was found'} (headroom is free memory less a reserve)"
    )
