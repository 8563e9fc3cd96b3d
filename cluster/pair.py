"""A draft/target pair: spawned for a decision, supervised, ended. Requests go in as token ids, commits come out.

The pair stays up when its draft dies or is moved: the target goes on, and what it drafts with is filled from token ids.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray

from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.specs import ActorReport
from twinspark.actors.target.counts import RoundCounts
from twinspark.actors.target.request import Commit, Report, Request
from twinspark.cluster.errors import NoRoomError, SpawnError
from twinspark.cluster.recipe import Recipe
from twinspark.cluster.reserve import Berth
from twinspark.cluster.room import draft_room, target_room
from twinspark.cluster.spawn import (
    ANSWER_TIMEOUT_S,
    OnProgress,
    Spawned,
    spawn_draft,
    spawn_target,
    unwrapped,
    within,
)
from twinspark.cluster.supervisor import Supervisor
from twinspark.planner.decide import PlanInputs
from twinspark.planner.nodes import CPU, Seat
from twinspark.planner.placement import Candidate, Decision

log = logging.getLogger(__name__)

Progress = contextlib.AbstractContextManager[OnProgress]

ATTACH_TIMEOUT_S = 30.0
FILL_TIMEOUT_S = 300.0  # a new draft catches up with every request that runs
COLOCATE_TIMEOUT_S = 300.0
GATHER_S = 0.1  # a call every 20 ms costs a two-core target a third of its speed, one every 100 ms some percent


@dataclass(frozen=True)
class PairSpec:
    """Everything needed to bring a pair up, and to place its draft again later."""

    recipe: Recipe
    inputs: PlanInputs
    decision: Decision

    @property
    def max_seqs(self) -> int:
        """Requests decoded at once."""
        return self.decision.chosen.num_requests


@dataclass(frozen=True)
class Move:
    """The draft went from one place to another, by the clock of the pair (seconds since its start)."""

    at_s: float
    origin: str
    destination: str
    why: str


def _nothing(name: str, done: int, total: int) -> None:
    return None


@dataclass
class Pair:
    """Use `async with Pair.start(...)`; then `submit`, iterate `commits`, and `collect` each request once.

    `current` is where the draft is now; `moves` what happened since the decision.
    """

    spec: PairSpec
    current: Candidate = field(init=False)
    moves: list[Move] = field(default_factory=list)
    num_draft_restarts: int = 0
    _target: Spawned | None = None
    _draft: Spawned | None = None
    _supervisor: Supervisor | None = None
    _began_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.current = self.spec.decision.chosen

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls, spec: PairSpec, progress: Progress | None = None, *, supervised: bool = True
    ) -> AsyncIterator[Pair]:
        """The pair, loaded and linked; both actors are gone afterwards. `progress` is open while they load. Without a
        supervisor a lost draft stays lost, and none is moved.

        Raises SpawnError where an actor does not come up; NoRoomError where the memory is gone and there is nothing to
        step down to.
        """
        pair = cls(spec)
        try:
            with progress or contextlib.nullcontext(_nothing) as on_progress:
                await pair._spawn_target(on_progress)
                await pair.place_or_step_down(spec.decision.chosen, spec.decision.fallbacks, on_progress)
            if supervised and spec.recipe.head_path is not None:
                pair._supervisor = Supervisor(pair)
            yield pair
        finally:
            await pair.close()

    async def close(self) -> None:
        """End both actors. Safe to call twice."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            await supervisor.close()
        self.bury_draft()
        target, self._target = self._target, None
        if target is not None:
            target.bury()

    # Requests ---------------------------------------------------------------------------------------------------------

    @property
    def target(self) -> Any:
        """The target's actor."""
        if self._target is None:
            raise ValueError("the pair must be up")
        return self._target.actor

    async def submit(self, requests: Sequence[Request]) -> None:
        """Raises RequestError, with none queued, where one cannot be served."""
        try:
            await self.target.submit.remote(list(requests))
        except ray.exceptions.RayTaskError as error:
            raise unwrapped(error) from None

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

    async def margin_millionths(self, ids: Sequence[int], sampling: Sampling) -> tuple[int, int]:
        """As TargetHost.margin_millionths."""
        margin: tuple[int, int] = await self.target.margin_millionths.remote(list(ids), sampling)
        return margin

    # What is seen of it -----------------------------------------------------------------------------------------------

    @property
    def draft(self) -> Any:
        """The draft's actor; None where it has none of its own."""
        return None if self._draft is None else self._draft.actor

    @property
    def draft_report(self) -> ActorReport | None:
        """What the draft's own actor said when it had loaded; None where there is none."""
        return None if self._draft is None else self._draft.report

    @property
    def reason(self) -> str:
        """Why the draft is where it is."""
        steps = [f"{move.origin} -> {move.destination}: {move.why}" for move in self.moves]
        return "; ".join([self.spec.decision.reason, *steps])

    async def reports(self) -> dict[str, ActorReport]:
        """What each living actor says of itself now."""
        reports: dict[str, ActorReport] = {"target": await self.target.report.remote()}
        if self._draft is not None:
            with contextlib.suppress(ray.exceptions.RayError):
                reports["draft"] = await self._draft.actor.report.remote()
        return reports

    async def laps_ms(self) -> dict[str, float]:
        """Milliseconds the draft spent in each part so far."""
        actor = self.target if self._draft is None else self._draft.actor
        laps: dict[str, float] = await actor.laps_ms.remote()
        return laps

    async def counts(self) -> RoundCounts:
        """As TargetHost.counts."""
        counts: RoundCounts = await self.target.counts.remote()
        return counts

    # The draft's place ------------------------------------------------------------------------------------------------

    async def place_or_step_down(
        self, candidate: Candidate, fallbacks: Sequence[Candidate], on_progress: OnProgress = _nothing
    ) -> None:
        """As `place`; where the memory is gone by then, the first fallback that has it, and the reason is kept."""
        steps = [candidate, *fallbacks]
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            try:
                await self.place(step, on_progress)
                return
            except NoRoomError as why:
                if following is None:
                    raise
                log.warning("the draft steps down from %s to %s: %s", step.placement, following.placement, why)
                self._note(_name(step), _name(following), str(why))

    async def place(self, candidate: Candidate, on_progress: OnProgress = _nothing) -> None:
        """Draft at `candidate`'s place from now on. The new draft is up and has caught up with every request before the
        old one goes, and no output changes. Raises NoRoomError or SpawnError, with all as it was.
        """
        old = self._draft
        if candidate.placement == "off":
            await within(self.target.detach_draft.remote(), ANSWER_TIMEOUT_S, "the target's leave of its draft")
            self._draft = None
        elif candidate.draft is None:
            await self._colocate(candidate)
            self._draft = None
        else:
            self._draft = await self._spawn_draft(candidate, candidate.draft, on_progress)
        self.current = candidate
        if old is not None:
            old.bury()

    async def move(self, candidate: Candidate, why: str) -> None:
        """`place`, logged and counted."""
        origin = _name(self.current)
        await self.place(candidate)
        log.warning("the draft moved from %s to %s: %s", origin, _name(candidate), why)
        self._note(origin, _name(candidate), why)

    def bury_draft(self) -> None:
        """End the draft's actor, where it has one; the target goes on alone."""
        draft, self._draft = self._draft, None
        if draft is not None:
            draft.bury()

    async def draft_lost(self) -> str:
        """Returns why, once the draft that is attached now is lost."""
        why: str = await self.target.draft_lost.remote()
        return why

    def _note(self, origin: str, destination: str, why: str) -> None:
        self.moves.append(Move(time.monotonic() - self._began_s, origin, destination, why))

    async def _spawn_target(self, on_progress: OnProgress) -> None:
        recipe, inputs, chosen = self.spec.recipe, self.spec.inputs, self.spec.decision.chosen
        node = inputs.node(chosen.target.node)
        spec = recipe.target_spec(chosen.target, self.spec.max_seqs, node.num_cpus)
        if chosen.target.device == CPU:
            # By Ray's account a draft beside it finds its cores too; threads are another matter.
            berth = Berth(chosen.target, max(1, min(spec.actor.num_threads, node.num_cpus - recipe.draft_threads)))
        else:
            berth = Berth(chosen.target, 1, num_gpus=1, gpu_key=node.gpu(chosen.target.device).key)
        self._target = await spawn_target(spec, berth, target_room(inputs, chosen), on_progress)

    async def _spawn_draft(self, candidate: Candidate, seat: Seat, on_progress: OnProgress) -> Spawned:
        recipe, inputs = self.spec.recipe, self.spec.inputs
        spec = recipe.draft_spec(seat, self.spec.max_seqs, candidate.verify_length)
        if seat.device == CPU:
            berth = Berth(seat, recipe.draft_threads)
        else:
            # The target's GPU is the pair's by Ray's account already.
            key = inputs.node(seat.node).gpu(seat.device).key
            berth = Berth(seat, 1, num_gpus=0 if seat == candidate.target else 1, gpu_key=key)
        needed = draft_room(inputs, candidate, self.spec.max_seqs).beside(self._promised_bytes(seat))
        draft = await spawn_draft(spec, berth, needed, on_progress)
        try:
            listening = draft.actor.listen_here.remote(recipe.transport, draft.actor)
            endpoint = await within(listening, ANSWER_TIMEOUT_S, "a link to the draft actor")
            attaching = self.target.attach_draft.remote(endpoint, ATTACH_TIMEOUT_S, recipe.record_path)
            await within(attaching, FILL_TIMEOUT_S, "the draft's catching up")
        except ray.exceptions.RayTaskError as error:
            draft.bury()
            raise SpawnError(f"the draft actor could not be linked ({unwrapped(error)})") from error
        except BaseException:
            draft.bury()
            raise
        return draft

    def _promised_bytes(self, seat: Seat) -> int:
        """RAM that is the target's though it has not touched it yet: its caches fill up as requests come."""
        chosen, target = self.spec.decision.chosen, self._target
        if target is None or chosen.target.device != CPU or seat != chosen.target:
            return 0
        return max(0, chosen.target_bytes - target.report.resident_bytes)

    async def _colocate(self, candidate: Candidate) -> None:
        recipe, inputs = self.spec.recipe, self.spec.inputs
        settings = recipe.draft_settings(candidate.target, candidate.verify_length)
        needed = draft_room(inputs, candidate, self.spec.max_seqs).beside(self._promised_bytes(candidate.target))
        try:
            colocating = self.target.colocate_within.remote(settings, needed)
            await within(colocating, COLOCATE_TIMEOUT_S, "the draft beside the target")
        except ray.exceptions.RayTaskError as error:
            raise unwrapped(error) from None


def _name(candidate: Candidate) -> str:
    return candidate.placement if candidate.draft is None else f"{candidate.placement} ({candidate.draft.device})"
