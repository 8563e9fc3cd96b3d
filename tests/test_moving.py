"""Where a draft is may change while requests run: tokens stay, drafts go on, and what was drafted before is not lost.

One process, a real link, the reference model.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from in_process import (
    CONTEXT,
    accepted,
    draft_settings,
    finish,
    local_draft,
    off_tokens,
    run,
    some_requests,
    target_host,
    target_spec,
)
from small_engine import ask

from twinspark.actors.draft.drafter import CATCH_UP_ROWS
from twinspark.actors.errors import LinkLost
from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.target.counts import Counter, Judged, RoundCounts
from twinspark.actors.target.remote_draft import RemoteDraft
from twinspark.actors.target.request import Request


def long_requests(count: int, prompt: int = 20, new: int = 120) -> list[Request]:
    return [
        ask(n, [(7 * n + 3 * i) % 500 for i in range(prompt + n)], new, Sampling.of(temperature=0.7 * (n % 2), seed=n))
        for n in range(count)
    ]


@pytest.mark.parametrize("numerics", ["fast", "exact"])
def test_from_place_to_place_while_requests_run(shared: Path, numerics: str) -> None:
    """off -> cpu -> another cpu -> colocated -> cpu -> off -> colocated; every move in the midst of decoding."""
    requests = long_requests(4)

    async def body() -> None:
        spec = replace(target_spec(shared), numerics=numerics)
        async with target_host(spec) as host, local_draft(shared) as one, local_draft(shared) as two:
            moves = iter(
                [
                    lambda: one.attach(host),
                    lambda: two.attach(host),
                    lambda: host.colocate(draft_settings(shared)),
                    lambda: one.attach(host),
                    host.detach_draft,
                    lambda: host.colocate(draft_settings(shared)),
                ]
            )
            seen: list[tuple[str, RoundCounts]] = []
            batches = 0

            async def on_commit() -> None:
                nonlocal batches
                batches += 1
                move = next(moves, None) if batches % 4 == 0 else None
                if move is not None:
                    seen.append((type(host._source).__name__, await host.counts()))
                    await move()

            reports = await finish(host, requests, on_commit)
            assert {n: r.token_ids for n, r in reports.items()} == expected
            assert [name for name, _ in seen] == [
                "NoDraft",
                "RemoteDraft",
                "RemoteDraft",
                "ColocatedDraft",
                "RemoteDraft",
                "NoDraft",
            ]
            drafted = [sum(counts.reached) for name, counts in seen if name != "NoDraft"]
            assert all(drafted), f"every place must have drafted in its turn, got {drafted}"
            assert accepted(reports) > 0

    expected = off_tokens(shared, requests)
    run(body)


def test_a_new_draft_is_full_before_the_old_one_goes(shared: Path) -> None:
    """Not one round goes without proposals: the old draft answers until the new one has caught up."""
    requests = long_requests(2, prompt=2 * CATCH_UP_ROWS, new=60)

    async def body() -> None:
        async with target_host(target_spec(shared)) as host, local_draft(shared) as one, local_draft(shared) as two:
            await one.attach(host)
            running = asyncio.create_task(finish(host, requests))
            while len(one.app.rounds) < 6 or one.app.rounds[-1].entries[0].cap == 0:
                await asyncio.sleep(0.005)
            await two.attach(host)
            filling = [r for r in two.app.rounds if all(entry.cap == 0 for entry in r.entries)]
            assert len(filling) >= 2, "the prompts are longer than one round catches up with"
            reports = await running
            assert two.app.rounds[len(filling)].entries, "and then it drafts"
            ready = [record for report in reports.values() for record in report.rounds[3:-1]]
            behind = [record for record in ready if not record.draft_tokens]
            assert len(behind) <= 2, f"at most the first round of each request after the move, got {len(behind)}"
            assert {n: r.token_ids for n, r in reports.items()} == off_tokens(shared, requests)

    run(body)


def test_a_new_draft_that_is_lost_while_it_is_filled_changes_nothing(shared: Path) -> None:
    requests = some_requests(4)

    async def body() -> None:
        async with target_host(target_spec(shared)) as host, local_draft(shared) as one, local_draft(shared) as two:
            await one.attach(host)

            async def die(*_: object) -> None:
                killing.append(asyncio.create_task(two.host._stream.close()))  # type: ignore[union-attr]
                await asyncio.sleep(60)

            killing: list[asyncio.Task[None]] = []
            two.app.on_round = die  # type: ignore[assignment]
            running = asyncio.create_task(finish(host, requests))
            while not one.app.rounds:
                await asyncio.sleep(0.005)
            with pytest.raises(LinkLost):
                await two.attach(host)
            assert isinstance(host._source, RemoteDraft)
            assert not host._source.lost.is_set(), "the old draft is still there"
            reports = await running
            assert {n: r.token_ids for n, r in reports.items()} == off_tokens(shared, requests)
            assert accepted(reports) > 0

    run(body)


def test_a_head_that_comes_late_recomputes_long_contexts_in_chunks(shared: Path) -> None:
    """The recomputed context gives the very drafts that one which was there from the start gives."""
    requests = long_requests(2, prompt=2 * CATCH_UP_ROWS + 20, new=40)

    async def drafts(late: bool) -> list[dict[int, tuple[int, ...]]]:
        async with target_host(target_spec(shared), None if late else draft_settings(shared)) as host:

            async def on_commit() -> None:
                nonlocal late
                if late:
                    late = False
                    await host.colocate(draft_settings(shared))

            reports = await finish(host, requests, on_commit)
            assert {n: r.token_ids for n, r in reports.items()} == expected
            return [
                {record.anchor_position: record.draft_tokens for record in reports[n].rounds if record.draft_tokens}
                for n in sorted(reports)
            ]

    async def body() -> None:
        early, late = await drafts(False), await drafts(True)
        for whole, part in zip(early, late, strict=True):
            common = whole.keys() & part.keys()
            assert len(common) > 3
            for position in common:
                length = min(len(whole[position]), len(part[position]))
                assert whole[position][:length] == part[position][:length]

    expected = off_tokens(shared, requests)
    run(body)


def test_counts_leave_out_what_was_never_judged() -> None:
    counter = Counter()
    times = {"draft_us": 1, "link_us": 2, "verify_us": 3, "round_us": 7}
    # Three drafts, the third refused; two drafts, all kept; three drafts, ended by a stop inside the block.
    counter.add([Judged(3, 2, 3, False), Judged(2, 2, 3, False)], **times, timed=True)
    counter.add([Judged(3, 1, 1, True)], **times, timed=False)
    counts = counter.take()
    assert (counts.reached, counts.kept) == ((3, 2, 1), (3, 2, 0))
    assert (counts.num_rounds, counts.num_requests, counts.num_drafts, counts.num_tokens) == (1, 2, 5, 6)
    assert (counts.draft_us, counts.link_us, counts.verify_us, counts.round_us) == (1, 2, 3, 7)
    assert counts.survival(1) == (1.0, 1.0, 0.0)
    assert counts.survival(2) == (1.0, 1.0)
    assert counts.survival(4) is None
    assert counter.take() == RoundCounts()
    assert counts + RoundCounts(num_rounds=2, reached=(1,), kept=(0,)) == replace(
        counts, num_rounds=3, reached=(4, 2, 1), kept=(3, 2, 0)
    )


def test_a_running_target_counts_what_its_reports_say(shared: Path) -> None:
    requests = some_requests(4)

    async def body() -> None:
        async with target_host(target_spec(shared), draft_settings(shared)) as host:
            reports = await finish(host, requests)
            counts = await host.counts()
            records = [record for report in reports.values() for record in report.rounds]
            assert sum(counts.kept) == sum(record.num_accepted for record in records)
            assert sum(counts.reached) <= sum(len(record.draft_tokens) for record in records)
            assert counts.num_drafts <= sum(len(record.draft_tokens) for record in records)
            assert 0 < counts.draft_us + counts.verify_us <= counts.round_us
            assert await host.counts() == RoundCounts()

    run(body)
    assert CONTEXT > 100
