"""Watches a running pair: a lost draft is replaced, and one that does not pay where it is is moved or switched off.

Knows when; how a draft is placed is the pair's business, and whether a move pays is the planner's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import ray

from twinspark.actors.target.counts import RoundCounts
from twinspark.cluster.errors import NoRoomError, SpawnError
from twinspark.cluster.survey import HERE, is_alive, survey_cluster
from twinspark.planner.placement import Site
from twinspark.planner.replan import Measured, Watch, consider, corrected, elsewhere

if TYPE_CHECKING:
    from twinspark.cluster.pair import Pair

log = logging.getLogger(__name__)

LOOK_S = 5.0
LEAST_ROUNDS = 20  # fewer rounds say nothing
LEAST_JUDGED = 50  # a position that was judged less often keeps its predicted survival
BARRED_S = 120.0  # a place that turned out not to have room is left alone for so long
RESPAWN_PAUSE_S = 0.2
RESPAWN_MOST_S = 10.0


class Supervisor:
    """Runs from its making until `close`."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._inputs = pair.spec.inputs
        self._watch = Watch(moved_s=time.monotonic())
        self._barred: dict[Site, float] = {}
        self._counts = RoundCounts()
        decision = pair.spec.decision
        self._replans = decision.requested == "auto" and decision.measured
        self._possible = [c for c in decision.candidates if c.feasible and c.num_requests >= pair.spec.max_seqs]
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Ends it. A failure that ended it before is logged now."""
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled() and self._task.exception() is not None:
            log.warning("the draft was no longer supervised: %s", self._task.exception())

    async def _run(self) -> None:
        loss: asyncio.Task[str] | None = None
        try:
            while True:
                if loss is None and self._pair.draft_report is not None:
                    loss = asyncio.create_task(self._pair.draft_lost())
                if loss is None:
                    await asyncio.sleep(LOOK_S)
                else:
                    await asyncio.wait({loss}, timeout=LOOK_S)
                if loss is not None and loss.done():
                    await self._replace_lost(loss.result())
                    loss = None
                elif self._replans and await self._look() and loss is not None:
                    loss.cancel()
                    loss = None
        finally:
            if loss is not None:
                loss.cancel()

    # A lost draft -----------------------------------------------------------------------------------------------------

    async def _replace_lost(self, why: str) -> None:
        """Bury it and bring up another; pauses grow while that fails, and the target goes on alone."""
        log.warning("the draft was lost (%s); a new one is being spawned", why)
        self._counts = RoundCounts()
        self._pair.bury_draft()
        pause_s, elsewhere_too = RESPAWN_PAUSE_S, False
        while True:
            try:
                await self._bring_up_another(elsewhere_too)
                self._pair.num_draft_restarts += 1
                return
            except (SpawnError, ray.exceptions.RayError) as error:
                log.warning("no new draft yet: %s", error)
                elsewhere_too = True  # a node that was cut off counts as alive for a minute
                await asyncio.sleep(pause_s)
                pause_s = min(RESPAWN_MOST_S, pause_s * 2)

    async def _bring_up_another(self, elsewhere_too: bool) -> None:
        """Where it was; elsewhere if its node is gone, or its memory (steps down under `auto`)."""
        pair, current = self._pair, self._pair.current
        seat = current.draft
        if seat is None or seat.node == HERE or (is_alive(seat.node) and not elsewhere_too):
            await pair.place_or_step_down(current, pair.spec.decision.fallbacks)
            return
        # A node that does not answer is not among those surveyed, whatever Ray believes of it.
        nodes = tuple(await survey_cluster())
        other = elsewhere(replace(self._inputs, nodes=nodes), current, pair.spec.max_seqs)
        if other is None:
            raise SpawnError(f"node {seat.node[:8]} does not answer, and no other has room for the draft")
        pair.spec = replace(pair.spec, inputs=replace(pair.spec.inputs, nodes=nodes))
        if other.draft == seat:
            await pair.place(other)
        else:
            await pair.move(other, f"node {seat.node[:8]} does not answer")

    # Deciding again ---------------------------------------------------------------------------------------------------

    async def _look(self) -> bool:
        """Take what was measured; whether the draft was moved."""
        self._counts += await self._pair.counts()
        if self._counts.num_rounds < LEAST_ROUNDS:
            return False  # a slow pair gets there in a few looks
        counts, self._counts = self._counts, RoundCounts()
        now_s = time.monotonic()
        self._barred = {site: until_s for site, until_s in self._barred.items() if until_s > now_s}
        current = self._pair.current
        self._inputs = corrected(self._inputs, current, _measured(counts))
        self._watch, move = consider(self._watch, now_s, current, self._possible, self._inputs, frozenset(self._barred))
        if move is None:
            return False
        try:
            await self._pair.move(move.to, move.why)
        except (NoRoomError, SpawnError) as error:
            log.warning("the draft stays where it is, it was to go to %s: %s", move.to.placement, error)
            self._barred[move.to.site] = now_s + BARRED_S
            return False
        return True


def _measured(counts: RoundCounts) -> Measured:
    rounds = counts.num_rounds

    def mean_ms(total_us: int) -> float:
        return total_us / rounds / 1e3

    return Measured(
        num_requests=counts.num_requests / rounds,
        num_drafts=counts.num_drafts / max(1, counts.num_requests),
        draft_ms=mean_ms(counts.draft_us),
        link_ms=mean_ms(counts.link_us),
        verify_ms=mean_ms(counts.verify_us),
        round_ms=mean_ms(counts.round_us),
        survival=counts.survival(LEAST_JUDGED),
    )
