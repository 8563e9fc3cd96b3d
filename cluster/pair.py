"""A draft/target pair: spawned for a decision, supervised, ended. Requests go in as token ids, commits come out.

The pair stays up when its draft dies: the target goes on alone, and a new draft is spawned and filled from token ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import ray

from twinspark.actors.link.base import Transport
from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.specs import ActorReport, DraftSpec, TargetSpec
from twinspark.actors.target.request import Commit, Report, Request
from twinspark.cluster.errors import SpawnError
from twinspark.cluster.spawn import ANSWER_TIMEOUT_S, DraftActor, OnProgress, spawn_draft, spawn_target, within
from twinspark.planner.placement import Decision

log = logging.getLogger(__name__)

Progress = contextlib.AbstractContextManager[OnProgress]

ATTACH_TIMEOUT_S = 30.0
RESPAWN_PAUSE_S = 0.2
RESPAWN_MOST_S = 10.0
GATHER_S = 0.1  # a call every 20 ms costs a two-core target a third of its speed, one every 100 ms some percent


@dataclass(frozen=True)
class PairSpec:
    """Everything needed to bring a pair up, again and again. `draft` is set for placements with an actor of its own."""

    decision: Decision
    target: TargetSpec
    draft: DraftSpec | None
    transport: Transport = "stream"
    gpu_share: float = 1.0
    record_path: str | None = None


def _nothing(name: str, done: int, total: int) -> None:
    return None


class Pair:
    """Use `async with Pair.start(...)`; then `submit`, iterate `commits`, and `collect` each request once."""

    def __init__(self, spec: PairSpec) -> None:
        self.spec = spec
        self.target: Any = None
        self.draft: Any = None
        self.draft_report: ActorReport | None = None
        self.num_draft_restarts = 0
        self._supervisor: asyncio.Task[None] | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, spec: PairSpec, progress: Progress | None = None) -> AsyncIterator[Pair]:
        """The pair, loaded and linked; both actors are gone afterwards. `progress` is open while they load."""
        pair = cls(spec)
        try:
            with progress or contextlib.nullcontext(_nothing) as on_progress:
                share = spec.gpu_share if spec.decision.target_device == "cuda" else 0.0
                pair.target, _ = await spawn_target(spec.target, gpu_share=share, on_progress=on_progress)
                if spec.draft is not None:
                    await pair._spawn_draft(on_progress)
            if spec.draft is not None:
                pair._supervisor = asyncio.create_task(pair._supervise())
            yield pair
        finally:
            await pair.close()

    async def close(self) -> None:
        """End both actors. Safe to call twice."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.cancel()
            await asyncio.wait({supervisor})
            if not supervisor.cancelled() and supervisor.exception() is not None:
                log.warning("the draft was no longer supervised: %s", supervisor.exception())
        self._bury_draft()
        if self.target is not None:
            ray.kill(self.target)
        self.target = None

    async def submit(self, requests: Sequence[Request]) -> None:
        """Raises RequestError, with none queued, where one cannot be served."""
        try:
            await self.target.submit.remote(list(requests))
        except ray.exceptions.RayTaskError as error:
            raise error.as_instanceof_cause() from None

    async def commits(self, gather_s: float = GATHER_S) -> AsyncGenerator[Commit, None]:
        """Commits as they come, of all requests, for as long as the caller iterates.

        They are fetched together every `gather_s` (sooner when a request ends).
        """
        while True:
            batch: list[Commit] = await self.target.commits.remote(gather_s)
            for commit in batch:
                yield commit

    async def collect(self, number: int, num_tokens: int | None = None) -> Report:
        report: Report = await self.target.collect.remote(number, num_tokens)
        return report

    async def reports(self) -> dict[str, ActorReport]:
        """What each living actor says of itself now."""
        reports: dict[str, ActorReport] = {"target": await self.target.report.remote()}
        if self.draft is not None:
            with contextlib.suppress(ray.exceptions.RayError):
                reports["draft"] = await self.draft.report.remote()
        return reports

    async def margin_millionths(self, ids: Sequence[int], sampling: Sampling) -> tuple[int, int]:
        """As TargetHost.margin_millionths."""
        margin: tuple[int, int] = await self.target.margin_millionths.remote(list(ids), sampling)
        return margin

    async def laps_ms(self) -> dict[str, float]:
        """Milliseconds the draft spent in each part so far."""
        actor = self.target if self.draft is None else self.draft
        laps: dict[str, float] = await actor.laps_ms.remote()
        return laps

    async def _spawn_draft(self, on_progress: OnProgress = _nothing) -> None:
        spec = self.spec.draft
        if spec is None:
            raise ValueError("a draft actor needs a spec, got none")
        share = self.spec.gpu_share if spec.actor.device == "cuda" else 0.0
        self.draft, self.draft_report = await spawn_draft(spec, gpu_share=share, on_progress=on_progress)
        listening = self.draft.listen_here.remote(self.spec.transport, self.draft)
        endpoint = await within(listening, ANSWER_TIMEOUT_S, "a link to the draft actor")
        await self.target.attach_draft.remote(endpoint, ATTACH_TIMEOUT_S, self.spec.record_path)

    def _bury_draft(self) -> None:
        """End the draft's process. Ray asks before it kills, and gives a stopped process 5 s to answer; one of this
        node is killed at once, so that its memory is free before the next draft loads.
        """
        report, self.draft_report = self.draft_report, None
        if self.draft is not None:
            ray.kill(self.draft)
        self.draft = None
        if report is not None and report.node == socket.gethostname():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(report.pid)
                ours = process.name().startswith(f"ray::{DraftActor.__name__}")
                if ours and process.status() == psutil.STATUS_STOPPED:
                    process.kill()

    async def _supervise(self) -> None:
        """Wait for the draft's loss, bury it, spawn another; pauses grow while that fails."""
        pause_s = RESPAWN_PAUSE_S
        while True:
            why = await self.target.draft_lost.remote()
            log.warning("the draft was lost (%s); a new one is being spawned", why)
            self._bury_draft()
            try:
                await self._spawn_draft()
                self.num_draft_restarts += 1
                pause_s = RESPAWN_PAUSE_S
            except (SpawnError, ray.exceptions.RayError) as error:
                log.warning("no new draft yet: %s", error)
                await asyncio.sleep(pause_s)
                pause_s = min(RESPAWN_MOST_S, pause_s * 2)
