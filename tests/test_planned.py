"""What nobody has timed is timed once, in a real Ray, and kept; the command line follows the same decision."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import twinspark
from pairs import BASE, silently

from twinspark.cluster.survey import survey_here
from twinspark.deploy.opening import open_pair
from twinspark.deploy.options import Options
from twinspark.deploy.planned import Plan, planned, timings_dir

AUTO = BASE.model_copy(update={"dspark_place": "auto", "max_seqs": 2, "context": 512, "dspark_verify_len": 4})


def planned_here(options: Options) -> Plan:
    return Plan(options, open_pair(options, silently), survey_here())


@pytest.fixture(scope="module")
def timed(demo_model: Path) -> Iterator[Plan]:
    async def body() -> Plan:
        async with planned(AUTO, open_pair(AUTO, silently), to_run=False) as plan:
            return plan

    shutil.rmtree(timings_dir(), ignore_errors=True)  # what other tests' runs left there
    yield asyncio.run(body())
    shutil.rmtree(timings_dir())


def test_every_placement_is_predicted_from_timings(timed: Plan) -> None:
    decision = timed.spec.decision
    assert decision.measured
    assert not timed.missing
    predicted = {c.placement: c.predicted_tok_per_s for c in decision.candidates if c.feasible}
    assert {"off", "colocated", "cpu"} <= predicted.keys()
    assert all(speed is not None and speed > 0 for speed in predicted.values())
    assert decision.chosen.predicted_tok_per_s == max(speed for speed in predicted.values() if speed is not None)
    assert decision.reason.startswith("predicted fastest: ")


def test_the_next_plan_knows_it_all_without_ray(timed: Plan) -> None:
    again = planned_here(AUTO)
    assert not again.missing
    assert again.spec.decision.measured
    assert again.spec.decision.placement == timed.spec.decision.placement


def test_what_was_not_timed_is_missing(timed: Plan) -> None:
    for change in ({"max_seqs": 4}, {"dspark_verify_len": 6}, {"dspark_threads": 2}, {"numerics": "exact"}):
        assert planned_here(AUTO.model_copy(update=change)).missing, change
    assert planned_here(AUTO.model_copy(update={"recalibrate": True})).missing
    fewer = planned_here(AUTO.model_copy(update={"max_seqs": 1}))
    assert not fewer.missing, "one request lies within what was timed for two"
    explicit = planned_here(AUTO.model_copy(update={"dspark_place": "cpu"}))
    assert not explicit.stages, "a placement that was asked for is not timed"
    assert planned_here(AUTO.model_copy(update={"static": True})).spec.decision.measured is False


def test_a_damaged_entry_is_timed_again(timed: Plan) -> None:
    entry = min(timings_dir().glob("*.json"))
    whole = entry.read_bytes()
    try:
        entry.write_bytes(whole[: len(whole) // 2])
        assert planned_here(AUTO).missing
    finally:
        entry.write_bytes(whole)
    assert not planned_here(AUTO).missing


def test_the_command_line_follows_the_same_decision(timed: Plan) -> None:
    settings = ("--max-seqs", "1", "--context", "512", "--dspark-verify-len", "4", "--dtype", "float32")
    document = twinspark("plan", "--json", *settings, TWINSPARK_STATIC="false").document
    assert document["measured"] is True
    before = set(timings_dir().glob("acceptance-*.json"))
    answer = twinspark(
        "generate",
        "--json",
        "--max-new-tokens",
        "8",
        "--temperature",
        "0",
        *settings,
        "Hello",
        TWINSPARK_STATIC="false",
    ).document
    placement = answer["placement"]
    assert placement["name"] == document["decision"]["placement"]
    assert placement["requested"] == "auto"
    assert placement["reason"].startswith("predicted fastest: ")
    kept = set(timings_dir().glob("acceptance-*.json")) - before
    assert len(kept) == (placement["name"] != "off")
