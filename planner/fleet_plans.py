"""Ways to fill a fleet: which pairs each group of nodes gets, and which nodes are given up to the drafts of others.

The most that can be had is found for each kind of such drafts by itself: there it never falls when nodes are added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from twinspark.planner.fleet_layouts import Device, FleetLayouts, Layout
from twinspark.planner.fleet_nodes import Bench, Fill, Group, Slot, drafts_held, fill, fullest
from twinspark.planner.placement import Objective

ROUNDING = 1e-9
MOST_ASKED = 1e12  # far more than there is, and still counted exactly
Value = Callable[[Layout], float]


@dataclass(frozen=True)
class Wanted:
    """One of the two: tokens per second, or requests at once."""

    tok_per_s: float | None = None
    concurrency: int | None = None

    def __post_init__(self) -> None:
        if (self.tok_per_s is None) == (self.concurrency is None):
            raise ValueError(f"a fleet must be asked for tokens/s or for requests at once, got {self}")
        if not 0 < self.amount <= MOST_ASKED:
            raise ValueError(
                f"what is asked of a fleet must be above 0 and at most {MOST_ASKED:g}, got {self.amount:g}"
            )

    @property
    def amount(self) -> float:
        return float(self.concurrency or 0) if self.tok_per_s is None else self.tok_per_s

    @property
    def unit(self) -> str:
        return "requests at once" if self.tok_per_s is None else "tokens/s"

    def worth(self, layout: Layout) -> float:
        """What a pair adds to it."""
        if not layout.counts:
            return 0.0
        return float(layout.num_requests) if self.tok_per_s is None else layout.tok_per_s or 0.0


@dataclass(frozen=True)
class Lot:
    """The same pairs on each of some nodes of a group."""

    layout: Layout
    group: Group
    slots: Fill
    start: int
    stop: int

    @property
    def num_pairs(self) -> int:
        return len(self.slots) * (self.stop - self.start)


@dataclass(frozen=True)
class _Donor:
    """Nodes that may be given up for drafts of others: `held` each, instead of pairs of their own."""

    group: Group
    held: int
    own: float


@dataclass(frozen=True)
class Plan:
    """Pairs, the best first; `hosts` are nodes with room for drafts of others: group, nodes, drafts each."""

    lots: tuple[Lot, ...]
    hosts: tuple[tuple[Group, int, int], ...]
    helper: Device | None
    wanted: Wanted

    @cached_property
    def worth(self) -> float:
        return math.fsum(lot.num_pairs * self.wanted.worth(lot.layout) for lot in self.lots)

    @cached_property
    def merit(self) -> float:
        return math.fsum(lot.num_pairs * lot.layout.merit for lot in self.lots)

    def trimmed(self) -> Plan:
        """Only as many as are wanted, the best pairs first, nodes filled one after the other."""
        wanted, have, kept = self.wanted, 0.0, []
        for lot in self.lots:
            each = wanted.worth(lot.layout)
            missing = wanted.amount * (1 - ROUNDING) - have
            if missing <= 0 or each <= 0:
                continue
            taken = min(lot.num_pairs, math.ceil(missing / each))
            whole, rest = divmod(taken, len(lot.slots))
            if whole:
                kept.append(replace(lot, stop=lot.start + whole))
            if rest:
                begin = lot.start + whole
                kept.append(replace(lot, slots=lot.slots[:rest], start=begin, stop=begin + 1))
            have += taken * each
        return replace(self, lots=tuple(kept))

    def cost(self, objective: Objective) -> tuple[float, ...]:
        """What is to be small: money, or the number of pairs."""
        num_pairs = sum(lot.num_pairs for lot in self.lots)
        num_gpus = sum(lot.num_pairs * lot.layout.num_gpus for lot in self.lots)
        if objective == "speed":
            return num_pairs, -self.merit, num_gpus
        price = math.fsum(lot.num_pairs * (lot.layout.price_per_hour or 0.0) for lot in self.lots)
        speed = math.fsum(lot.num_pairs * (lot.layout.tok_per_s or 0.0) for lot in self.lots)
        if self.wanted.tok_per_s is not None:
            return price, num_pairs, num_gpus
        return -speed / price if price else 0.0, num_pairs, num_gpus


class Plans:
    """The plans worth looking at: with nodes given up for drafts of others and without, for the most or the best."""

    def __init__(self, groups: Sequence[Group], layouts: FleetLayouts, wanted: Wanted) -> None:
        self.groups = groups
        self.layouts = layouts
        self.wanted = wanted
        self.worth: Value = wanted.worth
        self.merit: Value = lambda layout: layout.merit
        ranked = sorted(layouts.local, key=lambda layout: layout.rank)
        self._best = [fill(group.stock, [*ranked, *layouts.bare]) for group in groups]
        self._most = [fullest(group.stock, layouts.local, layouts.bare, self.worth) for group in groups]

    @cached_property
    def _capacity(self) -> list[Plan]:
        """Each of these never gives less of what is wanted for more nodes."""
        plans = [self._plan(self._most, None, self.worth)]
        return plans + [self._plan(self._most, helper, self.worth) for helper in self.layouts.across]

    def of_capacity(self) -> list[Plan]:
        return self._capacity

    def of_merit(self) -> Iterator[Plan]:
        """Those that may have better pairs, though fewer."""
        yield self._plan(self._best, None, self.merit)
        for helper in self.layouts.across:
            for fills in (self._best, self._most):
                yield self._plan(fills, helper, self.merit)
                yield self._plan(fills, helper, self.merit, give_all=True)

    def _plan(self, fills: Sequence[Fill], helper: Device | None, value: Value, give_all: bool = False) -> Plan:
        donors = [] if helper is None else self._donors(fills, helper, value)
        gains = [] if helper is None else self._gains(fills, helper, value, {id(donor.group) for donor in donors})
        given = _how_many(donors, gains, give_all)
        hosts, budget, lots = [], 0, []
        start: dict[int, int] = {}
        for donor in donors:
            count = min(given, len(donor.group.nodes))
            given -= count
            start[id(donor.group)] = count
            budget += count * donor.held
            if count:
                hosts.append((donor.group, count, donor.held))
        moved: dict[tuple[int, Layout], tuple[int, Fill]] = {}
        for _, group, layout, better, slots in gains:
            whole, rest = divmod(min(budget, len(slots) * len(group.nodes)), len(slots))
            budget -= whole * len(slots) + rest
            moved[id(group), layout] = whole * len(slots) + rest, slots
            lots += _some(better, group, slots, 0, whole * len(slots) + rest)
        for group, slots in zip(self.groups, fills, strict=True):
            for layout in dict.fromkeys(slot.layout for slot in slots):
                same = tuple(slot for slot in slots if slot.layout == layout)
                taken, movable = moved.get((id(group), layout), (0, ()))
                lots += _what_is_left(layout, group, same, movable, taken, start.get(id(group), 0))
        lots = [lot for lot in lots if lot.layout.counts and lot.num_pairs]
        lots.sort(key=lambda lot: (lot.layout.order, lot.group.nodes[0], lot.start))
        return Plan(tuple(lots), tuple(hosts), helper, self.wanted)

    def _donors(self, fills: Sequence[Fill], helper: Device, value: Value) -> list[_Donor]:
        """In the order in which they are given up: those that lose the least, then those that hold the most."""
        take, found = self.layouts.draft_take(helper), []
        for group, slots in zip(self.groups, fills, strict=True):
            held = drafts_held(group.stock, helper, take) if group.stock.helps else 0
            if held:
                own = math.fsum(value(slot.layout) for slot in slots)
                found.append(_Donor(group, held, own))
        return sorted(found, key=lambda donor: (donor.own, -donor.held, donor.group.nodes[0]))

    def _gains(
        self, fills: Sequence[Fill], helper: Device, value: Value, but: set[int]
    ) -> list[tuple[float, Group, Layout, Layout, Fill]]:
        """What a draft on another node would add to a pair, the most first: gain, group, layout now and then, slots."""
        found = []
        better = self.layouts.across[helper]
        for group, slots in zip(self.groups, fills, strict=True):
            if id(group) in but:
                continue
            bench = Bench(group.stock)
            for slot in slots:
                bench.take(slot)
            offers: dict[Layout, list[Slot]] = {}
            for slot in sorted(slots, key=lambda slot: -_gain(slot, better, value)):
                then = better.get(slot.layout.target)
                if slot.target is None or then is None or _gain(slot, better, value) <= 0:
                    continue
                moved = Slot(then, slot.target)
                bench.release(slot)
                if group.stock.gpus[slot.target][1] >= then.target_take.device_bytes and bench.take(moved):
                    offers.setdefault(slot.layout, []).append(slot)
                else:
                    bench.take(slot)
            for layout, movable in offers.items():
                gain = _gain(movable[0], better, value)
                found.append((gain, group, layout, better[layout.target], tuple(movable)))
        return sorted(found, key=lambda entry: -entry[0])


def _gain(slot: Slot, better: dict[Device, Layout], value: Value) -> float:
    then = better.get(slot.layout.target)
    return 0.0 if then is None else value(then) - value(slot.layout)


def _how_many(
    donors: Sequence[_Donor], gains: Sequence[tuple[float, Group, Layout, Layout, Fill]], give_all: bool
) -> int:
    """How many nodes to give up, in their order, for the largest sum."""
    if give_all:
        return sum(len(donor.group.nodes) for donor in donors)
    amounts = [(gain, len(slots) * len(group.nodes)) for gain, group, _, _, slots in gains]
    best, best_sum, given, total, entry = 0, 0.0, 0, 0.0, 0
    for donor in donors:
        for _ in donor.group.nodes:
            given += 1
            total -= donor.own
            room = donor.held
            while room and entry < len(amounts):
                gain, count = amounts[entry]
                used = min(room, count)
                total += used * gain
                room -= used
                amounts[entry] = gain, count - used
                entry += count == used
            if total > best_sum * (1 + ROUNDING):
                best, best_sum = given, total
    return best


def _some(layout: Layout, group: Group, slots: Fill, start: int, num_pairs: int) -> list[Lot]:
    """`num_pairs` from a node on: whole nodes, then a part of the next."""
    whole, rest = divmod(num_pairs, len(slots))
    lots = [Lot(layout, group, slots, start, start + whole)] if whole else []
    if rest:
        lots.append(Lot(layout, group, slots[:rest], start + whole, start + whole + 1))
    return lots


def _what_is_left(layout: Layout, group: Group, slots: Fill, movable: Fill, num_moved: int, start: int) -> list[Lot]:
    """The pairs of one layout, less the first `num_moved` of those that can be moved, and the nodes before `start`."""
    end = len(group.nodes)
    if not num_moved:
        return [Lot(layout, group, slots, start, end)]
    whole, rest = divmod(num_moved, len(movable))
    staying = tuple(slot for slot in slots if slot not in movable)
    lots = [Lot(layout, group, staying, 0, whole)] if staying and whole else []
    if rest:
        part = tuple(slot for slot in slots if slot not in movable[:rest])
        lots += [Lot(layout, group, part, whole, whole + 1)] if part else []
    after = whole + (1 if rest else 0)
    return [*lots, Lot(layout, group, slots, after, end)]
