"""A pair's draft moved from place to place in a real Ray, by hand and by its supervisor: tokens never change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest
from pairs import BASE, check_same, demo_tokenizer, ids_of, run_all, silently, sixteen

from twinspark.cluster import supervisor
from twinspark.cluster.errors import SpawnError
from twinspark.cluster.pair import Pair, PairSpec
from twinspark.cluster.ray_session import ray_session
from twinspark.cluster.reserve import Berth, reserve
from twinspark.cluster.survey import HERE, survey_here
from twinspark.deploy.opening import open_pair
from twinspark.deploy.plan_pair import plan_pair
from twinspark.planner import replan
from twinspark.planner.nodes import CPU, Seat
from twinspark.planner.placement import Candidate
from twinspark.planner.timings import Cell, Grid, StepKey, Timings

TOKENS = 96


@pytest.fixture(scope="module", autouse=True)
def ray_here(demo_model: object) -> Iterator[None]:
    with ray_session(None, num_cpus=4, num_gpus=0):
        yield


def planned(timings: Timings | None = None) -> PairSpec:
    """`auto`, with room for every placement."""
    options = BASE.model_copy(update={"dspark_place": "auto", "max_seqs": 4, "context": 512})
    return plan_pair(options, open_pair(options, silently), survey_here(), timings or Timings())


def way(spec: PairSpec, placement: str) -> Candidate:
    return next(c for c in spec.decision.candidates if c.placement == placement)


def chosen(spec: PairSpec, placement: str) -> PairSpec:
    return replace(spec, decision=replace(spec.decision, chosen=way(spec, placement), fallbacks=()))


def test_moved_by_hand_while_requests_run() -> None:
    async def body() -> None:
        spec = planned()
        requests = sixteen(demo_tokenizer(), num_tokens=lambda i: TOKENS - i, stop=())[:4]
        async with Pair.start(chosen(spec, "off"), supervised=False) as pair:
            plain = await run_all(pair, requests)
            running = asyncio.create_task(run_all(pair, requests))
            pids = set()
            for placement in ("cpu", "colocated", "cpu", "off"):
                await pair.move(way(spec, placement), "for the sake of the test")
                assert pair.current.placement == placement
                reports = await pair.reports()
                assert ("draft" in reports) == (placement == "cpu")
                pids |= {report.pid for name, report in reports.items() if name == "draft"}
                await asyncio.sleep(1.0)
            moved = await running
            assert len(pids) == 2, "each draft actor is another process"
            assert [move.destination.split()[0] for move in pair.moves] == ["cpu", "colocated", "cpu", "off"]
            assert "off -> cpu (cpu): for the sake of the test" in pair.reason
            await check_same(pair, requests, plain, moved, "moved")
            assert any(record.draft_tokens for report in moved for record in report.rounds)

    asyncio.run(body())


def test_moved_by_its_supervisor_when_another_place_pays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The timings that were planned with say that `cpu` is fast and `colocated` slow. What is measured says otherwise,
    so the draft moves; requests in flight do not notice.
    """
    monkeypatch.setattr(supervisor, "LOOK_S", 0.5)
    monkeypatch.setattr(supervisor, "LEAST_ROUNDS", 5)
    monkeypatch.setattr(replan, "HOLD_S", 0.4)
    monkeypatch.setattr(replan, "SETTLE_S", 0.5)
    monkeypatch.setattr(replan, "MARGIN", 1.01)
    [here] = survey_here()
    device_class = here.device_class(CPU)

    def flat(ms: float) -> Grid:
        return Grid((Cell(1, 0, ms),))

    wrong = Timings(
        {
            StepKey("verify", device_class): flat(20.0),
            StepKey("verify", device_class, beside=True): flat(20.0),
            StepKey("draft", device_class, beside=True): flat(0.001),
            StepKey("colocated", device_class): flat(0.5),
        },
        {(HERE, HERE): 0.0},
    )

    async def body() -> None:
        spec = planned(wrong)
        assert (spec.decision.placement, spec.decision.measured) == ("cpu", True)
        requests = sixteen(demo_tokenizer(), num_tokens=lambda i: 3 * TOKENS - i, stop=())[:2]
        async with Pair.start(chosen(spec, "off"), supervised=False) as pair:
            plain = await run_all(pair, requests)
        async with Pair.start(spec) as pair:
            moved = await run_all(pair, requests)
            assert pair.moves, "a draft that takes thousands of times what was predicted is not left where it is"
            assert pair.moves[0].origin == "cpu (cpu)"
            assert "measured, " in pair.moves[0].why
            assert pair.num_draft_restarts == 0
            await check_same(pair, requests, plain, moved, "moved by the supervisor")

    with caplog.at_level(logging.WARNING):
        asyncio.run(body())
    assert any("the draft moved from cpu (cpu) to" in record.getMessage() for record in caplog.records)


def test_a_place_that_is_not_there_is_an_error_with_a_deadline() -> None:
    async def body() -> None:
        with pytest.raises(SpawnError, match=r"draft actor was not there within 1 s: .* 999 CPU asked, .* free of"):
            await reserve(Berth(Seat(HERE, CPU), 999), "draft actor", timeout_s=1)
        with pytest.raises(SpawnError, match="node 00000000 is gone"):
            await reserve(Berth(Seat("0" * 56, CPU), 1), "draft actor", timeout_s=1)

    asyncio.run(body())


def test_a_reservation_is_given_back() -> None:
    async def body() -> None:
        for _ in range(3):
            place = await reserve(Berth(Seat(HERE, CPU), 12), "target actor", timeout_s=20)
            place.release()
        spec = planned()
        for placement in ("cpu", "cpu"):
            async with Pair.start(chosen(spec, placement), supervised=False) as pair:
                assert ids_of(await run_all(pair, sixteen(demo_tokenizer(), num_tokens=lambda _: 4, stop=())[:1]))

    asyncio.run(body())
