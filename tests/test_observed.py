"""What a run's rounds say of step times, by hand."""

from __future__ import annotations

import pytest
from planning import node

from twinspark.actors.target.request import Report, RoundRecord
from twinspark.cluster.observed import LEAST_ROUNDS, observed
from twinspark.cluster.timings_cache import NEWEST_COUNTS
from twinspark.planner.nodes import CPU, Seat
from twinspark.planner.placement import Placement, Site
from twinspark.planner.predict import Predictor
from twinspark.planner.timings import Cell, Grid, StepKey, Timings

NODE = node("a")
SEAT = Seat(NODE.name, CPU)
CLASS = NODE.device_class(CPU)
VERIFY, BESIDE = StepKey("verify", CLASS), StepKey("verify", CLASS, beside=True)
COLOCATED, DRAFT = StepKey("colocated", CLASS), StepKey("draft", CLASS, beside=True)
KNOWN = Timings(
    {
        VERIFY: Grid((Cell(2, 0, 40.0), Cell(2, 4, 60.0))),
        BESIDE: Grid((Cell(2, 4, 70.0),)),
        COLOCATED: Grid((Cell(2, 4, 10.0),)),
        DRAFT: Grid((Cell(2, 4, 20.0),)),
    },
    {(NODE.name, NODE.name): 2.5},
)
PREDICTOR = Predictor({NODE.name: NODE}, KNOWN, (0.5,) * 4)


def record(number: int, length: int, verify_ms: float, draft_ms: float = 0.0) -> RoundRecord:
    return RoundRecord(number, 9, (1,) * length, 0, 1, int(draft_ms * 1e3), 1500, int(verify_ms * 1e3), 0, 0)


def reports(*rounds: RoundRecord, num_requests: int = 2) -> list[Report]:
    return [Report(i, (1,), "length", rounds, 0, 0) for i in range(num_requests)]


def site(placement: Placement) -> Site:
    return Site(placement, SEAT, SEAT if placement == "cpu" else None)


@pytest.mark.parametrize(
    ("placement", "length", "expected"),
    [
        ("off", 0, {VERIFY: (40.0, 100.0)}),
        ("colocated", 4, {VERIFY: (60.0, 100.0), COLOCATED: (10.0, 30.0)}),
        ("cpu", 4, {BESIDE: (70.0, 100.0), DRAFT: (20.0, 30.0)}),
    ],
)
def test_what_was_believed_is_drawn_towards_what_was_seen(
    placement: Placement, length: int, expected: dict[StepKey, tuple[float, float]]
) -> None:
    rounds = [record(i, length, 100.0 + i - 4, 30.0) for i in range(9)]
    seen = observed(reports(*rounds), site(placement), PREDICTOR, 2)
    assert seen.link_ms == ({(NODE.name, NODE.name): 1.5} if placement == "cpu" else {})
    found = KNOWN.drawn_towards(seen, NEWEST_COUNTS)
    assert found.link_ms == ({(NODE.name, NODE.name): 2.0} if placement == "cpu" else {})
    assert found.steps.keys() == expected.keys()
    for key, (before, seen) in expected.items():
        [cell] = found.steps[key].cells
        assert (cell.num_requests, cell.length) == (2, length)
        assert cell.ms == pytest.approx(before + NEWEST_COUNTS * (seen - before))


def test_a_length_that_was_not_timed_is_drawn_from_what_lies_between() -> None:
    rounds = [record(i, 2, 90.0, 8.0) for i in range(LEAST_ROUNDS)]
    found = KNOWN.drawn_towards(observed(reports(*rounds), site("colocated"), PREDICTOR, 2), NEWEST_COUNTS)
    [cell] = found.steps[VERIFY].cells
    assert cell.ms == pytest.approx((50.0 + 90.0) / 2)


@pytest.mark.parametrize(("num_requests", "length"), [(16, 4), (16, 0), (2, 7), (1, 0)])
def test_a_size_beyond_those_that_were_timed_is_what_was_seen(num_requests: int, length: int) -> None:
    """A guess from smaller passes is no belief: 16 requests once looked as cheap as a line through 1 and 4 had it."""
    seen = Timings({VERIFY: Grid((Cell(num_requests, length, 300.0),))})
    assert KNOWN.drawn_towards(seen, NEWEST_COUNTS) == seen


def test_what_says_nothing() -> None:
    few = [record(i, 4, 100.0, 30.0) for i in range(LEAST_ROUNDS - 1)]
    assert not observed(reports(*few), site("colocated"), PREDICTOR, 2).steps
    many = [record(i, 4, 100.0, 30.0) for i in range(40)]
    assert not observed(reports(*many), site("colocated"), PREDICTOR, 3).steps, "rounds of fewer requests"
    undrafted = [record(i, 0, 100.0) for i in range(40)]
    assert not observed(reports(*undrafted), site("colocated"), PREDICTOR, 2).steps, "a lost draft is not off"
    assert not observed(reports(*many), site("off"), PREDICTOR, 2).steps
    uneven = [
        Report(i, (1,), "length", tuple(record(k, 4 if i else 3, 100.0, 30.0) for k in range(40)), 0, 0) for i in (0, 1)
    ]
    assert not observed(uneven, site("colocated"), PREDICTOR, 2).steps


def test_what_is_not_known_is_what_was_seen() -> None:
    seen = Timings({VERIFY: Grid((Cell(1, 2, 5.0),))}, {("x", "y"): 3.0}, {"c": 1.0})
    assert Timings().drawn_towards(seen, 0.5) == seen
    assert KNOWN.drawn_towards(seen, 0.5).link_ms == {("x", "y"): 3.0}
