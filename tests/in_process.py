"""A target and a draft in one process, over a real link, with the reference model: for tests without Ray."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from small_engine import answer, ask, engine_of, golden_target, tokens_of

from twinspark.actors.draft.app import DrafterApp
from twinspark.actors.draft.host import DraftHost
from twinspark.actors.link.base import Transport
from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.specs import ActorSpec, DraftSettings, DraftSpec, TargetSpec
from twinspark.actors.target.host import TargetHost
from twinspark.actors.target.remote_draft import RemoteDraft
from twinspark.actors.target.request import Report, Request
from twinspark.actors.wire import Close, Open, Proposal, Round

CONTEXT = 400
VERIFY_LENGTH = 4
WAIT_S = 60.0
NEW = 30
SAMPLINGS = [Sampling(), Sampling.of(temperature=0.8, top_p=0.95), Sampling.of(temperature=1.0, top_k=40)]
T = TypeVar("T")
OnRound = Callable[[Round, Callable[[Round], Awaitable[Proposal]]], Awaitable[Proposal]]


def run(body: Callable[[], Awaitable[T]]) -> T:
    async def limited() -> T:
        async with asyncio.timeout(2 * WAIT_S):
            return await body()

    return asyncio.run(limited())


def target_spec(shared: Path, *, slots: int = 4) -> TargetSpec:
    target = str(shared / "golden/deepspec/targets/untied")
    return TargetSpec(ActorSpec(target, "cpu", CONTEXT, slots, 1), "float32", "fast")


def draft_settings(shared: Path, variant: str = "shallow_b4") -> DraftSettings:
    return DraftSettings(str(shared / "golden/deepspec" / variant / "draft"), "float32", VERIFY_LENGTH)


@asynccontextmanager
async def target_host(spec: TargetSpec, colocated: DraftSettings | None = None) -> AsyncIterator[TargetHost]:
    host = TargetHost(spec)
    try:
        await host.load()
        if colocated is not None:
            await host.colocate(colocated)
        yield host
    finally:
        if host._loop is not None:
            host._loop.cancel()
            await asyncio.gather(host._loop, return_exceptions=True)
        if isinstance(host._source, RemoteDraft):
            await host._source.close()
        host.compute.close()


class WatchedApp:
    """The draft's application, told of by what passed; `on_round` may answer a round in its own way."""

    def __init__(self, app: DrafterApp) -> None:
        self.app = app
        self.opened: list[int] = []
        self.closed: list[int] = []
        self.rounds: list[Round] = []
        self.on_round: OnRound | None = None

    def hello(self, epoch: int) -> None:
        self.app.hello(epoch)

    def open(self, frame: Open) -> None:
        self.app.open(frame)
        self.opened.append(frame.session)

    def close(self, frame: Close) -> None:
        self.app.close(frame)
        self.closed.append(frame.session)

    async def round(self, frame: Round) -> Proposal:
        self.rounds.append(frame)
        if self.on_round is not None:
            return await self.on_round(frame, self.app.round)
        return await self.app.round(frame)


class LocalDraft:
    """A DraftHost in this process. `kill` ends its connections as a death would."""

    def __init__(self, shared: Path, settings: DraftSettings, *, slots: int = 4) -> None:
        target = str(shared / "golden/deepspec/targets/untied")
        self.host = DraftHost(DraftSpec(ActorSpec(target, "cpu", CONTEXT, slots, 1), settings))

    async def load(self) -> None:
        await self.host.load()
        app: Any = self.host._gate._app
        self.app = WatchedApp(app)
        self.host._gate._app = self.app

    @property
    def drafter(self) -> Any:
        return self.host._drafter

    async def attach(self, target: TargetHost, transport: Transport = "stream", record: Path | None = None) -> None:
        endpoint = await self.host.listen(transport, "127.0.0.1", LocalHandle(self.host))
        await target.attach_draft(endpoint, WAIT_S, None if record is None else str(record))

    async def closed(self) -> None:
        """Every session is closed with its request; the last Close may still be on its way."""
        while self.drafter.sessions:
            await asyncio.sleep(0.01)

    async def kill(self) -> None:
        if self.host._stream is not None:
            await self.host._stream.close()
        self.host.compute.close()


class LocalHandle:
    """What an actor's handle looks like to the `ray` transport: `handle.link_frame.remote(data)` can be awaited."""

    def __init__(self, host: DraftHost) -> None:
        self.host = host

    @property
    def link_frame(self) -> LocalHandle:
        return self

    def remote(self, data: bytes) -> Awaitable[bytes]:
        return asyncio.ensure_future(self.host.link_frame(data))


@asynccontextmanager
async def local_draft(
    shared: Path, *, slots: int = 4, variant: str = "shallow_b4", settings: DraftSettings | None = None
) -> AsyncIterator[LocalDraft]:
    draft = LocalDraft(shared, settings or draft_settings(shared, variant), slots=slots)
    try:
        await draft.load()
        yield draft
    finally:
        await draft.kill()


async def finish(
    host: TargetHost, requests: Sequence[Request], on_commit: Callable[[], Awaitable[None]] | None = None
) -> dict[int, Report]:
    """Submit, and collect each at its end. `on_commit` is called after every batch of commits."""
    await host.submit(requests)
    reports: dict[int, Report] = {}
    told: dict[int, tuple[int, ...]] = {request.number: () for request in requests}
    while len(reports) < len(requests):
        for commit in await host.commits():
            told[commit.number] += commit.ids
            if commit.finish_reason is not None:
                reports[commit.number] = await host.collect(commit.number)
                assert reports[commit.number].token_ids == told[commit.number]
        if on_commit is not None:
            await on_commit()
    return reports


def some_requests(count: int) -> list[Request]:
    """Greedy and sampled ones by turns, of several lengths."""
    rng = random.Random(5)
    return [
        ask(n, rng.choices(range(500), k=rng.randrange(1, 60)), NEW + n % 3, replace(SAMPLINGS[n % 3], seed=n))
        for n in range(count)
    ]


def off_tokens(shared: Path, requests: Sequence[Request]) -> dict[int, tuple[int, ...]]:
    """The tokens of `requests` under `off`."""
    target = golden_target(shared, num_slots=4, context=CONTEXT)
    with torch.inference_mode():
        return tokens_of(answer(engine_of(target), requests))


def accepted(reports: dict[int, Report]) -> int:
    return sum(record.num_accepted for report in reports.values() for record in report.rounds)


def same(reports: dict[int, Report], expected: dict[int, tuple[int, ...]]) -> bool:
    return tokens_of(reports) == {n: expected[n] for n in reports}
