"""Placement `colocated`: the head runs in the target's actor, on its device and thread, with the taps read."""

from __future__ import annotations

import time
from collections.abc import Sequence

from twinspark.actors.compute import ComputeThread
from twinspark.actors.draft.drafter import CATCH_UP_ROWS
from twinspark.actors.draft.proposer import Ask, Proposer
from twinspark.actors.nets.decoder import Decoder
from twinspark.actors.nets.rows import Span
from twinspark.actors.rehearsal import colocated_step
from twinspark.actors.target.engine import NOTHING, Proposed, Stepped
from twinspark.actors.target.request import Active


class ColocatedDraft:
    """A DraftSource over a Proposer that shares the target's slots.

    A request that began before this draft was there has its context recomputed by the target's first layers, in chunks;
    until that is done it is offered nothing, and the others go on.
    """

    def __init__(self, proposer: Proposer, target: Decoder, compute: ComputeThread, *, verify_length: int) -> None:
        self._proposer, self._target, self._compute = proposer, target, compute
        self._verify_length = min(verify_length, proposer.max_length)
        self._num_done: dict[int, int] = {}  # by slot: positions in the head's cache
        self._behind: tuple[int, int] | None = None  # the request that is being recomputed, and how far that is
        self._extend_us = 0

    @property
    def taps(self) -> tuple[int, ...]:
        """What the target's steps must hand over."""
        return self._proposer.head.config.tap_ids

    async def propose(self, decoding: Sequence[Active], context: int) -> Proposed:
        if not decoding:
            return NOTHING
        return await self._compute(lambda: self._propose(decoding, context))

    async def stepped(self, stepped: Stepped) -> None:
        if stepped.taps is not None and stepped.kept:
            await self._compute(lambda: self._extend(stepped))

    async def gone(self, number: int) -> None:
        return None

    async def rehearse(self, num_requests: int, length: int, position: int) -> float:
        """Milliseconds of a step without requests, as `rehearsal.colocated_step`."""
        return await self._compute(
            lambda: colocated_step(self._proposer, num_requests=num_requests, length=length, position=position)
        )

    def laps_ms(self) -> dict[str, float]:
        """Milliseconds spent in each part so far."""
        return {name: 1e3 * seconds for name, seconds in self._proposer.watch.total_s.items()}

    def _propose(self, decoding: Sequence[Active], context: int) -> Proposed:
        began = time.perf_counter()
        self._catch_up(decoding)
        ready = [a for a in decoding if self._num_done.get(a.slot, 0) == len(a.ids) - 1]
        asks = [
            Ask(a.slot, len(a.ids) - 1, a.ids[-1], min(self._verify_length, a.cap(context)), a.request.sampling)
            for a in ready
        ]
        tokens = self._proposer.propose(asks)
        draft_us = int((time.perf_counter() - began) * 1e6) + self._extend_us
        return Proposed({a.number: ids for a, ids in zip(ready, tokens, strict=True)}, draft_us=draft_us)

    def _catch_up(self, decoding: Sequence[Active]) -> None:
        """Recompute a chunk of the context of the first request that lacks some."""
        behind = [a for a in decoding if self._num_done.get(a.slot, 0) < len(a.ids) - 1]
        if not behind:
            return
        active = behind[0]
        number, start = self._behind or (active.number, 0)
        if number != active.number:
            start = 0
        ids = active.ids[start : min(len(active.ids) - 1, start + CATCH_UP_ROWS)]
        taps = self._target.recompute_taps(ids, start, self.taps)
        span = Span(active.slot, start, len(ids))
        self._proposer.head.extend([span], taps)
        self._num_done[active.slot] = span.end
        self._behind = (active.number, span.end)

    def _extend(self, stepped: Stepped) -> None:
        """The taps of what was kept become context. Its time counts with the next proposal."""
        began = time.perf_counter()
        if stepped.taps is None:
            return
        spans: list[Span] = []
        index: list[int] = []
        for span, row in stepped.kept:
            if span.start == 0 or span.start == self._num_done.get(span.slot):  # else it is recomputed later
                self._num_done[span.slot] = span.end
                spans.append(span)
                index += range(row, row + span.count)
        if spans:
            kept = stepped.taps if len(index) == stepped.taps.shape[0] else stepped.taps[index]
            self._proposer.head.extend(spans, kept)
        self._extend_us = int((time.perf_counter() - began) * 1e6)
