"""A side is killed or stopped at random moments of a run: answers stay, a new draft is used, nothing is left."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL, SIGSTOP, Signals

import psutil
import pytest
import ray
from pairs import DEADLINE_S, check_same, demo_tokenizer, run_all, sixteen, spec_of

from twinspark.actors.target.request import Commit, Report, Request
from twinspark.cluster.pair import Pair
from twinspark.cluster.ray_session import ray_session

POLL_S = 0.02


@pytest.fixture(scope="module")
def session(demo_model: Path) -> Iterator[None]:
    with ray_session(None, num_cpus=4, num_gpus=0):
        yield


class Assassin:
    """Strikes at the draft's process wherever it is in its life: loading, being caught up, or drafting."""

    def __init__(self, pair: Pair, signals: Sequence[Signals], seed: int) -> None:
        self.pair, self.signals = pair, signals
        self.random = random.Random(seed)
        self.victims: list[int] = []
        self.least_restarts = 0
        self.used = 0

    def on_commit(self, commit: Commit) -> None:
        """More than one token at once: a draft did that. What came late from one that is lost does not count."""
        report = self.pair.draft_report
        if len(commit.ids) > 1 and report is not None and report.pid not in self.victims:
            self.used += 1

    async def strike_all(self) -> None:
        """Returns when the draft that came after the last strike has been of use."""
        for i, number in enumerate(self.signals):
            if i == 0 or self.random.random() < 0.75:  # else at once: the new draft may still be loading
                await self._until_used()
            await asyncio.sleep(self.random.uniform(0.0, 1.0))
            victim = await self._draft()
            self.victims.append(victim)
            with suppress(ProcessLookupError):
                os.kill(victim, number)
        await self._until_used()

    async def _until_used(self) -> None:
        self.used = 0
        while self.used < 3:
            await asyncio.sleep(POLL_S)
        self.least_restarts += bool(self.victims)

    async def _draft(self) -> int:
        """A draft that was not struck before, as the system lists it."""
        while True:
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    if child.name().startswith("ray::DraftActor") and child.pid not in self.victims:
                        return int(child.pid)
            await asyncio.sleep(POLL_S)


async def run_until(
    pair: Pair, requests: Sequence[Request], is_over: Callable[[], bool], on_commit: Callable[[Commit], None]
) -> list[Report]:
    """Reports of as much as was committed until `is_over`."""
    reports: dict[int, Report] = {}
    async with asyncio.timeout(DEADLINE_S), aclosing(pair.commits(0.05)) as commits:
        await pair.submit(requests)
        async for commit in commits:
            on_commit(commit)
            if commit.finish_reason is not None:
                reports[commit.number] = await pair.collect(commit.number)
            if is_over() or len(reports) == len(requests):
                break
        for request in requests:
            if request.number not in reports:
                reports[request.number] = await pair.collect(request.number)
    return [reports[request.number] for request in requests]


async def gone(pids: Sequence[int]) -> bool:
    """Whether none of these is running any more, a while after."""
    for _ in range(1000):
        alive = [pid for pid in pids if psutil.pid_exists(pid)]
        with suppress(psutil.NoSuchProcess):
            if all(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE for pid in alive):
                return True
        await asyncio.sleep(POLL_S)
    return False


async def check_losses(signals: Sequence[Signals], *, transport: str, seed: int, context: int = 1024) -> None:
    """Sixteen requests, whatever happens to their draft, get the tokens that they get without one."""
    requests = sixteen(demo_tokenizer(), num_tokens=lambda _: context, stop=())
    async with Pair.start(spec_of("cpu", transport=transport, context=context)) as pair:
        first = pair.draft_report
        assassin = Assassin(pair, signals, seed)
        striking = asyncio.create_task(assassin.strike_all())
        try:
            struck = await run_until(pair, requests, striking.done, assassin.on_commit)
            assert striking.done(), "every request ended before the last strike: give them a longer context"
            await striking
        finally:
            striking.cancel()
        restarts, now = pair.num_draft_restarts, await pair.reports()
        assert await gone(assassin.victims)
    assert first is not None
    assert now["draft"].pid not in {first.pid, *assassin.victims}
    assert len(set(assassin.victims)) == len(signals)
    assert assassin.least_restarts <= restarts <= len(signals)
    assert any(not r.draft_tokens for report in struck for r in report.rounds[:-2])
    async with Pair.start(spec_of("off", context=context)) as off:
        same_length = [
            replace(request, max_new_tokens=len(report.token_ids))
            for request, report in zip(requests, struck, strict=True)
        ]
        undisturbed = await run_all(off, same_length)
        await check_same(off, requests, undisturbed, struck, f"{len(signals)} losses over {transport}")
    tokens = sum(len(report.token_ids) for report in struck)
    print(f"{len(signals)} losses over {transport}, {restarts} restarts, {tokens} tokens")


@pytest.mark.parametrize(
    ("transport", "signals", "seed"),
    [("stream", [SIGKILL, SIGSTOP, SIGKILL, SIGKILL], 9), ("ray", [SIGSTOP, SIGKILL], 14)],
)
def test_answers_do_not_depend_on_the_draft_staying_alive(
    session: None, transport: str, signals: list[Signals], seed: int
) -> None:
    """With these seeds one draft is killed while it loads; none is stopped then, which takes long to be noticed."""
    asyncio.run(check_losses(signals, transport=transport, seed=seed))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [2, 3])
def test_twenty_losses_in_one_run(session: None, seed: int) -> None:
    asyncio.run(check_losses([SIGKILL] * 20, transport="stream", seed=seed, context=4096))


@pytest.mark.slow
def test_a_draft_that_is_stopped_while_it_loads_is_given_up(session: None) -> None:
    asyncio.run(check_losses([SIGKILL, SIGSTOP], transport="stream", seed=1))


def test_a_stopped_draft_is_gone_when_its_pair_is(session: None) -> None:
    async def run() -> None:
        async with Pair.start(spec_of("cpu")) as pair:
            assert pair.draft_report is not None
            pid = pair.draft_report.pid
            os.kill(pid, SIGSTOP)
        assert await gone([pid])

    asyncio.run(run())


def test_a_lost_target_is_told_and_nothing_is_left(session: None) -> None:
    async def run() -> None:
        requests = sixteen(demo_tokenizer(), num_tokens=lambda _: 512, stop=())
        async with Pair.start(spec_of("cpu")) as pair:
            pids = {name: report.pid for name, report in (await pair.reports()).items()}

            def kill(_: Commit) -> None:
                with suppress(ProcessLookupError):
                    os.kill(pids["target"], SIGKILL)

            with pytest.raises(ray.exceptions.RayActorError):
                await run_all(pair, requests, kill)
        assert await gone(list(pids.values()))

    asyncio.run(run())
