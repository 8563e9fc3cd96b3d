"""The target's end of a draft actor: opens sessions, sends what was committed, takes proposals, survives its loss.

Knows frames and deadlines. Who spawns a new draft is the supervisor's business: it is told by `lost`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from twinspark.actors.errors import LinkLost, WireError
from twinspark.actors.link.base import Endpoint, Link, Recorder
from twinspark.actors.link.dial import connect
from twinspark.actors.target.deadline import RoundDeadline
from twinspark.actors.target.engine import NOTHING, Proposed, Stepped
from twinspark.actors.target.request import Active
from twinspark.actors.wire import MAX_BLOCK, Close, Open, Proposal, Refused, Round, RoundEntry

log = logging.getLogger(__name__)

IDS_AT_ONCE = 16384  # ids of one session in one frame; keeps a frame small for either transport
IDS_PER_ROUND = 65536  # ids of all sessions in one Round: a quarter of the frame budget
CATCH_UP_IDS = 32  # a session that gets more than this in a round is being caught up


class RemoteDraft:
    """A DraftSource over a link. Without a link it offers nothing."""

    taps = ()

    def __init__(self, link: Link, *, epoch: int, vocab_size: int) -> None:
        self.epoch, self.vocab_size = epoch, vocab_size
        self.lost = asyncio.Event()
        self.why_lost = ""
        self._link: Link | None = link
        self._sent: dict[int, int] = {}  # by session: how many of its ids the draft has
        self._no_room: set[int] = set()  # sessions the draft has no slot for, until another one ends
        self._round = 0
        self._deadline = RoundDeadline()
        self._catching_up = False
        self._told = (link.bytes_out, link.bytes_in)
        self._turn = asyncio.Lock()  # a ping may come at any moment, and a link has one sender and one receiver

    @classmethod
    async def dial(
        cls, endpoint: Endpoint, *, epoch: int, vocab_size: int, timeout_s: float, record: Recorder | None = None
    ) -> RemoteDraft:
        """Connect. Raises LinkLost or WireError as `connect` does."""
        link = await connect(endpoint, epoch=epoch, vocab_size=vocab_size, timeout_s=timeout_s, record=record)
        return cls(link, epoch=epoch, vocab_size=vocab_size)

    async def propose(self, decoding: Sequence[Active], context: int) -> Proposed:
        wanting = self._wanting(decoding, context)
        if not wanting:
            return NOTHING
        try:
            async with self._turn:
                link = self._link
                return NOTHING if link is None else await self._round_trip(link, wanting, context)
        except LinkLost as why:
            await self._lose(str(why))
        except WireError as fault:
            await self._lose(f"a frame of ours was refused ({fault})")
        return NOTHING

    async def fill(self, decoding: Callable[[], Sequence[Active]], context: int) -> None:
        """Open a session for every request that decodes and let the draft catch up with it; nothing is drafted, and the
        requests may go on meanwhile. Raises LinkLost or WireError.
        """
        self._catching_up = True
        while self._catching_up and (wanting := self._wanting(decoding(), context)):
            async with self._turn:
                if self._link is None:
                    raise LinkLost(self.why_lost or "the link was closed")
                await self._round_trip(self._link, wanting, context, drafting=False)
        self._catching_up = False

    def _wanting(self, decoding: Sequence[Active], context: int) -> list[Active]:
        """One more token ends a request whose cap is 0: the draft is of no more use to it."""
        return [active for active in decoding if active.cap(context) and active.number not in self._no_room]

    async def stepped(self, stepped: Stepped) -> None:
        return None

    async def gone(self, number: int) -> None:
        self._no_room.discard(number)
        if self._sent.pop(number, None) is not None:
            self._no_room.clear()
            try:
                async with self._turn:
                    if self._link is not None:
                        await self._link.send(Close(self.epoch, number))
            except LinkLost as why:
                await self._lose(str(why))

    async def ping(self) -> int:
        """Microseconds of a round without entries, less what the draft says it computed. It sets no standard for the
        deadline, and its bytes are told of no request. Raises LinkLost where the draft is lost.
        """
        link = self._link
        if link is None:
            raise LinkLost(self.why_lost or "the link was closed")
        try:
            async with self._turn:
                return await self._empty_round(link)
        except LinkLost as why:
            if self._link is link:  # else it was closed on purpose meanwhile
                await self._lose(str(why))
            raise

    async def close(self) -> None:
        """End the link on purpose."""
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def _lose(self, why: str) -> None:
        log.warning("lost the draft: %s", why)
        await self.close()
        self._sent.clear()
        self.why_lost = why
        self.lost.set()

    async def _round_trip(
        self, link: Link, decoding: Sequence[Active], context: int, *, drafting: bool = True
    ) -> Proposed:
        began = time.monotonic()
        await self._open_new(link, decoding, context)
        entries = self._entries(decoding, context, drafting)
        self._catching_up |= any(len(entry.ids) > CATCH_UP_IDS for entry in entries)
        caught_up = not self._catching_up
        self._round += 1
        await link.send(Round(self.epoch, self._round, entries))
        proposal = await self._answer(link, self._deadline.wait_s(catching_up=self._catching_up))
        elapsed_s = time.monotonic() - began
        if proposal is None:
            return NOTHING
        tokens = self._checked(proposal, entries)
        for entry in entries:
            if entry.session in self._sent:
                self._sent[entry.session] = entry.start + len(entry.ids)
        self._catching_up = proposal.catching_up > 0
        self._deadline.observe(elapsed_s, catching_up=self._catching_up or not caught_up)
        if not drafting:
            return NOTHING
        out, in_ = self._untold_bytes(link)
        numbers = [entry.session for entry in entries]
        return Proposed(
            tokens,
            draft_us=proposal.draft_us,
            link_us=max(0, int(elapsed_s * 1e6) - proposal.draft_us),
            bytes_to_draft=_shares(out, numbers),
            bytes_to_target=_shares(in_, numbers),
        )

    async def _empty_round(self, link: Link) -> int:
        bytes_before = (link.bytes_out, link.bytes_in)
        began = time.monotonic()
        self._round += 1
        await link.send(Round(self.epoch, self._round, ()))
        proposal = await self._answer(link, self._deadline.wait_s(catching_up=self._catching_up))
        elapsed_us = int((time.monotonic() - began) * 1e6)
        if proposal is None or proposal.entries:
            raise LinkLost("the draft must answer a round without entries with none")
        self._told = (
            self._told[0] + link.bytes_out - bytes_before[0],
            self._told[1] + link.bytes_in - bytes_before[1],
        )
        return max(0, elapsed_us - proposal.draft_us)

    def _untold_bytes(self, link: Link) -> tuple[int, int]:
        """Bytes out and in since the last call: of sessions opened and closed, and of rounds that were refused, too."""
        now = (link.bytes_out, link.bytes_in)
        out, in_ = now[0] - self._told[0], now[1] - self._told[1]
        self._told = now
        return out, in_

    async def _open_new(self, link: Link, decoding: Sequence[Active], context: int) -> None:
        for active in decoding:
            if active.number not in self._sent:
                first = tuple(active.ids[:IDS_AT_ONCE])
                await link.send(
                    Open.of(
                        epoch=self.epoch,
                        session=active.number,
                        sampling=active.request.sampling,
                        context=context,
                        ids=first,
                    )
                )
                self._sent[active.number] = len(first)
                self._catching_up = True

    def _entries(self, decoding: Sequence[Active], context: int, drafting: bool) -> tuple[RoundEntry, ...]:
        """Newly committed ids of each session, within the frame's budget; no drafts where more is to come."""
        entries, room = [], IDS_PER_ROUND
        for active in decoding:
            start = self._sent[active.number]
            ids = tuple(active.ids[start : start + min(IDS_AT_ONCE, room)])
            room -= len(ids)
            complete = start + len(ids) == len(active.ids)
            cap = min(MAX_BLOCK, active.cap(context)) if complete and drafting else 0
            entries.append(RoundEntry(active.number, start, cap, ids))
        return tuple(entries)

    async def _answer(self, link: Link, wait_s: float) -> Proposal | None:
        """The proposal of this round; None where the draft refused a session, which is then opened again.

        Raises LinkLost where the draft is silent, or refuses what no session can be blamed for.
        """
        deadline = time.monotonic() + wait_s
        while (left_s := deadline - time.monotonic()) > 0:
            frame = await link.receive(left_s)
            match frame:
                case Proposal() if (frame.epoch, frame.round) == (self.epoch, self._round):
                    return frame
                case Refused() if frame.concerns_session:
                    log.warning("the draft refused session %d: %s", frame.session, frame.name)
                    await self._reopen(link, frame)
                    if frame.round == self._round:
                        return None
                case Refused():
                    raise LinkLost(f"the draft refused a frame ({frame.name})")
                case _:
                    raise LinkLost(f"the draft answered round {self._round} with {type(frame).__name__}, out of turn")
        raise LinkLost(f"the draft did not answer round {self._round} in {wait_s:g} s")

    async def _reopen(self, link: Link, refused: Refused) -> None:
        known = self._sent.pop(refused.session, None) is not None
        if refused.name == "no_room":
            self._no_room.add(refused.session)
            known = refused.round == self._round  # it is the round that was refused, not the session's opening
        if known and refused.name != "unknown_session":
            await link.send(Close(self.epoch, refused.session))

    @staticmethod
    def _checked(proposal: Proposal, entries: Sequence[RoundEntry]) -> dict[int, tuple[int, ...]]:
        """Draft tokens by session. Raises LinkLost where the answer is not one to these entries."""
        caps = {entry.session: entry.cap for entry in entries}
        tokens = {entry.session: entry.ids for entry in proposal.entries}
        if tokens.keys() != caps.keys() or any(len(ids) > caps[session] for session, ids in tokens.items()):
            raise LinkLost("the draft's proposal must answer each session with at most its cap of tokens")
        return tokens


def _shares(total: int, numbers: Sequence[int]) -> dict[int, int]:
    """`total` bytes of a shared frame, split evenly; the first takes what is left over."""
    share, rest = divmod(total, len(numbers))
    return {number: share + (rest if i == 0 else 0) for i, number in enumerate(numbers)}
