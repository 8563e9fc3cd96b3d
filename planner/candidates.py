"""Every way to place a pair on a set of nodes: fitting or not, how many requests at once, how fast, at what price.

Of equally fast devices only those with the most headroom are looked at, so that the work does not grow with the number
of nodes; which placements are possible is the same as if all were (tests/test_planner_candidates.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from twinspark.planner.footprint import Footprint
from twinspark.planner.nodes import CPU, Node, Seat, seats
from twinspark.planner.placement import Candidate, Demand, Footprints, Kind, Placement, Site
from twinspark.planner.predict import Predictor
from twinspark.planner.rooms import DRAFT_MARGIN, Need, Shortage, drafted_needs, needs, price_of_draft, shortage
from twinspark.planner.timings import Timings

SEATS_OF_A_CLASS = 2  # the draft may sit on the roomiest device and the target on the next, or the other way round
NODES_OF_A_CLASS = 2  # and the two on different nodes, where one has not the RAM for both
KINDS: tuple[Kind, ...] = ("cpu", "cuda")
TARGET_CORES = 1  # a target on a GPU keeps one core busy


def candidates(nodes: Sequence[Node], demand: Demand, footprints: Footprints, timings: Timings) -> list[Candidate]:
    """All candidates, in an order that does not depend on that of `nodes`."""
    survey = _Survey.of(nodes, demand, footprints, timings)
    return [candidate for target in survey.targets for candidate in survey.around(target)]


@dataclass(frozen=True)
class _Survey:
    nodes: Mapping[str, Node]
    headroom: Mapping[Seat, int | None]
    targets: tuple[Seat, ...]
    drafts: tuple[Seat, ...]
    demand: Demand
    footprints: Footprints
    predictor: Predictor

    @classmethod
    def of(cls, nodes: Sequence[Node], demand: Demand, footprints: Footprints, timings: Timings) -> _Survey:
        by_name = {node.name: node for node in nodes}
        headroom = {seat: by_name[seat.node].headroom_bytes(seat.device) for seat in seats(nodes)}
        every, asked, length = list(headroom), demand.num_requests, demand.priced_length
        targets = _roomiest(
            by_name, headroom, every, {kind: footprints.target(kind, asked, length) for kind in KINDS}, 1.0
        )
        drafts: list[Seat] = []
        if footprints.has_head:
            least = {kind: footprints.draft(kind, 1, length) for kind in KINDS}
            drafts = _roomiest(by_name, headroom, every, least, DRAFT_MARGIN)
        predictor = Predictor.of(nodes, demand, timings)
        return cls(by_name, headroom, tuple(targets), tuple(drafts), demand, footprints, predictor)

    def around(self, target: Seat) -> Iterator[Candidate]:
        """With the target at one seat: `off`, and every place of the draft."""
        off = self._off(target)
        yield off
        if not self.footprints.has_head:
            return
        yield self._drafted("colocated", target, None, off)
        for seat in sorted({*self.drafts, *self._on_the_node_of(target)}):
            yield self._drafted("cpu" if seat.device == CPU else "gpu", target, seat, off)

    def _on_the_node_of(self, target: Seat) -> list[Seat]:
        """Its CPU, its own device, and the roomiest other GPU."""
        others = [Seat(target.node, gpu.device) for gpu in self.nodes[target.node].gpus]
        others = [seat for seat in others if seat != target]
        others.sort(key=lambda seat: (-_known(self.headroom[seat]), seat))
        return [Seat(target.node, CPU), target, *others[:1]]

    def _off(self, target: Seat) -> Candidate:
        asked = self.demand.num_requests
        footprint = self.footprints.target(target.kind, asked, 0)
        short = shortage(self.headroom, needs(target, footprint))
        return Candidate(
            placement="off",
            target=target,
            draft=None,
            feasible=short is None,
            why=f"the target fits: {_have(footprint.device_bytes, self.headroom[target])}"
            if short is None
            else f"the target does not fit: {self._short(short)}",
            footprint_bytes=footprint.device_bytes,
            headroom_bytes=self.headroom[target],
            target_bytes=footprint.device_bytes,
            num_requests=asked,
            verify_length=0,
            predicted_tok_per_s=self.predictor.tok_per_s(Site("off", target, None), asked, 0),
            price_per_hour=self._price(target, footprint.device_bytes, None, 0),
        )

    def _drafted(self, placement: Placement, target: Seat, draft: Seat | None, off: Candidate) -> Candidate:
        asked = self.demand.num_requests
        fit = _most(lambda n: shortage(self.headroom, self._wanted(target, draft, n)) is None, asked)
        num_requests = fit or asked
        length, speed = self.predictor.best_length(
            Site(placement, target, draft), num_requests, self.demand.lengths, self.demand.usual_drafts(target.kind)
        )
        seat, priced = draft or target, self.demand.priced_length
        target_bytes = self.footprints.target(target.kind, num_requests, priced).device_bytes
        draft_bytes = price_of_draft(self.footprints, draft)(seat.kind, num_requests, priced).device_bytes
        room = self.headroom[seat]
        left = room if room is None or seat != target else max(0, room - target_bytes)
        obstacle = off.why if not off.feasible else self._obstacle(target, draft, num_requests)
        why = obstacle or f"it fits: {_have(draft_bytes, left)}"
        if obstacle is None and fit < asked:
            why += f"; its memory costs {asked - fit} of {asked} requests at once"
        return Candidate(
            placement=placement,
            target=target,
            draft=draft,
            feasible=obstacle is None,
            why=why,
            footprint_bytes=draft_bytes,
            headroom_bytes=left,
            target_bytes=target_bytes,
            num_requests=num_requests,
            verify_length=length,
            predicted_tok_per_s=speed,
            price_per_hour=self._price(target, target_bytes, seat, draft_bytes),
        )

    def _wanted(self, target: Seat, draft: Seat | None, num_requests: int) -> list[Need]:
        return drafted_needs(self.footprints, target, draft, num_requests, self.demand.priced_length)

    def _obstacle(self, target: Seat, draft: Seat | None, num_requests: int) -> str | None:
        """Why the draft cannot be there; None if it can."""
        if draft is not None and draft.device == CPU:
            node, cores = self.nodes[draft.node], self.demand.draft_threads
            if cores > node.num_cpus:
                return f"no cores: {cores} wanted, {node.host} has {node.num_cpus}"
        short = shortage(self.headroom, self._wanted(target, draft, num_requests))
        return None if short is None else f"no room: {self._short(short)}"

    def _price(self, target: Seat, target_bytes: int, draft: Seat | None, draft_bytes: int) -> float | None:
        """Money per hour: GPUs by the share of their memory that is taken, CPUs by cores."""
        parts = [self._rent(target, target_bytes, self._cores_of_target(target))]
        if draft is not None:
            parts.append(self._rent(draft, draft_bytes, 0 if draft == target else self.demand.draft_threads))
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None

    def _rent(self, seat: Seat, taken_bytes: int, cores: int) -> float | None:
        if seat.device == CPU:
            return self.demand.prices.rent(None, 0, cores)
        gpu = self.nodes[seat.node].gpu(seat.device)
        return self.demand.prices.rent((gpu.name, gpu.total_bytes), taken_bytes, cores)

    def _cores_of_target(self, target: Seat) -> int:
        return self.nodes[target.node].num_cpus if target.device == CPU else TARGET_CORES

    def _short(self, short: Shortage) -> str:
        where = f"{self.nodes[short.seat.node].host} {short.seat.device}"
        found = "nobody could read" if short.found_bytes is None else gib(short.found_bytes)
        return f"{gib(short.wanted_bytes)} wanted on {where}, headroom {found}"


def _roomiest(
    nodes: Mapping[str, Node],
    headroom: Mapping[Seat, int | None],
    among: Sequence[Seat],
    footprint: Mapping[Kind, Footprint],
    margin: float,
) -> list[Seat]:
    """Of every device class the seats with the most headroom: those where the footprint fits first. Some more are taken
    for being on other nodes, or on the one with the most RAM.
    """
    by_class: dict[tuple[str, str], list[Seat]] = {}
    for seat in among:
        by_class.setdefault((seat.kind, nodes[seat.node].device_class(seat.device)), []).append(seat)
    found: set[Seat] = set()
    for same in by_class.values():

        def order(seat: Seat) -> tuple[object, ...]:
            short = shortage(headroom, needs(seat, footprint[seat.kind], margin))
            return short is not None, -_known(headroom[seat]), seat

        ordered = sorted(same, key=order)
        found.update(ordered[:SEATS_OF_A_CLASS])
        first_of_node: dict[str, Seat] = {}
        for seat in ordered:
            first_of_node.setdefault(seat.node, seat)
        found.update(list(first_of_node.values())[:NODES_OF_A_CLASS])
        ram = {seat: _known(headroom[Seat(seat.node, CPU)]) for seat in same}
        found.add(min(ordered, key=lambda seat: (order(seat)[0], -ram[seat])))
    return sorted(found)


def _known(room: int | None) -> int:
    return -1 if room is None else room


def _most(fits: Callable[[int], bool], asked: int) -> int:
    """The most of `asked` that fit, 0 if none does. What does not fit does not fit for more either."""
    low, high = 0, asked
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _have(wanted_bytes: int, headroom: int | None) -> str:
    return f"{gib(wanted_bytes)} of {gib(headroom)}"


def gib(amount: int | None) -> str:
    """Bytes for people; None is unknown."""
    return "unknown" if amount is None else f"{amount / 2**30:.2f} GiB"
