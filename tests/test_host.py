"""The target's host: what is submitted is answered once or refused with an error, whatever happens in between."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import WAIT_S, draft_settings, finish, off_tokens, run, same, some_requests, target_host, target_spec
from small_engine import ask, tokens_of

from twinspark.actors.errors import CheckpointError, RequestError
from twinspark.actors.specs import ActorSpec, TargetSpec
from twinspark.actors.target.host import TargetHost
from twinspark.actors.target.request import Report

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def expected(shared: Path) -> dict[int, tuple[int, ...]]:
    torch.set_num_threads(1)
    return off_tokens(shared, some_requests(16))


@pytest.mark.parametrize("colocated", [False, True], ids=["off", "colocated"])
def test_many_at_once(shared: Path, expected: dict[int, tuple[int, ...]], colocated: bool) -> None:
    async def body() -> None:
        async with target_host(target_spec(shared), draft_settings(shared) if colocated else None) as host:
            reports = await finish(host, some_requests(16))
            assert same(reports, expected)
            drafted = sum(len(record.draft_tokens) for report in reports.values() for record in report.rounds)
            assert bool(drafted) == colocated
            assert not host.engine.active
            assert await host.margin_millionths([1, 2, 3], some_requests(1)[0].sampling) > (0, 0)

    run(body)


def test_submitted_at_any_moment_by_several_callers(shared: Path, expected: dict[int, tuple[int, ...]]) -> None:
    async def body() -> None:
        rng = random.Random(2)
        async with target_host(target_spec(shared)) as host:
            ended: dict[int, asyncio.Event] = {n: asyncio.Event() for n in range(16)}
            told: dict[int, tuple[int, ...]] = dict.fromkeys(ended, ())

            async def listen() -> None:
                while True:
                    for commit in await host.commits(0.002):
                        assert not ended[commit.number].is_set(), "nothing may come after the end"
                        told[commit.number] += commit.ids
                        if commit.finish_reason is not None:
                            ended[commit.number].set()

            async def one(number: int) -> Report:
                await asyncio.sleep(rng.random() / 10)
                await host.submit([some_requests(16)[number]])
                await ended[number].wait()
                return await host.collect(number)

            listener = asyncio.create_task(listen())
            reports = dict(enumerate(await asyncio.gather(*(one(n) for n in range(16)))))
            listener.cancel()
            assert same(reports, expected)
            assert told == expected

    run(body)


def test_one_bad_request_keeps_the_whole_batch_out(shared: Path) -> None:
    async def body() -> None:
        async with target_host(target_spec(shared)) as host:
            for bad in (ask(9, [], 5), ask(9, [512], 5), ask(9, [1], 0), ask(9, [1] * 400, 5), ask(-9, [1], 5)):
                with pytest.raises(RequestError):
                    await host.submit([ask(1, [1], 5), bad, ask(2, [1], 5)])
            with pytest.raises(RequestError, match="unique, got 1 twice"):
                await host.submit([ask(1, [1], 5), ask(1, [2], 5)])
            assert not host.engine.active
            assert not host.engine.waiting
            await host.submit([ask(1, [1], 300)])
            with pytest.raises(RequestError, match="unique, got 1 twice"):
                await host.submit([ask(2, [1], 5), ask(1, [1], 5)])
            with pytest.raises(ValueError, match="got 2"):
                await host.collect(2)

    run(body)


def test_collecting_what_is_not_there(shared: Path) -> None:
    async def body() -> None:
        async with target_host(target_spec(shared)) as host:
            with pytest.raises(ValueError, match="got 5"):
                await host.collect(5)
            await finish(host, [ask(5, [1], 3)])
            with pytest.raises(ValueError, match="got 5"):
                await host.collect(5)

    run(body)


def test_collecting_in_the_middle_frees_the_slot(shared: Path) -> None:
    async def body() -> None:
        async with target_host(target_spec(shared, slots=1)) as host:
            await host.submit([ask(0, [1], 350), ask(1, [2], 4), ask(2, [3], 4), ask(3, [4], 4)])
            got: tuple[int, ...] = ()
            while len(got) < 5:
                got += tuple(token for commit in await host.commits() for token in commit.ids)
            waiting = await host.collect(2)
            assert (waiting.token_ids, waiting.rounds) == ((), ())
            report = await host.collect(0)
            assert report.token_ids[:5] == got[:5]
            assert len(report.token_ids) < 350
            ended: set[int] = set()
            while ended != {1, 3}:
                for commit in await host.commits():
                    assert commit.number in (1, 3), "what the collected one committed last is dropped"
                    if commit.finish_reason is not None:
                        ended.add(commit.number)
                        assert len((await host.collect(commit.number)).token_ids) == 4

    run(body)


def test_a_number_may_be_used_again(shared: Path, expected: dict[int, tuple[int, ...]]) -> None:
    """What nobody fetched of the former request does not turn up as the new one's."""

    async def body() -> None:
        async with target_host(target_spec(shared)) as host:
            await host.submit([ask(0, [9, 9, 9], 200)])
            await host.commits()
            while len(host._commits) < 3:
                await asyncio.sleep(0.001)
            await host.collect(0)
            reports = await finish(host, some_requests(1))
            assert same(reports, expected)

    run(body)


def test_a_stop_string_cuts_what_ran_ahead(shared: Path, expected: dict[int, tuple[int, ...]]) -> None:
    async def body() -> None:
        async with target_host(target_spec(shared), draft_settings(shared)) as host:
            await host.submit(some_requests(8))
            cuts = {number: 3 + number for number in range(8)}
            have = dict.fromkeys(cuts, 0)
            while cuts:
                for commit in await host.commits():
                    if commit.number not in cuts:
                        continue
                    have[commit.number] += len(commit.ids)
                    if have[commit.number] >= cuts[commit.number]:
                        cut = cuts.pop(commit.number)
                        report = await host.collect(commit.number, cut)
                        assert report.token_ids == expected[commit.number][:cut]
                        assert report.finish_reason == "stop"
                        assert 1 + sum(record.num_committed for record in report.rounds) == cut

    run(body)


def test_commits_wait_and_gather(shared: Path) -> None:
    async def body() -> None:
        async with target_host(target_spec(shared)) as host:
            waiting = asyncio.create_task(host.commits())
            await asyncio.sleep(0.05)
            assert not waiting.done(), "there is nothing to tell yet"
            await host.submit([ask(0, [1], 40)])
            first = await waiting
            rest = await host.commits(WAIT_S)
            assert rest[-1].finish_reason == "length", "a request's end is told at once, not after the gathering"
            assert sum(len(commit.ids) for commit in first + rest) == 40

    run(body)


def test_a_caller_that_gave_up_stops_nobody(shared: Path, expected: dict[int, tuple[int, ...]]) -> None:
    async def body() -> None:
        async with target_host(target_spec(shared)) as host:
            await host.submit([ask(99, [1], 100)])
            for _ in range(5):
                impatient = [asyncio.create_task(host.collect(number)) for number in (7, 8)]
                await asyncio.sleep(0)
                for task in impatient:
                    task.cancel()
                await asyncio.gather(*impatient, return_exceptions=True)
            await host.collect(99)
            assert same(await finish(host, some_requests(3)), expected)

    run(body)


def test_a_loop_that_failed_is_told_to_everyone_who_waits(shared: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with target_host(target_spec(shared)) as host:
            await host.submit([ask(0, [1], 300)])
            await host.commits()
            engine: Any = host.engine
            begun, go_on = threading.Event(), threading.Event()

            def fail(proposed: object) -> None:
                begun.set()
                go_on.wait(WAIT_S)
                raise ArithmeticError("for the sake of the test")

            async def listen() -> None:
                while True:
                    await host.commits()

            engine.step = fail
            while not begun.is_set():
                await asyncio.sleep(0.001)
            calls = listen(), host.submit([ask(1, [1], 3)]), host.collect(0), host.detach_draft()
            waiters = [asyncio.ensure_future(call) for call in calls]
            await asyncio.sleep(0)
            go_on.set()
            for told in await asyncio.gather(*waiters, return_exceptions=True):
                assert isinstance(told, RuntimeError)
            for call in (host.submit([ask(2, [1], 3)]), host.collect(0), host.commits(), host.commits(WAIT_S)):
                with pytest.raises(RuntimeError, match="ArithmeticError: for the sake of the test"):
                    await call
            with pytest.raises(RuntimeError):
                await host.margin_millionths([1], ask(0, [1], 1).sampling)

    run(body)
    assert "the target's loop ended" in caplog.text


def test_before_it_is_loaded(shared: Path) -> None:
    async def body() -> None:
        host = TargetHost(target_spec(shared))
        for call in (host.submit([ask(0, [1], 1)]), host.collect(0), host.report()):
            with pytest.raises(ValueError, match="loaded first"):
                await call
        assert await host.progress() == (0, 0)
        report = await host.load()
        done, total = await host.progress()
        assert done == total > 0
        assert (report.device, report.dtype, report.num_threads) == ("cpu", "float32", 1)
        assert tokens_of(await finish(host, [ask(0, [353], 1)])) == {0: (48,)}

    run(body)


def test_an_audit_needs_an_idle_target(shared: Path) -> None:
    async def body() -> None:
        async with target_host(target_spec(shared)) as host:
            await host.submit([ask(0, [1], 300)])
            with pytest.raises(ValueError, match="idle target"):
                await host.margin_millionths([1], ask(0, [1], 1).sampling)

    run(body)


def test_what_cannot_be_loaded(shared: Path, tmp_path: Path) -> None:
    async def body() -> None:
        with pytest.raises(CheckpointError):
            await TargetHost(TargetSpec(ActorSpec(str(tmp_path), "cpu", 64, 1, 1), "float32", "fast")).load()

    run(body)
