"""How long the target waits for a proposal."""

from __future__ import annotations

import pytest

from twinspark.actors.target import deadline
from twinspark.actors.target.deadline import RoundDeadline


def test_a_deadline_follows_the_measured_rounds() -> None:
    limit = RoundDeadline()
    for _ in range(deadline.ENOUGH):
        assert limit.wait_s(catching_up=False) == deadline.FIRST_S
        limit.observe(0.5, catching_up=False)
    assert limit.wait_s(catching_up=False) == pytest.approx(deadline.TIMES * 0.5)
    limit.observe(5.0, catching_up=False)
    assert limit.wait_s(catching_up=False) == pytest.approx(deadline.TIMES * 0.5), "one slow round sets no standard"
    assert limit.wait_s(catching_up=True) == deadline.CATCH_UP_S


@pytest.mark.parametrize(("round_s", "wait_s"), [(1e-4, deadline.LEAST_S), (100.0, deadline.MOST_S)])
def test_a_deadline_has_bounds(round_s: float, wait_s: float) -> None:
    limit = RoundDeadline()
    for _ in range(200):
        limit.observe(round_s, catching_up=False)
    assert limit.wait_s(catching_up=False) == wait_s


def test_rounds_that_catch_up_set_no_standard() -> None:
    limit = RoundDeadline()
    for _ in range(20):
        limit.observe(0.5, catching_up=False)
        limit.observe(9.0, catching_up=True)
    assert limit.wait_s(catching_up=False) == pytest.approx(deadline.TIMES * 0.5)
