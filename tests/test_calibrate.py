"""Timing steps: order and budget over scripted actors, the steps of small real ones, and the embedded pair on a Ray."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from hypothesis import given
from hypothesis import strategies as st
from in_process import (
    CONTEXT,
    LocalDraft,
    accepted,
    draft_settings,
    finish,
    local_draft,
    off_tokens,
    run,
    same,
    some_requests,
    target_host,
    target_spec,
)
from small_engine import ask, tokens_of

from twinspark.actors.draft.host import DraftHost
from twinspark.actors.errors import LinkLost
from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.specs import ActorSpec, DraftSettings, DraftSpec, TargetSpec
from twinspark.actors.target.host import TargetHost
from twinspark.actors.target.request import Commit, Report, Request, RoundRecord
from twinspark.actors.wire.account import split_recording
from twinspark.cluster import calibrate as calibration
from twinspark.cluster.calibrate import CalibrationPlan, RayCalls, calibrate
from twinspark.cluster.cells import cells_in_order
from twinspark.cluster.ray_session import ray_session
from twinspark.deploy.embedded import demo_head_path
from twinspark.planner.nodes import Seat
from twinspark.planner.timings import Cell, Grid, StepKey, Timings

HERE, THERE = Seat("here", "cpu"), Seat("there", "cpu")
ALONE, BESIDE = StepKey("verify", "T"), StepKey("verify", "T", beside=True)
PLAN = CalibrationPlan(HERE, "T", 4, CONTEXT, 4)
BUSY_S = 5.0  # a machine that others use too


def spots(timings: Timings, key: StepKey) -> set[tuple[int, int]]:
    return {(cell.num_requests, cell.length) for cell in timings.steps[key].cells}


# Which cells ----------------------------------------------------------------------------------------------------------


@given(
    st.integers(1, 1024),
    st.integers(0, 16),
    st.lists(st.integers(-3, 1100), max_size=3),
    st.lists(st.integers(-3, 20), max_size=3),
)
def test_every_cell_once_and_the_ones_asked_for_first(
    max_seqs: int, most: int, sizes: list[int], lengths: list[int]
) -> None:
    asked, others = cells_in_order(max_seqs, most, sizes, lengths)
    found = {*asked, *others}
    assert len(found) == len(asked) + len(others)
    assert all(1 <= n <= max_seqs and 0 <= length <= most for n, length in found)
    assert {(n, length) for n in (1, max_seqs) for length in (0, most)} <= found
    asked_sizes = {n for n in sizes if 1 <= n <= max_seqs} or {1, max_seqs}
    asked_lengths = {length for length in lengths if 0 <= length <= most} or {most}
    assert set(asked) == {(n, length) for n in asked_sizes for length in asked_lengths | {0}}


def all_cells(max_seqs: int, most: int) -> set[tuple[int, int]]:
    return {spot for spots in cells_in_order(max_seqs, most) for spot in spots}


def test_cells_of_a_small_and_of_a_larger_target() -> None:
    assert cells_in_order(1, 0) == ([(1, 0)], [])
    assert cells_in_order(4, 7, (2,), (5,))[0] == [(2, 0), (2, 5)]
    assert all_cells(1, 7) == {(1, 0), (1, 2), (1, 5), (1, 7)}
    assert {n for n, _ in all_cells(12, 7)} == {1, 2, 4, 8, 12}
    assert {length for _, length in all_cells(12, 4)} == {0, 2, 4}
    sizes = [n for n, _ in cells_in_order(64, 7)[1]]
    assert sizes.index(8) < sizes.index(2) < len(sizes), "the middle first"


# Order and budget, over actors that only say how long they took -------------------------------------------------------


class Script:
    """A target and a draft whose steps take `seconds(role, num_requests, length)`; notes every call."""

    def __init__(self, seconds: Any) -> None:
        self.seconds = seconds
        self.calls: list[tuple[str, int, int]] = []
        self.running = 0

    async def _step(self, role: str, num_requests: int, length: int) -> float:
        assert not self.running, "one thing at a time"
        self.running += 1
        self.calls.append((role, num_requests, length))
        await asyncio.sleep(self.seconds(role, num_requests, length))
        self.running -= 1
        return 1.0 + len(self.calls)

    async def rehearse_verify(self, num_requests: int, length: int, position: int) -> float:
        return await self._step("verify", num_requests, length)

    async def rehearse_colocated(self, num_requests: int, length: int, position: int) -> float:
        return await self._step("colocated", num_requests, length)

    async def rehearse(self, num_requests: int, length: int, position: int) -> float:
        return await self._step("draft", num_requests, length)

    async def rehearse_link(self, repeats: int) -> list[float]:
        self.calls.append(("link", 1, 0))
        return [0.25] * repeats

    async def submit(self, requests: Sequence[Request]) -> None:
        self.calls.append(("plain", 1, 0))

    async def commits(self, least_s: float = 0.0) -> list[Commit]:
        await asyncio.sleep(self.seconds("verify", 1, 0))
        return [Commit(2**31 - 1, (1,), "length")]

    async def collect(self, number: int, num_tokens: int | None = None) -> Report:
        rounds = (RoundRecord(0, 8, (), 0, 1, 100, 200, 3000, 0, 0),) * 2
        return Report(number, (1, 1, 1), "length", rounds, 0, 8000)

    async def counts(self) -> None:
        return None


def script_run(script: Script, plan: CalibrationPlan, budget_s: float = 10.0) -> tuple[Timings, float]:
    async def body() -> tuple[Timings, float]:
        began = time.monotonic()
        draft = script if plan.draft is not None else None
        told: list[tuple[int, int]] = []
        timings = await calibrate(
            script, draft, plan, budget_s=budget_s, on_progress=lambda *progress: told.append(progress)
        )
        assert told == sorted(told)
        assert told[-1][0] == told[-1][1] == told[0][1]
        return timings, time.monotonic() - began

    return run(body)


def test_each_counts_the_same_and_the_first_time_of_each_does_not() -> None:
    script = Script(lambda *_: 0.0)
    plan = replace(PLAN, draft=HERE, draft_class="T")
    timings, _ = script_run(script, plan)
    every = all_cells(4, 4)
    drafted = {spot for spot in every if spot[1]}
    assert set(timings.steps) == {ALONE, BESIDE, StepKey("draft", "T", beside=True)}
    assert spots(timings, ALONE) == every
    assert spots(timings, BESIDE) == spots(timings, StepKey("draft", "T", beside=True)) == drafted
    assert timings.link_ms == {("here", "here"): 0.25}
    assert timings.overhead_ms == {"T": pytest.approx((8000 - 2 * 3300) / 2 / 1e3)}
    turns = 1 + calibration.MOST_TIMES
    assert script.calls.count(("draft", 4, 4)) == turns
    assert script.calls.count(("verify", 4, 4)) == 2 * turns
    assert script.calls.count(("verify", 4, 0)) == turns
    # As in a round: wherever the draft has computed, the target verifies next, and then a frame goes out.
    drafts = [i for i, (role, *_) in enumerate(script.calls) if role == "draft"]
    assert [script.calls[i + 1] for i in drafts] == [("verify", *script.calls[i][1:]) for i in drafts]
    assert {script.calls[i + 2] for i in drafts} == {("link", 1, 0)}
    # A turn goes over everything else before anything comes again.
    plains = [i for i, call in enumerate(script.calls) if call[0] == "plain"]
    between = [script.calls[i:j] for i, j in pairwise(plains[1:])]
    assert len(between) > 5
    assert all(calls == between[0] for calls in between)


def test_on_devices_of_their_own_nothing_is_beside() -> None:
    timings, _ = script_run(Script(lambda *_: 0.0), replace(PLAN, draft=THERE, draft_class="D"))
    assert set(timings.steps) == {ALONE, StepKey("draft", "D")}
    assert timings.link("there", "here") == 0.25


class Slower(Script):
    """Steps take `ms`, twice what `alone` says of plain decoding."""

    async def _step(self, role: str, num_requests: int, length: int) -> float:
        await super()._step(role, num_requests, length)
        return 80.0 if role == "verify" and length == 0 else 10.0 * num_requests + length


@pytest.mark.parametrize(("draft", "factor"), [(HERE, 0.5), (THERE, 1.0)])
def test_what_is_timed_later_is_told_as_it_would_have_been_then(draft: Seat, factor: float) -> None:
    """A draft on another device has nothing to do with the speed of the target's."""
    script = Slower(lambda *_: 0.0)
    alone = Grid((Cell(4, 0, 40.0), Cell(4, 4, 60.0)))
    plan = replace(PLAN, draft=draft, draft_class="D", alone=alone, batch_sizes=(4,))
    timings, _ = script_run(script, plan)
    passes = {call[1:] for call in script.calls if call[0] == "verify"}
    assert passes == ({(4, 0)} | {s for s in all_cells(4, 4) if s[1]} if draft == HERE else {(4, 0)})
    before = [script.calls[i - 1] for i, call in enumerate(script.calls) if call[0] == "draft"]
    assert before == [("verify", 4, 0)] * len(before), "what everything is measured by comes before everything"
    assert ("plain", 1, 0) not in script.calls
    assert ALONE not in timings.steps
    step = timings.steps[StepKey("draft", "D", beside=draft == HERE)]
    assert step.ms(4, 4) == pytest.approx(44.0 * factor)
    if draft == HERE:
        assert timings.steps[BESIDE].ms(4, 4) == pytest.approx(44.0 * factor)


def test_the_budget_holds_and_what_was_asked_for_comes_first() -> None:
    """Steps in proportion to their rows: there is no time for the large ones."""
    script = Script(lambda role, n, length: 0.004 * n * (length + 1))
    plan = CalibrationPlan(HERE, "T", 64, 400, 7, batch_sizes=(1, 2), lengths=(5,))
    timings, took_s = script_run(script, plan, budget_s=1.5)
    assert took_s < 1.5 + 0.5
    asked = {(1, 0), (2, 0), (1, 5), (2, 5)}
    assert asked <= spots(timings, ALONE)
    assert ("verify", 64, 7) not in script.calls
    for n, length in spots(timings, ALONE):
        assert script.calls.count(("verify", n, length)) >= 1 + calibration.LEAST_TIMES


def test_small_cells_are_timed_more_often_and_not_for_the_whole_budget() -> None:
    script = Script(lambda *_: 0.01)
    _, took_s = script_run(script, CalibrationPlan(HERE, "T", 1, 400, 7), budget_s=6.0)
    assert script.calls.count(("verify", 1, 7)) == 1 + calibration.MOST_TIMES
    assert took_s < 3.0


def test_on_a_slow_machine_what_was_asked_for_is_timed_at_least_once() -> None:
    script = Script(lambda *_: 0.2)
    timings, took_s = script_run(
        script, CalibrationPlan(HERE, "T", 16, 400, 7, batch_sizes=(2,), lengths=(5,), colocated=True), 1.6
    )
    assert spots(timings, ALONE) == {(2, 0), (2, 5)}
    assert spots(timings, StepKey("colocated", "T")) == {(2, 5)}
    assert took_s < 1.6 + 0.5


def test_one_step_longer_than_the_budget() -> None:
    timings, took_s = script_run(Script(lambda *_: 0.3), PLAN, budget_s=0.2)
    assert spots(timings, ALONE) == {(1, 0)}, "once is better than nothing"
    assert took_s < 0.3 + 0.3 + 0.3


def test_a_plan_that_contradicts_itself() -> None:
    with pytest.raises(ValueError, match="seat for a draft"):
        run(lambda: calibrate(Script(lambda *_: 0.0), None, replace(PLAN, draft=HERE)))
    with pytest.raises(ValueError, match="context of 5"):
        run(lambda: calibrate(Script(lambda *_: 0.0), None, replace(PLAN, context=5)))


# Small real actors in one process -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def expected(shared: Path) -> dict[int, tuple[int, ...]]:
    torch.set_num_threads(1)
    return off_tokens(shared, some_requests(6))


@pytest.mark.usefixtures("one_thread")
def test_a_colocated_draft_is_timed_and_garbage_in_the_slots_does_not_matter(
    shared: Path, expected: dict[int, tuple[int, ...]]
) -> None:
    async def body() -> None:
        async with target_host(target_spec(shared), draft_settings(shared)) as host:
            for requests in (some_requests(3), some_requests(6)):
                laps_before = await host.laps_ms()
                timings = await calibrate(host, None, replace(PLAN, colocated=True), budget_s=2.0)
                laps = await host.laps_ms()
                assert set(timings.steps) == {ALONE, StepKey("colocated", "T")}
                assert spots(timings, StepKey("colocated", "T")) == {(n, k) for n, k in spots(timings, ALONE) if k}
                assert all(cell.ms > 0 for grid in timings.steps.values() for cell in grid.cells)
                assert timings.overhead_ms["T"] >= 0
                # Laps are those of real rounds: the few of plain decoding.
                assert sum(laps.values()) - sum(laps_before.values()) < 2000
                reports = await finish(host, requests)
                assert same(reports, expected)
                assert accepted(reports) > 0
                assert (await host.counts()).num_rounds > 0

    run(body)


@pytest.mark.usefixtures("one_thread")
def test_a_draft_actor_is_timed_before_and_between_requests(
    shared: Path, expected: dict[int, tuple[int, ...]], tmp_path: Path
) -> None:
    async def body() -> None:
        plan = replace(PLAN, draft=HERE, draft_class="T")
        async with target_host(target_spec(shared)) as host, local_draft(shared) as draft:
            await draft.attach(host, record=tmp_path / "bytes")
            reports = {}
            for requests in (some_requests(3), some_requests(6)):
                timings = await calibrate(host, draft.host, plan, budget_s=2.0)
                assert set(timings.steps) == {ALONE, BESIDE, StepKey("draft", "T", beside=True)}
                link_ms = timings.link("here", "here")
                assert link_ms is not None
                assert 0 < link_ms < 1000
                reports = await finish(host, requests)
                assert same(reports, expected)
                assert accepted(reports) > 0
                await draft.closed()
            # Frames without entries crossed, and are no request's.
            told = sum(r.bytes_to_draft for report in reports.values() for r in report.rounds)
            assert 0 < told < sum(4 + len(frame) for frame in split_recording((tmp_path / "bytes.out").read_bytes()))

    run(body)


def plan_of(draft: bool, colocated: bool) -> CalibrationPlan:
    plan = replace(PLAN, colocated=colocated)
    return replace(plan, draft=HERE, draft_class="T") if draft else plan


@pytest.mark.usefixtures("one_thread")
def test_it_is_refused_while_requests_run(shared: Path, expected: dict[int, tuple[int, ...]]) -> None:
    async def body() -> None:
        async with target_host(target_spec(shared)) as host, local_draft(shared) as draft:
            await draft.attach(host)
            await host.submit([ask(0, [1], 300)])
            for call in (
                calibrate(host, None, PLAN),
                host.rehearse_verify(1, 0, 10),
                host.rehearse_colocated(1, 2, 10),
                host.rehearse_link(1),
            ):
                with pytest.raises(ValueError, match="needs an idle target, got one with requests"):
                    await call
            while not draft.drafter.sessions:
                await asyncio.sleep(0.01)
            with pytest.raises(ValueError, match="needs an idle draft, got one with 1 sessions"):
                await draft.host.rehearse(1, 2, 10)
            await host.collect(0)
            assert same(await finish(host, some_requests(6)), expected)

    run(body)


@pytest.mark.usefixtures("one_thread")
def test_what_a_rehearsal_needs(shared: Path) -> None:
    async def body() -> None:
        async with target_host(target_spec(shared)) as host:
            with pytest.raises(ValueError, match="draft in the target's actor, got none"):
                await host.rehearse_colocated(1, 2, 10)
            with pytest.raises(ValueError, match="draft actor attached, got none"):
                await host.rehearse_link(1)
            for wrong in ((0, 0, 10), (5, 0, 10), (1, 0, 0), (1, 4, CONTEXT - 4), (1, -1, 10)):
                with pytest.raises(ValueError, match="a rehearsal"):
                    await host.rehearse_verify(*wrong)
            assert await host.rehearse_verify(4, 4, CONTEXT - 5) > 0
        with pytest.raises(ValueError, match="loaded first"):
            await TargetHost(target_spec(shared)).rehearse_verify(1, 0, 10)
        with pytest.raises(ValueError, match="loaded first"):
            await LocalDraft(shared, draft_settings(shared)).host.rehearse(1, 0, 10)

    run(body)


@pytest.mark.usefixtures("one_thread")
def test_pings_and_rounds_keep_out_of_each_other_s_way(shared: Path, expected: dict[int, tuple[int, ...]]) -> None:
    """Even where the target is not asked whether it is idle: every round is answered by its own proposal."""

    async def body() -> None:
        async with target_host(target_spec(shared)) as host, local_draft(shared) as draft:
            await draft.attach(host)
            source: Any = host._source
            pings: list[int] = []

            async def ping() -> None:
                while True:
                    pings.append(await source.ping())
                    await asyncio.sleep(0.001)

            pinging = asyncio.create_task(ping())
            reports = await finish(host, some_requests(6))
            pinging.cancel()
            await asyncio.gather(pinging, return_exceptions=True)
            assert same(reports, expected)
            assert not source.lost.is_set()
            assert len(pings) > 5
            assert source._told[0] <= source._link.bytes_out

    run(body)


@pytest.mark.usefixtures("one_thread")
def test_a_draft_that_dies_is_noticed_by_a_ping(shared: Path, expected: dict[int, tuple[int, ...]]) -> None:
    async def body() -> None:
        async with target_host(target_spec(shared)) as host:
            async with local_draft(shared) as draft:
                await draft.attach(host)
                assert len(await host.rehearse_link(3)) == 3
            for _ in range(2):
                with pytest.raises(LinkLost):
                    await host.rehearse_link(3)
            assert await host.draft_lost()
            assert same(await finish(host, some_requests(6)), expected)

    run(body)


# The embedded pair on a real Ray --------------------------------------------------------------------------------------


def actor_of(cls: type, spec: TargetSpec | DraftSpec) -> RayCalls:
    env = {"OMP_NUM_THREADS": str(spec.actor.num_threads)}
    return RayCalls(ray.remote(cls).options(num_cpus=1, runtime_env={"env_vars": env}).remote(spec))


def test_the_embedded_pair_in_ten_seconds(demo_model: Path) -> None:
    settings = DraftSettings(str(demo_head_path()), "int8", 5)
    actor = ActorSpec(str(demo_model), "cpu", 512, 2, 2)
    requests = [Request(i, (1, 2 + i, 3), Sampling.of(temperature=0.5 * i, seed=7), 12) for i in range(2)]

    async def generate(target: RayCalls) -> dict[int, tuple[int, ...]]:
        await target.submit(requests)
        ended: set[int] = set()
        while len(ended) < len(requests):
            ended |= {c.number for c in await target.commits(0.05) if c.finish_reason is not None}
        return tokens_of({r.number: await target.collect(r.number) for r in requests})

    async def timed(target: RayCalls, draft: RayCalls | None, plan: CalibrationPlan) -> Timings:
        began = time.monotonic()
        timings = await calibrate(target, draft, plan)
        assert time.monotonic() - began < calibration.BUDGET_S + BUSY_S
        return timings

    async def body() -> None:
        target = actor_of(TargetHost, TargetSpec(actor, "float32", "fast"))
        await target.load()
        plain = await generate(target)
        plan = CalibrationPlan(HERE, "T", 2, 512, 7, batch_sizes=(2,), lengths=(5,))
        asked = {(2, 0), (2, 5)}

        await target.colocate(settings)
        timings = await timed(target, None, replace(plan, colocated=True))
        assert set(timings.steps) == {ALONE, StepKey("colocated", "T")}
        assert asked <= spots(timings, ALONE)
        assert (2, 5) in spots(timings, StepKey("colocated", "T"))
        assert await generate(target) == plain

        draft = actor_of(DraftHost, DraftSpec(replace(actor, num_threads=1), settings))
        await draft.load()
        endpoint = await draft.listen("stream", "127.0.0.1")
        await target.attach_draft(endpoint, 30.0)
        timings = await timed(target, draft, replace(plan, draft=HERE, draft_class="T"))
        assert set(timings.steps) == {ALONE, BESIDE, StepKey("draft", "T", beside=True)}
        assert asked <= spots(timings, ALONE)
        assert {(2, 5)} <= spots(timings, BESIDE) & spots(timings, StepKey("draft", "T", beside=True))
        assert set(timings.link_ms) == {("here", "here")}
        assert set(timings.overhead_ms) == {"T"}
        assert await generate(target) == plain

        await target.submit([Request(9, (1, 2, 3), Sampling(), 400)])
        with pytest.raises(ValueError, match="needs an idle target") as refused:
            await calibrate(target, draft, replace(plan, draft=HERE, draft_class="T"))
        assert "Traceback" not in str(refused.value)

    with ray_session(None, num_cpus=4, num_gpus=0):
        asyncio.run(body())
