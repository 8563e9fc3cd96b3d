"""The target's bookkeeping of a draft's sessions, frame by frame, against answers made up for the purpose."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import pytest
from in_process import run

from twinspark.actors.errors import LinkLost
from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.target import deadline, remote_draft
from twinspark.actors.target.deadline import RoundDeadline
from twinspark.actors.target.engine import NOTHING
from twinspark.actors.target.remote_draft import RemoteDraft
from twinspark.actors.target.request import Active, Request
from twinspark.actors.wire import (
    WIRE_VERSION,
    Close,
    Frame,
    Open,
    Proposal,
    ProposalEntry,
    Refused,
    Round,
    RoundEntry,
    Welcome,
    encode,
    fault_index,
    framed,
)

VOCAB = 1000
EPOCH = 3
CONTEXT = 200
Answer = Callable[[Round], Sequence[Frame]]


class PlayedLink:
    """Notes what is sent; what is received is given by `answer` for each Round."""

    welcome = Welcome(WIRE_VERSION, EPOCH, 7, VOCAB)

    def __init__(self, answer: Answer | None = None) -> None:
        self.answer = answer or honest
        self.sent: list[Frame] = []
        self.coming: deque[Frame] = deque()
        self.bytes_out = 100
        self.bytes_in = 50
        self.closed = False

    async def send(self, frame: Frame) -> None:
        self.bytes_out += len(framed(encode(frame, VOCAB)))
        self.sent.append(frame)
        if isinstance(frame, Round):
            self.coming += self.answer(frame)

    async def receive(self, timeout_s: float) -> Frame:
        await asyncio.sleep(0)
        if not self.coming:
            raise LinkLost("nothing more is coming")
        frame = self.coming.popleft()
        self.bytes_in += len(framed(encode(frame, VOCAB)))
        return frame

    async def close(self) -> None:
        self.closed = True

    def take(self) -> list[Frame]:
        sent, self.sent = self.sent, []
        return sent


def honest(frame: Round, catching_up: int = 0) -> list[Frame]:
    entries = tuple(ProposalEntry(entry.session, (1, 2, 3)[: entry.cap]) for entry in frame.entries)
    return [Proposal(frame.epoch, frame.round, 5, catching_up, entries)]


def refused(frame: Round, session: int, name: str, back: int = 0) -> Refused:
    return Refused(frame.epoch, frame.round - back, session, fault_index(name))


def remote(link: PlayedLink) -> RemoteDraft:
    return RemoteDraft(link, epoch=EPOCH, vocab_size=VOCAB)


def active(number: int, num_ids: int = 10, new: int = 50) -> Active:
    """A request that has its first token."""
    request = Request(number, tuple(range(num_ids - 1)), Sampling.of(temperature=0.5, seed=number), new)
    made = Active(request, number, 0.0)
    made.commit([number], CONTEXT, 0.0)
    return made


def kinds(frames: Sequence[Frame]) -> list[str]:
    return [type(frame).__name__ for frame in frames]


def test_a_session_is_opened_once_and_then_told_what_is_new() -> None:
    async def body() -> None:
        link = PlayedLink()
        draft, one, two = remote(link), active(1), active(2)
        proposed = await draft.propose([one], CONTEXT)
        assert proposed.tokens == {1: (1, 2, 3)}
        assert link.take() == [
            Open.of(epoch=EPOCH, session=1, sampling=one.request.sampling, context=CONTEXT, ids=tuple(one.ids)),
            Round(EPOCH, 1, (RoundEntry(1, 10, 48, ()),)),
        ]
        one.commit([7, 8], CONTEXT, 0.0)
        await draft.propose([one, two], CONTEXT)
        opened, asked = link.take()
        assert isinstance(opened, Open)
        assert opened.session == 2
        assert asked == Round(EPOCH, 2, (RoundEntry(1, 10, 46, (7, 8)), RoundEntry(2, 10, 48, ())))
        await draft.gone(1)
        await draft.gone(1)
        await draft.gone(99)
        assert link.take() == [Close(EPOCH, 1)]

    run(body)


def test_a_request_that_one_more_token_ends_is_not_asked_about() -> None:
    async def body() -> None:
        link = PlayedLink()
        draft, one, last = remote(link), active(1), active(2, new=2)
        assert last.cap(CONTEXT) == 0
        assert await draft.propose([last], CONTEXT) is NOTHING
        assert await draft.propose([], CONTEXT) is NOTHING
        assert link.take() == []
        assert (await draft.propose([one, last], CONTEXT)).tokens.keys() == {1}

    run(body)


def test_a_text_longer_than_a_frame_may_be_is_sent_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_draft, "IDS_AT_ONCE", 40)
    monkeypatch.setattr(remote_draft, "IDS_PER_ROUND", 60)

    async def body() -> None:
        link = PlayedLink()
        draft, texts = remote(link), [active(1, 100), active(2, 120)]
        asked: list[list[tuple[int, int, int]]] = []
        have = {}
        for _ in range(4):
            await draft.propose(texts, CONTEXT)
            for frame in link.take():
                if isinstance(frame, Open):
                    have[frame.session] = list(frame.ids)
                elif isinstance(frame, Round):
                    asked.append([(e.start, len(e.ids), e.cap) for e in frame.entries])
                    for entry in frame.entries:
                        assert entry.start == len(have[entry.session])
                        have[entry.session] += entry.ids
        assert asked == [
            [(40, 40, 0), (40, 20, 0)],
            [(80, 20, 48), (60, 40, 0)],
            [(100, 0, 48), (100, 20, 48)],
            [(100, 0, 48), (120, 0, 48)],
        ]
        assert have == {text.number: text.ids for text in texts}

    run(body)


def test_a_session_without_room_is_left_out_until_another_ends() -> None:
    def no_room(frame: Round) -> list[Frame]:
        if not any(entry.session == 2 for entry in frame.entries):
            return honest(frame)
        return [refused(frame, 2, "no_room", back=1), refused(frame, 2, "unknown_session")]

    async def body() -> None:
        link = PlayedLink(no_room)
        draft, both = remote(link), [active(1), active(2)]
        assert await draft.propose(both, CONTEXT) is NOTHING
        assert kinds(link.take()) == ["Open", "Open", "Round"]
        for _ in range(3):
            assert (await draft.propose(both, CONTEXT)).tokens.keys() == {1}
            assert kinds(link.take()) == ["Round"]
        await draft.gone(2)
        assert link.take() == []
        assert (await draft.propose([both[0]], CONTEXT)).tokens.keys() == {1}
        assert await draft.propose(both, CONTEXT) is NOTHING, "a request of the same number is a new one"
        await draft.gone(1)
        link.answer = honest
        link.take()
        assert (await draft.propose([both[1]], CONTEXT)).tokens == {2: (1, 2, 3)}
        assert kinds(link.take()) == ["Open", "Round"]
        assert not link.closed

    run(body)


@pytest.mark.parametrize("name", ["wrong_start", "no_room", "unknown_session"])
def test_a_session_refused_in_a_round_is_closed_and_begun_anew(name: str) -> None:
    async def body() -> None:
        link = PlayedLink()
        draft, both = remote(link), [active(1), active(2)]
        await draft.propose(both, CONTEXT)
        link.take()
        link.answer = lambda frame: [refused(frame, 2, name)]
        both[0].commit([9], CONTEXT, 0.0)
        assert await draft.propose(both, CONTEXT) is NOTHING
        assert kinds(link.take()) == (["Round"] if name == "unknown_session" else ["Round", "Close"])
        link.answer = honest
        if name == "no_room":
            await draft.propose(both, CONTEXT)
            (asked,) = link.take()
            assert isinstance(asked, Round)
            assert asked.entries == (RoundEntry(1, 10, 47, (9,)),), "a refused round has told the draft nothing"
            return
        assert (await draft.propose(both, CONTEXT)).tokens == {1: (1, 2, 3), 2: (1, 2, 3)}
        opened, asked = link.take()
        assert isinstance(opened, Open)
        assert opened.session == 2
        assert isinstance(asked, Round)
        assert [(entry.start, entry.ids) for entry in asked.entries] == [(10, (9,)), (10, ())]

    run(body)


def test_a_round_that_is_answered_although_an_opening_was_refused() -> None:
    async def body() -> None:
        link = PlayedLink(lambda frame: [refused(frame, 2, "session_open", back=1), *honest(frame)])
        draft, both = remote(link), [active(1), active(2)]
        assert (await draft.propose(both, CONTEXT)).tokens[1] == (1, 2, 3)
        assert kinds(link.take()) == ["Open", "Open", "Round", "Close"]
        link.answer = honest
        assert (await draft.propose(both, CONTEXT)).tokens[2] == (1, 2, 3)
        assert kinds(link.take()) == ["Open", "Round"]

    run(body)


def test_a_draft_that_only_ever_refuses_older_frames_is_lost_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "CATCH_UP_S", 0.05)

    class Endless(PlayedLink):
        async def receive(self, timeout_s: float) -> Frame:
            await asyncio.sleep(0)
            return Refused(EPOCH, 0, 5, fault_index("unknown_session"))

    async def body() -> None:
        draft = remote(Endless())
        assert await draft.propose([active(1)], CONTEXT) is NOTHING
        assert draft.lost.is_set()
        assert "did not answer round 1" in draft.why_lost

    run(body)


def test_a_frame_refused_for_no_session_loses_the_draft() -> None:
    async def body() -> None:
        link = PlayedLink(lambda frame: [refused(frame, 0, "stale_round")])
        draft = remote(link)
        assert await draft.propose([active(1)], CONTEXT) is NOTHING
        assert "stale_round" in draft.why_lost
        assert link.closed
        link.take()
        assert await draft.propose([active(1)], CONTEXT) is NOTHING
        await draft.gone(1)
        assert link.take() == []

    run(body)


def test_the_bytes_of_a_refused_round_are_told_with_the_next() -> None:
    async def body() -> None:
        link = PlayedLink(lambda frame: [refused(frame, 2, "wrong_start")])
        out, in_ = link.bytes_out, link.bytes_in
        draft, both = remote(link), [active(1), active(2)]
        assert (await draft.propose(both, CONTEXT)).bytes_to_draft is None
        link.answer = honest
        told = [await draft.propose(both, CONTEXT) for _ in range(2)]
        await draft.gone(2)
        told.append(await draft.propose([both[0]], CONTEXT))
        assert sum(sum((t.bytes_to_draft or {}).values()) for t in told) == link.bytes_out - out
        assert sum(sum((t.bytes_to_target or {}).values()) for t in told) == link.bytes_in - in_
        shares = (told[1].bytes_to_draft or {}).values()
        assert max(shares) - min(shares) <= 1, "a frame of two sessions is shared evenly"

    run(body)


@pytest.mark.parametrize("behind", [0, 1])
def test_a_round_counts_as_catching_up_for_as_long_as_the_draft_says_so(
    monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    waits: list[bool] = []
    observed: list[bool] = []

    def wait_s(self: RoundDeadline, *, catching_up: bool) -> float:
        waits.append(catching_up)
        return 1.0

    def observe(self: RoundDeadline, elapsed_s: float, *, catching_up: bool) -> None:
        observed.append(catching_up)

    monkeypatch.setattr(RoundDeadline, "wait_s", wait_s)
    monkeypatch.setattr(RoundDeadline, "observe", observe)

    async def body() -> None:
        link = PlayedLink(lambda frame: honest(frame, catching_up=behind))
        draft, one = remote(link), active(1)
        for _ in range(3):
            await draft.propose([one], CONTEXT)
        one.commit(list(range(40)), CONTEXT, 0.0)
        await draft.propose([one], CONTEXT)
        link.answer = honest
        for _ in range(2):
            await draft.propose([one], CONTEXT)

    run(body)
    assert waits == ([True, True, True, True, True, False] if behind else [True, False, False, True, False, False])
    assert observed == waits, "the last round of the catching-up, too, took the time of one"
