"""Calibration: seconds of timings on the real devices, through the real actors' networks, for the planner to choose by.

Every cell is timed several times, in turns with the others, and its median counts: a machine's speed changes from one
second to the next. The actors time themselves (`actors/rehearsal.py`); here is the order, and the clock that ends it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import partial
from statistics import median
from typing import Any, Literal, Protocol, get_args

import ray

from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.target.request import MAX_NUMBER, Commit, Report, Request
from twinspark.cluster.cells import Spot, cells_in_order, num_rows
from twinspark.cluster.spawn import unwrapped
from twinspark.planner.nodes import Seat
from twinspark.planner.timings import Cell, Grid, StepKey, Timings

BUDGET_S = 10.0
LEAST_TIMES = 3
MOST_TIMES = 9
POSITION = 256  # where the rows of a step lie; attention reads what is before them
ONE: Spot = (1, 0)
PLAIN_TOKENS = 7
PLAIN_SHARE = 0.05  # of the budget, for decoding PLAIN_TOKENS once
GATHER_S = 0.1  # as a pair fetches commits (cluster/pair.py)
OnProgress = Callable[[int, int], None]


class TargetStage(Protocol):
    """What calibration asks of a target: a TargetHost, or `RayCalls` of its actor."""

    def rehearse_verify(self, num_requests: int, length: int, position: int) -> Awaitable[float]: ...

    def rehearse_colocated(self, num_requests: int, length: int, position: int) -> Awaitable[float]: ...

    def rehearse_link(self, repeats: int) -> Awaitable[list[float]]: ...

    def submit(self, requests: Sequence[Request]) -> Awaitable[None]: ...

    def commits(self, least_s: float = 0.0) -> Awaitable[list[Commit]]: ...

    def collect(self, number: int, num_tokens: int | None = None) -> Awaitable[Report]: ...

    def counts(self) -> Awaitable[object]: ...


class DraftStage(Protocol):
    """What it asks of a draft: a DraftHost, or `RayCalls` of its actor."""

    def rehearse(self, num_requests: int, length: int, position: int) -> Awaitable[float]: ...


class RayCalls:
    """An actor's methods as plain calls to await. They raise what the method raised, without Ray's traceback."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        return partial(self._call, getattr(self._actor, name))

    @staticmethod
    async def _call(method: Any, *arguments: object) -> Any:
        try:
            return await method.remote(*arguments)
        except ray.exceptions.RayTaskError as error:
            raise unwrapped(error) from None


@dataclass(frozen=True)
class CalibrationPlan:
    """What to time. Device classes name the keys; seats tell whether both sides share a device, and the link's ends.

    `most_length` is the head's (0: no head). Batch sizes and lengths that were asked for come first, `context` bounds
    the position of the rows. `colocated`: the target's actor holds a draft now. `alone` is what passes of this target
    took when they were timed, if they were. Of them only plain decoding is timed again, before everything else, and
    what else its device takes is told as it would have been then: a machine's speed changes by the minute, and
    placements are to be compared.
    """

    target: Seat
    target_class: str
    max_seqs: int
    context: int
    most_length: int = 0
    colocated: bool = False
    draft: Seat | None = None
    draft_class: str = ""
    batch_sizes: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    alone: Grid | None = None

    @property
    def beside(self) -> bool:
        return self.draft == self.target

    @property
    def position(self) -> int:
        """Raises ValueError where the context holds no step."""
        position = min(POSITION, self.context - self.most_length - 1)
        if position < 1:
            raise ValueError(f"a step of {self.most_length + 1} rows must fit in the context of {self.context}")
        return position


async def calibrate(
    target: TargetStage | RayCalls,
    draft: DraftStage | RayCalls | None,
    plan: CalibrationPlan,
    *,
    budget_s: float = BUDGET_S,
    on_progress: OnProgress | None = None,
) -> Timings:
    """Times what `plan` asks for, within `budget_s` (a single step that takes longer is still waited for). Nobody else
    may submit to the target or fetch its commits meanwhile. Only slots are written over: a request fills its own anew.

    Cells are left out that there is no time for LEAST_TIMES, but those asked for are taken as often as there is. Raises
    ValueError where the target serves requests, or lacks what the plan says it has; LinkLost where the draft is lost.
    """
    if (draft is None) != (plan.draft is None):
        raise ValueError("a plan must have a seat for a draft if and only if there is one")
    spots = cells_in_order(plan.max_seqs, plan.most_length, plan.batch_sizes, plan.lengths)
    calibration = _Calibration(target, draft, plan, time.monotonic() + budget_s, budget_s, spots)
    await calibration.run(on_progress or (lambda done, total: None))
    return calibration.timings()


Kind = Literal["verify", "draft", "plain"]
Timed = StepKey | Literal["link", "plain"]
Sample = tuple[Timed, Spot, float]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass
class _Item:
    """What is timed in one go; `time` gives its samples. `cost_s` is what that took the last time."""

    kind: Kind
    spot: Spot
    asked: bool
    time: Callable[[], Awaitable[list[Sample]]]
    cost_s: float = 0.0


@dataclass
class _Calibration:
    target: TargetStage | RayCalls
    draft: DraftStage | RayCalls | None
    plan: CalibrationPlan
    ends_s: float
    budget_s: float
    spots: tuple[list[Spot], list[Spot]]
    samples: defaultdict[tuple[Timed, Spot], list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def left_s(self) -> float:
        return self.ends_s - time.monotonic()

    @property
    def _alone(self) -> StepKey:
        return StepKey("verify", self.plan.target_class)

    @property
    def _yardstick(self) -> Spot:
        """The pass by which the machine's speed now is compared with that of before."""
        return min(spot for spot in self.spots[0] if spot[1] == 0)

    async def run(self, on_progress: OnProgress) -> None:
        """A first time for each item that there is time for, then one turn after another over all of them."""
        if self.draft is not None:
            await self._draft_is_idle()
        items = self._items()
        total = len(items) * (1 + LEAST_TIMES)
        admitted: list[_Item] = []
        for i, item in enumerate(items):
            if self._admits(item, admitted):
                await self._time(item)
                admitted.append(item)
            on_progress(i + 1, total)
        # Steps alone come together, and those in turns with the other actor, whose threads then wait a while.
        admitted.sort(key=lambda item: KINDS.index(item.kind))
        for turn in range(1, MOST_TIMES + 1):
            for item in admitted:
                if item.cost_s < self.left_s:
                    await self._time(item)
            on_progress(min(total, (turn + 1) * len(items)), total)

    def _items(self) -> list[_Item]:
        """In order of importance."""
        asked, others = self.spots
        items = [item for spot in asked for item in self._items_of(spot, True)]
        if self.plan.alone is None:
            items.append(_Item("plain", ONE, True, self._plain_decoding))
        return items + [item for spot in others for item in self._items_of(spot, False)]

    def _items_of(self, spot: Spot, asked: bool) -> list[_Item]:
        plan, drafts = self.plan, spot[1] > 0
        keys = [StepKey("colocated", plan.target_class)] if plan.colocated and drafts else []
        if plan.alone is None:
            keys.append(self._alone)
        items = [_Item("verify", spot, asked, partial(self._steps, spot, keys))] if keys else []
        if plan.draft is not None and drafts:
            keys = [StepKey("draft", plan.draft_class, plan.beside)]
            keys += [StepKey("verify", plan.target_class, beside=True)] if plan.beside else []
            items.append(_Item("draft", spot, asked, partial(self._steps, spot, keys)))
        return items

    def _admits(self, item: _Item, admitted: Sequence[_Item]) -> bool:
        """Whether there is time for `item`, judged by passes of other sizes: once if it was asked for, else as often as
        it takes beside what was admitted before.
        """
        same = tuple(Cell(num_rows(other.spot), 0, other.cost_s) for other in admitted if other.kind == item.kind)
        expected_s = Grid(same).ms(num_rows(item.spot), 0) if same else 0.0
        if item.asked:
            return expected_s < self.left_s
        promised_s = LEAST_TIMES * sum(other.cost_s for other in admitted)
        return promised_s + (1 + LEAST_TIMES) * expected_s < self.left_s

    async def _time(self, item: _Item) -> None:
        began = time.monotonic()
        for key, spot, ms in await item.time():
            self.samples[key, spot].append(ms)
        item.cost_s = time.monotonic() - began

    async def _steps(self, spot: Spot, keys: Sequence[StepKey]) -> list[Sample]:
        """One step of each key, one after the other as in a round; where a draft actor took part, the link follows."""
        calls = {"verify": self.target.rehearse_verify, "colocated": self.target.rehearse_colocated}
        if self.draft is not None:
            calls["draft"] = self.draft.rehearse
        samples: list[Sample] = []
        if self.plan.alone is not None:
            # A pass behind another actor's step finds its threads asleep; `alone` was timed behind other passes.
            for _ in range(2):
                ms = await self.target.rehearse_verify(*self._yardstick, self.plan.position)
            samples.append((self._alone, self._yardstick, ms))
        samples += [(key, spot, await calls[key.role](*spot, self.plan.position)) for key in keys]
        if any(key.role == "draft" for key in keys):
            # A round trip between two that were idle is shorter than one between two that have just computed.
            samples += [("link", ONE, ms) for ms in await self.target.rehearse_link(1)]
        return samples

    async def _draft_is_idle(self) -> None:
        """A draft rehearses only without sessions: a frame comes behind those that close them."""
        await self.target.rehearse_link(1)

    async def _plain_decoding(self) -> list[Sample]:
        """What a round takes beside its steps and its link, from a real request."""
        await self.target.submit([Request(MAX_NUMBER, (0,) * min(8, self.plan.position), Sampling(), PLAIN_TOKENS)])
        ends_s, ended = time.monotonic() + PLAIN_SHARE * self.budget_s, False
        try:
            # No timeout on a call: an actor's goes on, and would take what the next request commits.
            while not ended and time.monotonic() < ends_s:
                commits = await self.target.commits(GATHER_S)
                ended = any(commit.finish_reason is not None for commit in commits)
        finally:
            report = await self.target.collect(MAX_NUMBER)
            await self.target.counts()  # to be forgotten: nobody's text was drafted
            if self.draft is not None:
                await self._draft_is_idle()
        if not report.rounds:
            return []
        steps_us = sum(r.draft_us + r.link_us + r.verify_us for r in report.rounds)
        return [("plain", ONE, max(0.0, report.decode_us - steps_us) / 1e3 / len(report.rounds))]

    def timings(self) -> Timings:
        """Medians, without the first time of each, which warms caches, where there are more."""
        plan = self.plan
        middle = {at: median(times[1:] or times) for at, times in self.samples.items()}
        cells: defaultdict[StepKey, list[Cell]] = defaultdict(list)
        for (key, spot), ms in middle.items():
            # What stands in `alone` stays.
            if isinstance(key, StepKey) and not (key == self._alone and plan.alone is not None):
                often = len(self.samples[key, spot]) > LEAST_TIMES
                if often or spot in self.spots[0]:
                    of_target = key.role != "draft" or plan.beside
                    cells[key].append(Cell(*spot, ms * self._drift(middle) if of_target else ms))
        link_ms, plain_ms = middle.get(("link", ONE)), middle.get(("plain", ONE))
        return Timings(
            steps={key: Grid(tuple(sorted(found, key=astuple))) for key, found in sorted(cells.items())},
            link_ms={(plan.target.node, plan.draft.node): link_ms} if link_ms is not None and plan.draft else {},
            overhead_ms={plan.target_class: plain_ms} if plain_ms is not None else {},
        )

    def _drift(self, middle: Mapping[tuple[Timed, Spot], float]) -> float:
        """How much faster the target's device is now than when `alone` was timed."""
        alone = self.plan.alone
        return 1.0 if alone is None else alone.ms(*self._yardstick) / middle[self._alone, self._yardstick]
