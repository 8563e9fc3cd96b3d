"""The target actor: takes requests, drives rounds, hands out commits. A plain class; Ray appears where it is spawned.

Everything that touches the engine happens between steps, in the loop below; the step itself runs in the compute thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from twinspark.actors.compute import ComputeThread
from twinspark.actors.draft.proposer import Proposer
from twinspark.actors.errors import RequestError
from twinspark.actors.link.base import Endpoint, Recorder
from twinspark.actors.loading import Progress, load_target
from twinspark.actors.report import report_of
from twinspark.actors.sampling.settings import MILLION, Sampling
from twinspark.actors.specs import ActorReport, TargetSpec
from twinspark.actors.target.colocated import ColocatedDraft
from twinspark.actors.target.engine import Engine
from twinspark.actors.target.remote_draft import RemoteDraft
from twinspark.actors.target.request import Commit, Report, Request
from twinspark.actors.target.sources import DraftSource, NoDraft

log = logging.getLogger(__name__)

MAX_MILLIONTHS = 2**31 - 1


class TargetHost:
    """`load`, optionally `attach_draft`, then `submit` and `commits`, and `collect` each request once at its end."""

    def __init__(self, spec: TargetSpec) -> None:
        self.spec = spec
        self.compute = ComputeThread(spec.actor.num_threads)
        self._progress = Progress()
        self._engine: Engine | None = None
        self._source: DraftSource = NoDraft()
        self._epoch = 0
        self._between: deque[asyncio.Future[None]] = deque()
        self._wake = asyncio.Event()
        self._commits: list[Commit] = []
        self._news = asyncio.Event()
        self._ended = asyncio.Event()
        self._failed: str | None = None
        self._loop: asyncio.Task[None] | None = None

    async def load(self) -> ActorReport:
        """Read the checkpoints. Raises CheckpointError or ValueError for what cannot be loaded."""
        self._engine, proposer = await self.compute(self._build)
        if proposer is not None and self.spec.colocated is not None:
            self._source = ColocatedDraft(proposer, self.compute, verify_length=self.spec.colocated.verify_length)
        self._loop = asyncio.create_task(self._run())
        return await self.report()

    def _build(self) -> tuple[Engine, Proposer | None]:
        """In the compute thread: one tensor made in another would give OpenMP a second team, and cost a third."""
        network, proposer = load_target(self.spec, self._progress)
        actor = self.spec.actor
        taps = () if proposer is None else proposer.head.config.tap_ids
        return Engine(network, max_seqs=actor.max_seqs, context=actor.context, taps=taps), proposer

    async def progress(self) -> tuple[int, int]:
        """Bytes loaded, and of how many."""
        return self._progress.done_bytes, self._progress.total_bytes

    async def report(self) -> ActorReport:
        return report_of(self.engine.target.embedding, self.spec.dtype, self.compute)

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise ValueError("the target must be loaded first")
        return self._engine

    # The draft ----------------------------------------------------------------------------------------------------

    async def attach_draft(self, endpoint: Endpoint, timeout_s: float, record_path: str | None = None) -> None:
        """Draft over this link from the next round on. Raises LinkLost or WireError if it cannot be opened."""
        self._epoch += 1
        remote = await RemoteDraft.dial(
            endpoint,
            epoch=self._epoch,
            vocab_size=self.engine.target.config.vocab_size,
            timeout_s=timeout_s,
            record=_recorder(record_path),
        )
        await self._between_steps()
        await self._switch_to(remote)

    async def detach_draft(self) -> None:
        """Go on alone from the next round on."""
        await self._between_steps()
        await self._switch_to(NoDraft())

    async def draft_lost(self) -> str:
        """Returns why, once the draft that is attached now is lost."""
        if isinstance(self._source, RemoteDraft):
            await self._source.lost.wait()
            return self._source.why_lost
        return "no draft is attached"

    async def _switch_to(self, source: DraftSource) -> None:
        old, self._source = self._source, source
        if isinstance(old, RemoteDraft):
            await old.close()

    async def laps_ms(self) -> dict[str, float]:
        """Milliseconds a colocated draft spent in each part so far."""
        return self._source.laps_ms() if isinstance(self._source, ColocatedDraft) else {}

    # Requests -----------------------------------------------------------------------------------------------------

    async def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests. Raises RequestError, with none queued, where one cannot be served."""
        await self._between_steps()
        numbers: set[int] = set()
        for request in requests:
            self.engine.check(request)
            if request.number in numbers:
                raise RequestError(f"request numbers must be unique, got {request.number} twice")
            numbers.add(request.number)
        now_s = time.monotonic()
        for request in requests:
            self.engine.add(request, now_s)
        self._wake.set()

    async def commits(self, least_s: float = 0.0) -> list[Commit]:
        """What was committed since the last call, all requests together; waits until there is something.

        Gathers for `least_s` first, unless a request ends: each call costs time that a CPU target would use.
        """
        if least_s:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), least_s)
        while not self._commits:
            self._check_running()
            self._news.clear()
            await self._news.wait()
        commits, self._commits = self._commits, []
        self._news.clear()
        self._ended.clear()
        return commits

    async def collect(self, number: int, num_tokens: int | None = None) -> Report:
        """End a request and report on it, cut after `num_tokens` where a stop string was found there.

        What it committed and nobody fetched yet is dropped: the number may be given to another request.
        """
        await self._between_steps()
        active = self.engine.remove(number)
        if active is None:
            raise ValueError(f"a request must be collected once, while it is known; got {number}")
        self._commits = [commit for commit in self._commits if commit.number != number]
        await self._source.gone(number)
        return active.report(num_tokens)

    async def margin_millionths(self, ids: Sequence[int], sampling: Sampling) -> tuple[int, int]:
        """How firm the draw after `ids` is, in millionths of a logit: best less second (noise added), and distance to a
        filter's edge. For audits of two runs that differ, on an idle target (ValueError otherwise).
        """
        await self._between_steps()
        if not self.engine.idle:
            raise ValueError("an audit needs an idle target, got one with requests")
        margin = await self.compute(lambda: self.engine.margin(ids, sampling))
        top_two, edge = (int(min(value * MILLION, MAX_MILLIONTHS)) for value in margin)
        return top_two, edge

    # The loop -----------------------------------------------------------------------------------------------------

    def _check_running(self) -> None:
        if self._loop is None:
            raise ValueError("the target must be loaded first")
        if self._failed is not None:
            raise RuntimeError(f"the target has stopped: {self._failed}")

    async def _between_steps(self) -> None:
        """Returns at a moment when no step is running; the caller must not await before it is done with the engine.

        Raises RuntimeError where no step will ever run again.
        """
        self._check_running()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._between.append(future)
        self._wake.set()
        await future
        self._check_running()

    async def _run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                while self._between:
                    self._let_in()
                    await asyncio.sleep(0)
                if self.engine.idle:
                    self._wake.clear()
                else:
                    await self._round()
        except Exception as error:
            log.exception("the target's loop ended")
            self._failed = f"{type(error).__name__}: {error}"
            self._news.set()
            self._ended.set()
            while self._between:
                self._let_in()

    def _let_in(self) -> None:
        future = self._between.popleft()
        if not future.done():  # a caller that gave up has cancelled it
            future.set_result(None)

    async def _round(self) -> None:
        engine = self.engine
        engine.admit()
        proposed = await self._source.propose(engine.decoding(), engine.context)
        stepped = await self.compute(lambda: engine.step(proposed))
        await self._source.stepped(stepped)
        if stepped.commits:
            self._commits += stepped.commits
            self._news.set()
            if any(commit.finish_reason is not None for commit in stepped.commits):
                self._ended.set()


def _recorder(path: str | None) -> Recorder | None:
    """Appends every byte to `path`.out and `path`.in."""
    if path is None:
        return None

    def record(direction: str, data: bytes) -> None:
        with Path(f"{path}.{direction}").open("ab") as file:
            file.write(data)

    return record
