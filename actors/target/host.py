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
from twinspark.actors.errors import RequestError
from twinspark.actors.link.base import Endpoint, Recorder
from twinspark.actors.loading import Progress, load_colocated, load_target
from twinspark.actors.rehearsal import verify_step
from twinspark.actors.report import report_of
from twinspark.actors.sampling.settings import MILLION, Sampling
from twinspark.actors.specs import ActorReport, DraftSettings, TargetSpec
from twinspark.actors.target.colocated import ColocatedDraft
from twinspark.actors.target.counts import Counter, RoundCounts
from twinspark.actors.target.engine import Engine, Proposed, Stepped
from twinspark.actors.target.remote_draft import RemoteDraft
from twinspark.actors.target.request import Commit, Report, Request
from twinspark.actors.target.sources import DraftSource, NoDraft

log = logging.getLogger(__name__)

MAX_MILLIONTHS = 2**31 - 1


class TargetHost:
    """`load`, then `submit` and `commits`, and `collect` each request once at its end. Where the draft is (`colocate`,
    `attach_draft`, `detach_draft`) may change at any time.
    """

    def __init__(self, spec: TargetSpec) -> None:
        self.spec = spec
        self.compute = ComputeThread(spec.actor.num_threads)
        self._progress = Progress()
        self._engine: Engine | None = None
        self._source: DraftSource = NoDraft()
        self._incoming: RemoteDraft | None = None  # a draft that is being filled, and not asked yet
        self._counter = Counter()
        self._round_began_s: float | None = None
        self._epoch = 0
        self._between: deque[asyncio.Future[None]] = deque()
        self._wake = asyncio.Event()
        self._commits: list[Commit] = []
        self._news = asyncio.Event()
        self._ended = asyncio.Event()
        self._failed: str | None = None
        self._loop: asyncio.Task[None] | None = None

    async def load(self) -> ActorReport:
        """Read the checkpoint. Raises CheckpointError or ValueError for what cannot be loaded."""
        self._engine = await self.compute(self._build)
        self._loop = asyncio.create_task(self._run())
        return await self.report()

    def _build(self) -> Engine:
        """In the compute thread: one tensor made in another would give OpenMP a second team, and cost a third."""
        actor = self.spec.actor
        return Engine(load_target(self.spec, self._progress), max_seqs=actor.max_seqs, context=actor.context)

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

    async def colocate(self, settings: DraftSettings) -> None:
        """Draft in this actor, as soon as the head is read. Raises CheckpointError or ValueError as `load` does."""
        engine, actor = self.engine, self.spec.actor
        proposer = await self.compute(lambda: load_colocated(actor, engine.target, settings, self._progress))
        await self._between_steps()
        length = settings.verify_length
        await self._switch_to(ColocatedDraft(proposer, engine.target, self.compute, verify_length=length))

    async def attach_draft(self, endpoint: Endpoint, timeout_s: float, record_path: str | None = None) -> None:
        """Draft over this link, as soon as the draft has caught up with the requests that run; until then whatever was
        there drafts on. Raises LinkLost or WireError where the link cannot be opened, or is lost meanwhile.
        """
        self._epoch += 1
        remote = await RemoteDraft.dial(
            endpoint,
            epoch=self._epoch,
            vocab_size=self.engine.target.config.vocab_size,
            timeout_s=timeout_s,
            record=_recorder(record_path),
        )
        self._incoming = remote
        try:
            await remote.fill(self.engine.decoding, self.engine.context)
        except BaseException:
            await remote.close()
            raise
        finally:
            self._incoming = None
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
        self.engine.taps = source.taps
        self._counter.take()  # what was counted under the old one says nothing of the new one
        if isinstance(old, RemoteDraft):
            await old.close()

    async def counts(self) -> RoundCounts:
        """What the rounds came to since the last call, or since the draft was placed where it is."""
        return self._counter.take()

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
        if self._incoming is not None:
            await self._incoming.gone(number)
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

    async def rehearse_verify(self, num_requests: int, length: int, position: int) -> float:
        """Milliseconds of one pass with `length` draft tokens for each of `num_requests`, timed without any request on
        an idle target (ValueError otherwise). As `rehearsal.verify_step`.
        """
        await self._idle("a rehearsal")
        engine = self.engine
        return await self.compute(
            lambda: verify_step(
                engine.target,
                engine.noise,
                engine.taps,
                num_requests=num_requests,
                rows_per_request=length + 1,
                position=position,
            )
        )

    async def rehearse_colocated(self, num_requests: int, length: int, position: int) -> float:
        """The same for a step of the draft in this actor. Raises ValueError where there is none."""
        await self._idle("a rehearsal")
        if not isinstance(self._source, ColocatedDraft):
            raise ValueError("a colocated rehearsal needs a draft in the target's actor, got none")
        return await self._source.rehearse(num_requests, length, position)

    async def rehearse_link(self, repeats: int) -> list[float]:
        """Milliseconds of `repeats` rounds without entries to the draft actor attached, less what it computed.

        Raises ValueError where none is attached, LinkLost where it is lost.
        """
        await self._idle("a rehearsal")
        source = self._source
        if not isinstance(source, RemoteDraft):
            raise ValueError("a rehearsal of the link needs a draft actor attached, got none")
        return [await source.ping() / 1e3 for _ in range(repeats)]

    async def _idle(self, what: str) -> None:
        """As `_between_steps`. Raises ValueError where requests run."""
        await self._between_steps()
        if not self.engine.idle:
            raise ValueError(f"{what} needs an idle target, got one with requests")

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
                    self._round_began_s = None
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
        began_s = self._round_began_s or time.monotonic()
        engine.admit()
        proposed = await self._source.propose(engine.decoding(), engine.context)
        stepped = await self.compute(lambda: engine.step(proposed))
        await self._source.stepped(stepped)
        self._round_began_s = time.monotonic()
        self._count(stepped, proposed, int((self._round_began_s - began_s) * 1e6))
        if stepped.commits:
            self._commits += stepped.commits
            self._news.set()
            if any(commit.finish_reason is not None for commit in stepped.commits):
                self._ended.set()

    def _count(self, stepped: Stepped, proposed: Proposed, round_us: int) -> None:
        drafting = not isinstance(self._source, NoDraft)
        self._counter.add(
            stepped.judged,
            draft_us=proposed.draft_us,
            link_us=proposed.link_us,
            verify_us=stepped.verify_us,
            round_us=round_us,
            # A round whose draft was still catching up is none of the kind that the planner compares.
            timed=bool(stepped.judged)
            and not stepped.prefilled
            and (not drafting or any(one.num_drafts for one in stepped.judged)),
        )


def _recorder(path: str | None) -> Recorder | None:
    """Appends every byte to `path`.out and `path`.in."""
    if path is None:
        return None

    def record(direction: str, data: bytes) -> None:
        with Path(f"{path}.{direction}").open("ab") as file:
            file.write(data)

    return record
