"""A target and a draft over a real link: the tokens are those of `off`, and every byte has its place."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from in_process import (
    NEW,
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
from small_engine import ask

from twinspark.actors.link.base import Transport
from twinspark.actors.target import deadline
from twinspark.actors.target.host import TargetHost
from twinspark.actors.target.request import Report
from twinspark.actors.wire import Proposal, Round, account_recording, split_recording
from twinspark.actors.wire.codec import decode

VOCAB = 512
AskDraft = Callable[[Round], Awaitable[Proposal]]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def expected(shared: Path) -> dict[int, tuple[int, ...]]:
    torch.set_num_threads(1)
    return off_tokens(shared, some_requests(9))


@pytest.mark.parametrize("variant", ["shallow_b4", "vanilla"])
@pytest.mark.parametrize("transport", ["stream", "ray"])
def test_the_tokens_are_those_of_off(
    shared: Path, expected: dict[int, tuple[int, ...]], transport: Transport, variant: str
) -> None:
    async def body() -> None:
        async with target_host(target_spec(shared)) as target, local_draft(shared, variant=variant) as draft:
            await draft.attach(target, transport)
            reports = await finish(target, some_requests(9))
            assert same(reports, expected)
            assert accepted(reports) > 30
            await draft.closed()
            for report in reports.values():
                for record in report.rounds[:-1]:
                    assert record.draft_us > 0
                    assert record.bytes_to_draft > 0

    run(body)


def test_more_requests_than_the_draft_has_slots(shared: Path, expected: dict[int, tuple[int, ...]]) -> None:
    """Those that found no room decode alone, cost the others nothing, and come in when a slot is free."""

    async def body() -> None:
        async with target_host(target_spec(shared)) as target, local_draft(shared, slots=2) as draft:
            await draft.attach(target)
            reports = await finish(target, some_requests(9))
            assert same(reports, expected)
            assert len(set(draft.app.opened)) > 5
            num_drafted = sum(bool(r.draft_tokens) for report in reports.values() for r in report.rounds)
            assert num_drafted > 0.4 * sum(len(report.rounds) for report in reports.values())

    run(body)


def test_another_draft_takes_over_while_requests_run(shared: Path, expected: dict[int, tuple[int, ...]]) -> None:
    async def body() -> None:
        async with (
            target_host(target_spec(shared)) as target,
            local_draft(shared) as first,
            local_draft(shared) as second,
        ):
            drafts, num_batches = [first, second, first], 0

            async def on_commit() -> None:
                nonlocal num_batches
                if num_batches % 4 == 0 and drafts:
                    await drafts.pop(0).attach(target)
                elif num_batches == 20:
                    await target.detach_draft()
                num_batches += 1

            reports = await finish(target, some_requests(9), on_commit)
            assert same(reports, expected)
            assert len(first.app.rounds) > 4
            assert len(second.app.rounds) > 1

    run(body)


class Told:
    """What the deadline was asked and told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits: list[bool] = []
        self.observed: list[bool] = []
        monkeypatch.setattr(deadline.RoundDeadline, "wait_s", self.wait_s)
        monkeypatch.setattr(deadline.RoundDeadline, "observe", self.observe)

    def wait_s(self, *, catching_up: bool) -> float:
        self.waits.append(catching_up)
        return WAIT_S

    def observe(self, elapsed_s: float, *, catching_up: bool) -> None:
        self.observed.append(catching_up)


def test_catching_up_is_never_held_against_the_draft(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every round in which the trunk runs over more than was just committed has the allowance, and sets no standard."""
    monkeypatch.setattr("twinspark.actors.draft.drafter.CATCH_UP_ROWS", 16)
    monkeypatch.setattr("twinspark.actors.target.remote_draft.IDS_AT_ONCE", 60)
    told = Told(monkeypatch)
    rows: list[int] = []

    async def body() -> None:
        async with target_host(target_spec(shared)) as target, local_draft(shared) as draft:

            async def on_round(frame: Round, rest: AskDraft) -> Proposal:
                before = {n: session.num_done for n, session in draft.drafter.sessions.items()}
                proposal = await rest(frame)
                rows.append(max(s.num_done - before[n] for n, s in draft.drafter.sessions.items()))
                return proposal

            draft.app.on_round = on_round
            await draft.attach(target)
            text = random.Random(1).choices(range(500), k=300)
            requests = [ask(0, text[:4], 60), ask(1, text[:200], 40), ask(2, text[:300], 60)]
            reports = await finish(target, requests)
            assert len([r for r in reports[2].rounds if r.draft_tokens]) > 3

    run(body)
    assert len(rows) == len(told.waits) == len(told.observed)
    caught_up = [count > 1 + 4 for count in rows]
    assert sum(caught_up) > 20
    assert not any(did and not allowed for did, allowed in zip(caught_up, told.waits, strict=True))
    assert not any(did and not apart for did, apart in zip(caught_up, told.observed, strict=True))
    assert told.waits.count(False) > 10, "ordinary rounds must have the ordinary deadline"


def test_every_byte_is_accounted_for(shared: Path, tmp_path: Path) -> None:
    async def body() -> dict[int, Report]:
        async with target_host(target_spec(shared)) as target, local_draft(shared) as draft:
            await draft.attach(target, record=tmp_path / "bytes")
            reports = await finish(target, [ask(3, range(40), NEW)])
            await draft.closed()
            return reports

    (report,) = run(body).values()
    out, in_ = (tmp_path / "bytes.out").read_bytes(), (tmp_path / "bytes.in").read_bytes()
    for data in (out, in_):
        ranges = account_recording(data, VOCAB)
        assert [r.start for r in ranges] == [0, *(r.end for r in ranges[:-1])]
        assert ranges[-1].end == len(data)
        for r in ranges:
            assert r.low <= r.value <= r.high
    sent = [type(decode(frame, VOCAB)).__name__ for frame in split_recording(out)]
    num_rounds = sum(record.bytes_to_draft > 0 for record in report.rounds)
    assert sent == ["Hello", "Open"] + ["Round"] * num_rounds + ["Close"]
    sizes = [len(frame) + 4 for frame in split_recording(out)]
    assert sum(record.bytes_to_draft for record in report.rounds) == len(out) - sizes[0] - sizes[-1]
    welcome = len(next(split_recording(in_))) + 4
    assert sum(record.bytes_to_target for record in report.rounds) == len(in_) - welcome


def test_a_draft_that_refuses_to_be_attached(shared: Path, expected: dict[int, tuple[int, ...]]) -> None:
    async def body() -> None:
        async with target_host(target_spec(shared)) as target, local_draft(shared) as draft:
            endpoint = await draft.host.listen("stream", "127.0.0.1")
            with pytest.raises(ConnectionError):
                await target.attach_draft(replace(endpoint, nonce=endpoint.nonce ^ 1), 2.0)
            assert await attached_to_nothing(target)
            reports = await finish(target, some_requests(2))
            assert same(reports, expected)

    async def attached_to_nothing(target: TargetHost) -> bool:
        return await target.draft_lost() == "no draft is attached"

    run(body)
