"""Whatever becomes of the draft, the target goes on, and its tokens are those of `off`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from in_process import (
    WAIT_S,
    accepted,
    finish,
    local_draft,
    off_tokens,
    run,
    same,
    some_requests,
    target_host,
    target_spec,
)

from twinspark.actors.target import deadline
from twinspark.actors.target.request import Report
from twinspark.actors.wire import Proposal, ProposalEntry, Round, SessionFault

AskDraft = Callable[[Round], Awaitable[Proposal]]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def expected(shared: Path) -> dict[int, tuple[int, ...]]:
    torch.set_num_threads(1)
    return off_tokens(shared, some_requests(9))


async def misbehaving(
    shared: Path, at_round: int, misbehave: Callable[[Round, AskDraft], Awaitable[Proposal]]
) -> tuple[dict[int, Report], str]:
    """Reports, and why the draft was lost, which misbehaves in its `at_round`-th round."""
    async with target_host(target_spec(shared)) as target, local_draft(shared) as draft:

        async def on_round(frame: Round, rest: AskDraft) -> Proposal:
            return await (misbehave(frame, rest) if len(draft.app.rounds) == at_round else rest(frame))

        draft.app.on_round = on_round
        await draft.attach(target)
        reports = await finish(target, some_requests(6))
        return reports, await target.draft_lost()


async def hang(frame: Round, rest: AskDraft) -> Proposal:
    await asyncio.sleep(3600)
    raise AssertionError


async def crash(frame: Round, rest: AskDraft) -> Proposal:
    raise OSError("a draft's own mistake")


async def old_round(frame: Round, rest: AskDraft) -> Proposal:
    return replace(await rest(frame), round=frame.round - 1)


async def next_round(frame: Round, rest: AskDraft) -> Proposal:
    return replace(await rest(frame), round=frame.round + 1)


async def old_epoch(frame: Round, rest: AskDraft) -> Proposal:
    return replace(await rest(frame), epoch=frame.epoch - 1)


async def too_many(frame: Round, rest: AskDraft) -> Proposal:
    entries = tuple(ProposalEntry(entry.session, (1,) * (entry.cap + 1)) for entry in frame.entries)
    return replace(await rest(frame), entries=entries)


async def one_missing(frame: Round, rest: AskDraft) -> Proposal:
    return replace(await rest(frame), entries=(await rest(replace(frame, entries=()))).entries)


async def one_more(frame: Round, rest: AskDraft) -> Proposal:
    proposal = await rest(frame)
    return replace(proposal, entries=(*proposal.entries, ProposalEntry(77, (1,))))


@pytest.mark.parametrize("at_round", [1, 2, 9])
@pytest.mark.parametrize(
    ("misbehave", "why"),
    [
        (hang, "sent nothing"),
        (crash, "gone"),
        (old_round, "out of turn"),
        (next_round, "out of turn"),
        (old_epoch, "out of turn"),
        (too_many, "at most its cap"),
        (one_missing, "answer each session"),
        (one_more, "answer each session"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_draft_that_cannot_be_trusted_is_lost_and_the_target_goes_on_alone(
    shared: Path,
    expected: dict[int, tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
    misbehave: Callable[[Round, AskDraft], Awaitable[Proposal]],
    why: str,
    at_round: int,
) -> None:
    if misbehave is hang:
        for name in ("FIRST_S", "CATCH_UP_S", "MOST_S"):
            monkeypatch.setattr(deadline, name, 0.5)

    async def body() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        reports, told = await misbehaving(shared, at_round, misbehave)
        assert same(reports, expected)
        assert why in told
        drafted = [r for report in reports.values() for r in report.rounds if r.draft_tokens]
        assert bool(drafted) == (at_round > 1)

    run(body)


@pytest.mark.parametrize("at_round", [1, 2, 9])
@pytest.mark.parametrize("fault", ["wrong_start", "unknown_session", "no_room"])
def test_a_refused_session_is_opened_again(
    shared: Path, expected: dict[int, tuple[int, ...]], fault: str, at_round: int
) -> None:
    async def body() -> None:
        async with target_host(target_spec(shared)) as target, local_draft(shared) as draft:

            async def on_round(frame: Round, rest: AskDraft) -> Proposal:
                if len(draft.app.rounds) != at_round:
                    return await rest(frame)
                session = frame.entries[-1].session
                if fault == "unknown_session":
                    draft.drafter.close(session)
                raise SessionFault(fault, session, "for the sake of the test")

            draft.app.on_round = on_round
            await draft.attach(target)
            reports = await finish(target, some_requests(6))
            assert same(reports, expected)
            assert accepted(reports) > 20
            refused = draft.app.rounds[at_round - 1].entries[-1].session
            assert draft.app.opened.count(refused) == 2
            await draft.closed()

    run(body)


@pytest.mark.parametrize("at_batch", [1, 3, 8])
def test_killed_in_the_middle_and_replaced(shared: Path, expected: dict[int, tuple[int, ...]], at_batch: int) -> None:
    async def body() -> None:
        async with (
            target_host(target_spec(shared)) as target,
            local_draft(shared) as first,
            local_draft(shared) as second,
        ):
            await first.attach(target)
            num_batches = 0

            async def on_commit() -> None:
                nonlocal num_batches
                num_batches += 1
                if num_batches == at_batch:
                    await first.kill()
                elif num_batches == at_batch + 3:
                    async with asyncio.timeout(WAIT_S):
                        assert "gone" in await target.draft_lost()
                    await second.attach(target)

            reports = await finish(target, some_requests(9), on_commit)
            assert same(reports, expected)
            assert len(second.app.rounds) > 5
            assert max(record.draft_us for report in reports.values() for record in report.rounds[-5:]) > 0

    run(body)
