"""The draft's sessions: everything here can be rebuilt from token IDs, and is when a session is opened again.

Knows committed ids, the trunk that recomputes the taps, and the proposer. Knows no frames and no transport.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twinspark.actors.draft.proposer import Ask, Proposer
from twinspark.actors.nets.decoder import Decoder
from twinspark.actors.nets.rows import Rows, Span
from twinspark.actors.sampling.settings import Sampling

CATCH_UP_ROWS = 128  # trunk rows a round may spend on sessions that are behind, so that the others do not wait for long


@dataclass
class Session:
    """`num_done` positions are in the trunk's and the head's caches; the last committed id is the next anchor."""

    slot: int
    sampling: Sampling
    context: int
    ids: list[int]
    num_done: int = 0

    @property
    def backlog(self) -> int:
        return max(0, len(self.ids) - 1 - self.num_done)


@dataclass(frozen=True)
class Wish:
    """A session's part in a round: `ids` newly committed, then at most `cap` draft tokens."""

    session: int
    ids: tuple[int, ...]
    cap: int


class Drafter:
    """One trunk, one head, a slot for each session. Not thread-safe: one compute thread owns it."""

    def __init__(self, trunk: Decoder, proposer: Proposer, *, num_slots: int, context: int, verify_length: int) -> None:
        self.trunk, self.proposer = trunk, proposer
        self.context = context
        self.verify_length = min(verify_length, proposer.max_length)
        self.sessions: dict[int, Session] = {}
        self._free = list(range(num_slots - 1, -1, -1))

    @property
    def room(self) -> bool:
        """Whether one more session can be opened."""
        return bool(self._free)

    def clear(self) -> None:
        """Forget every session."""
        for number in list(self.sessions):
            self.close(number)

    def open(self, number: int, ids: Sequence[int], sampling: Sampling, context: int) -> None:
        """Begin a session. The caller has checked `room` and that `number` is not in use."""
        self.sessions[number] = Session(self._free.pop(), sampling, min(context, self.context), list(ids))

    def close(self, number: int) -> None:
        """End a session; an unknown one is a KeyError."""
        self._free.append(self.sessions.pop(number).slot)

    def step(self, wishes: Sequence[Wish]) -> tuple[dict[int, tuple[int, ...]], int]:
        """Take in what was committed, catch up, draft: draft tokens by session, and how many sessions are behind."""
        for wish in wishes:
            self.sessions[wish.session].ids.extend(wish.ids)
        with self.proposer.watch("trunk"):
            self._catch_up([self.sessions[wish.session] for wish in wishes])
        ready, behind = [], 0
        for wish in wishes:
            session = self.sessions[wish.session]
            if session.backlog:
                behind += 1
            elif session.ids and wish.cap:
                ready.append((wish, session))
        asks = [
            Ask(
                session.slot,
                len(session.ids) - 1,
                session.ids[-1],
                max(0, min(wish.cap, self.verify_length, session.context - len(session.ids))),
                session.sampling,
            )
            for wish, session in ready
        ]
        drafts = self.proposer.propose(asks)
        proposals: dict[int, tuple[int, ...]] = {wish.session: () for wish in wishes}
        proposals |= {wish.session: ids for (wish, _), ids in zip(ready, drafts, strict=True)}
        return proposals, behind

    def _catch_up(self, sessions: Sequence[Session]) -> None:
        """Run the trunk over what is not in the caches yet: all that one round commits, and CATCH_UP_ROWS rows of
        longer backlogs, the shortest first.
        """
        spans, ids, room = [], [], CATCH_UP_ROWS
        for session in sorted(sessions, key=lambda s: s.backlog):
            in_step = session.backlog <= 1 + self.verify_length
            count = session.backlog if in_step else min(session.backlog, room)
            if count:
                start = session.num_done
                spans.append(Span(session.slot, start, count))
                ids += session.ids[start : start + count]
                room -= 0 if in_step else count
        if not spans:
            return
        _, taps = self.trunk.forward(Rows(spans, ids, self.trunk.device), self.proposer.head.config.tap_ids)
        if taps is None:
            raise ValueError("a head must have tap ids, got none")
        self.proposer.head.extend(spans, taps)
        by_slot = {session.slot: session for session in sessions}
        for span in spans:
            by_slot[span.slot].num_done = span.end
