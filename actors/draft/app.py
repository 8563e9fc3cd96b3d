"""Frames to sessions and back: what a draft does with each frame that passed the gate. Computes in one thread only."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from twinspark.actors.draft.drafter import Drafter, Wish
from twinspark.actors.wire import Close, Open, Proposal, ProposalEntry, Round, SessionFault


class DrafterApp:
    """The DraftApp over a Drafter; `compute` runs a function in the actor's compute thread."""

    def __init__(self, drafter: Drafter, compute: Callable[[Callable[[], Proposal]], Awaitable[Proposal]]) -> None:
        self._drafter = drafter
        self._compute = compute
        self.num_rounds = 0

    def hello(self, epoch: int) -> None:
        self._drafter.clear()

    def open(self, frame: Open) -> None:
        if frame.session in self._drafter.sessions:
            raise SessionFault("session_open", frame.session, "must be closed first")
        if not self._drafter.room:
            raise SessionFault("no_room", frame.session, "every slot is taken")
        if frame.context > self._drafter.context or len(frame.ids) > frame.context:
            limit = min(frame.context, self._drafter.context)
            raise SessionFault("no_room", frame.session, f"context must be at most {limit}, got {len(frame.ids)} ids")
        self._drafter.open(frame.session, frame.ids, frame.sampling, frame.context)

    def close(self, frame: Close) -> None:
        if frame.session not in self._drafter.sessions:
            raise SessionFault("unknown_session", frame.session, "was never opened")
        self._drafter.close(frame.session)

    async def round(self, frame: Round) -> Proposal:
        for entry in frame.entries:
            session = self._drafter.sessions.get(entry.session)
            if session is None:
                raise SessionFault("unknown_session", entry.session, "was never opened")
            have = len(session.ids)
            if entry.start != have:
                raise SessionFault("wrong_start", entry.session, f"start must be {have}, got {entry.start}")
            if have + len(entry.ids) > session.context:
                raise SessionFault("no_room", entry.session, f"context must hold {have + len(entry.ids)} ids")
        self.num_rounds += 1
        return await self._compute(lambda: self._answer(frame))

    def _answer(self, frame: Round) -> Proposal:
        began = time.perf_counter()
        proposals, behind = self._drafter.step([Wish(e.session, e.ids, e.cap) for e in frame.entries])
        entries = tuple(ProposalEntry(session, ids) for session, ids in proposals.items())
        draft_us = int((time.perf_counter() - began) * 1e6)
        return Proposal(frame.epoch, frame.round, draft_us, behind, entries)
