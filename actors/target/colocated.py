"""Placement `colocated`: the head runs in the target's actor, on its device and thread, with the taps read."""

from __future__ import annotations

import time
from collections.abc import Sequence

from twinspark.actors.compute import ComputeThread
from twinspark.actors.draft.proposer import Ask, Proposer
from twinspark.actors.target.engine import NOTHING, Proposed, Stepped
from twinspark.actors.target.request import Active


class ColocatedDraft:
    """A DraftSource over a Proposer that shares the target's slots."""

    def __init__(self, proposer: Proposer, compute: ComputeThread, *, verify_length: int) -> None:
        self._proposer, self._compute = proposer, compute
        self._verify_length = min(verify_length, proposer.max_length)
        self._extend_us = 0

    async def propose(self, decoding: Sequence[Active], context: int) -> Proposed:
        if not decoding:
            return NOTHING
        return await self._compute(lambda: self._propose(decoding, context))

    async def stepped(self, stepped: Stepped) -> None:
        if stepped.taps is not None and stepped.kept:
            await self._compute(lambda: self._extend(stepped))

    async def gone(self, number: int) -> None:
        return None

    def laps_ms(self) -> dict[str, float]:
        """Milliseconds spent in each part so far."""
        return {name: 1e3 * seconds for name, seconds in self._proposer.watch.total_s.items()}

    def _propose(self, decoding: Sequence[Active], context: int) -> Proposed:
        began = time.perf_counter()
        asks = [
            Ask(a.slot, len(a.ids) - 1, a.ids[-1], min(self._verify_length, a.cap(context)), a.request.sampling)
            for a in decoding
        ]
        tokens = self._proposer.propose(asks)
        draft_us = int((time.perf_counter() - began) * 1e6) + self._extend_us
        return Proposed({a.number: ids for a, ids in zip(decoding, tokens, strict=True)}, draft_us=draft_us)

    def _extend(self, stepped: Stepped) -> None:
        """The taps of what was kept become context. Its time counts with the next proposal."""
        began = time.perf_counter()
        taps = stepped.taps
        if taps is None:
            return
        index = [row + i for span, row in stepped.kept for i in range(span.count)]
        kept = taps if len(index) == taps.shape[0] else taps[index]
        self._proposer.head.extend([span for span, _ in stepped.kept], kept)
        self._extend_us = int((time.perf_counter() - began) * 1e6)
