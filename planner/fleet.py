"""How many pairs a fleet of nodes needs for a demand, where they go, what stays free. Pure, and quick for 10,000 nodes.

Rules: a GPU has one target, or one draft, or a target with its own draft; a node's CPU has one target, or drafts on
cores of their own; a node that cannot hold a target on a GPU may give itself up to the drafts of others, which then all
have the same kind of device. Every pair carries the requests at once that were asked for. What is taken includes the
draft's margin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from twinspark.planner.fleet_layouts import Device, FleetLayouts, Layout, LayoutMaker, Links
from twinspark.planner.fleet_nodes import Group, Grouper
from twinspark.planner.fleet_plans import ROUNDING, Lot, Plans, Wanted
from twinspark.planner.nodes import CPU, Node, Seat
from twinspark.planner.placement import Demand, Footprints
from twinspark.planner.timings import Timings


@dataclass(frozen=True)
class PlacedPair:
    """One pair of a fleet. `draft` is None for `off` and `colocated`."""

    layout: Layout
    target: Seat
    draft: Seat | None


@dataclass(frozen=True)
class Run:
    """Nodes that have the same number of pairs, or of drafts of others."""

    nodes: tuple[str, ...]
    each: int


@dataclass(frozen=True)
class Part:
    """All pairs of one layout. `drafts` are the other nodes that drafts are on."""

    layout: Layout
    num_pairs: int
    targets: tuple[Run, ...]
    drafts: tuple[Run, ...]


@dataclass(frozen=True)
class Amounts:
    """Of GPUs, cores, and headroom."""

    gpus: int
    cores: int
    ram_bytes: int
    vram_bytes: int

    def less(self, other: Amounts) -> Amounts:
        return Amounts(
            self.gpus - other.gpus,
            self.cores - other.cores,
            self.ram_bytes - other.ram_bytes,
            self.vram_bytes - other.vram_bytes,
        )


@dataclass(frozen=True)
class Fleet:
    """`most` is what all nodes together could give of what was asked. `total` counts all nodes, `free` what no pair
    takes; memory that nobody could read is in neither.
    """

    wanted: Wanted
    met: bool
    most: float
    measured: bool
    parts: tuple[Part, ...]
    total: Amounts
    free: Amounts
    _lots: tuple[Lot, ...] = field(repr=False)
    _donors: tuple[tuple[str, tuple[str, ...]], ...] = field(repr=False)

    @property
    def num_pairs(self) -> int:
        return sum(part.num_pairs for part in self.parts)

    @property
    def concurrency(self) -> int:
        return sum(part.num_pairs * part.layout.num_requests for part in self.parts)

    @property
    def tok_per_s(self) -> float | None:
        """None where some pair's speed is unknown."""
        return _total(self.parts, lambda layout: layout.tok_per_s)

    @property
    def price_per_hour(self) -> float | None:
        return _total(self.parts, lambda layout: layout.price_per_hour)

    @property
    def reason(self) -> str:
        """One sentence."""
        asked = f"{_number(self.wanted.amount)} {self.wanted.unit}"
        if not self.met:
            return f"{asked} cannot be met: all nodes together give at most {_number(self.most)}"
        speed = "speed not measured" if self.tok_per_s is None else f"{_number(self.tok_per_s)} tokens/s"
        pairs = "1 pair gives" if self.num_pairs == 1 else f"{self.num_pairs:,} pairs give"
        return f"{asked} can be met: {pairs} {self.concurrency:,} requests at once, {speed}"

    def pairs(self) -> Iterator[PlacedPair]:
        """Every pair with its seats."""
        hosts = (Seat(node, device) for node, devices in self._donors for device in devices)
        for lot in self._lots:
            for node in range(lot.start, lot.stop):
                name = lot.group.nodes[node]
                for slot in lot.slots:
                    target = Seat(name, lot.group.device(node, slot.target))
                    draft: Seat | None = None
                    if lot.layout.where == "other node":
                        draft = next(hosts)
                    elif lot.layout.where == "same node":
                        draft = Seat(name, lot.group.device(node, slot.draft))
                    elif lot.layout.draft is not None:
                        draft = target
                    yield PlacedPair(lot.layout, target, draft)


def _number(amount: float) -> str:
    return f"{amount:,.1f}".removesuffix(".0")


def plan_fleet(
    nodes: Sequence[Node],
    demand: Demand,
    footprints: Footprints,
    timings: Timings,
    wanted: Wanted,
    links: Links | None = None,
) -> Fleet:
    """Pairs for `wanted`: as few as possible, or, with the objective `cost`, for the least money.

    `links` None: the worst that `timings` knows. Raises ValueError where speeds (or prices) are needed and unknown.
    """
    made = FleetLayouts.of(
        LayoutMaker(demand, footprints, timings, links or Links.worst_of(timings.link_ms)),
        nodes,
        predicted_only=wanted.tok_per_s is not None,
    )
    groups = Grouper([*made.local, *made.bare], made.drafts, made.holds_target).groups(nodes)
    plans = Plans(groups, made, wanted)
    most = max((plan.worth for plan in plans.of_capacity()), default=0.0)
    met = most >= wanted.amount * (1 - ROUNDING)
    if met:
        trimmed = [plan.trimmed() for plan in (*plans.of_capacity(), *plans.of_merit())]
        enough = [plan for plan in trimmed if plan.worth >= wanted.amount * (1 - ROUNDING)]
        best = min(enough, key=lambda plan: plan.cost(demand.objective))
    else:
        best = max(plans.of_capacity(), key=lambda plan: (plan.worth, plan.merit))
    across = sum(lot.num_pairs for lot in best.lots if lot.layout.where == "other node")
    donors = tuple(_given_out(best.hosts, best.helper, across))
    total = _all_of(nodes)
    return Fleet(
        wanted=wanted,
        met=met,
        most=most,
        measured=made.measured,
        parts=_parts(best.lots, donors),
        total=total,
        free=total.less(_taken(best.lots)),
        _lots=best.lots,
        _donors=donors,
    )


def _given_out(
    hosts: Sequence[tuple[Group, int, int]], helper: Device | None, num_drafts: int
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Nodes with the devices that drafts of others get there."""
    for group, count, held in hosts:
        for node in range(count):
            if not num_drafts or helper is None:
                return
            used = min(held, num_drafts)
            num_drafts -= used
            if helper.kind == "cpu":
                devices: tuple[str, ...] = (CPU,) * used
            else:
                here = [i for i, (device, _) in enumerate(group.stock.gpus) if device == helper]
                # Those with the most room come last in the stock.
                devices = tuple(group.device(node, i) for i in reversed(here))[:used]
            yield group.nodes[node], devices


def _parts(lots: Sequence[Lot], donors: Sequence[tuple[str, tuple[str, ...]]]) -> tuple[Part, ...]:
    left = [(name, len(devices)) for name, devices in donors]
    parts = []
    for layout in dict.fromkeys(lot.layout for lot in lots):
        mine = [lot for lot in lots if lot.layout == layout]
        num_pairs = sum(lot.num_pairs for lot in mine)
        targets = _runs([(name, len(lot.slots)) for lot in mine for name in lot.group.nodes[lot.start : lot.stop]])
        drafts: list[tuple[str, int]] = []
        wanted = num_pairs if layout.where == "other node" else 0
        while wanted:
            name, room = left.pop(0)
            used = min(room, wanted)
            wanted -= used
            drafts.append((name, used))
            if room > used:
                left.insert(0, (name, room - used))
        parts.append(Part(layout, num_pairs, targets, _runs(drafts)))
    return tuple(parts)


def _runs(amounts: Sequence[tuple[str, int]]) -> tuple[Run, ...]:
    by_node: dict[str, int] = {}
    for name, amount in amounts:
        by_node[name] = by_node.get(name, 0) + amount
    by_amount: dict[int, list[str]] = {}
    for name, amount in by_node.items():
        by_amount.setdefault(amount, []).append(name)
    return tuple(Run(tuple(names), amount) for amount, names in sorted(by_amount.items(), reverse=True))


def _total(parts: Sequence[Part], value: Callable[[Layout], float | None]) -> float | None:
    values = [(part.num_pairs, value(part.layout)) for part in parts]
    known = [count * amount for count, amount in values if amount is not None]
    return math.fsum(known) if len(known) == len(values) else None


def _all_of(nodes: Sequence[Node]) -> Amounts:
    vram: dict[tuple[object, ...], int] = {}
    for node in nodes:
        if node.gpus not in vram:
            vram[node.gpus] = sum(node.headroom_bytes(gpu.device) or 0 for gpu in node.gpus)
    return Amounts(
        gpus=sum(len(node.gpus) for node in nodes),
        cores=sum(node.num_cpus for node in nodes),
        ram_bytes=sum(node.headroom_bytes(CPU) or 0 for node in nodes),
        vram_bytes=sum(vram[node.gpus] for node in nodes),
    )


def _taken(lots: Sequence[Lot]) -> Amounts:
    gpus = cores = ram = vram = 0
    for lot in lots:
        layout, pairs = lot.layout, lot.num_pairs
        target, draft = layout.target_take, layout.draft_take
        on_gpu = layout.target.kind == "cuda"
        draft_on_gpu = (layout.draft or layout.target).kind == "cuda"
        gpus += pairs * layout.num_gpus
        cores += pairs * (target.cores + draft.cores)
        vram += pairs * ((target.device_bytes if on_gpu else 0) + (draft.device_bytes if draft_on_gpu else 0))
        ram += pairs * (target.host_bytes + draft.host_bytes)
        ram += pairs * ((0 if on_gpu else target.device_bytes) + (0 if draft_on_gpu else draft.device_bytes))
    return Amounts(gpus, cores, ram, vram)
