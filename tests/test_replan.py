"""Deciding again while a pair runs: measurements count, and nothing moves back and forth. Pure, told the time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import Sizes, all_timings, demand, gpu, node, nodes, sizes, timings

from twinspark.planner.decide import PlanInputs
from twinspark.planner.nodes import GIB, Seat
from twinspark.planner.placement import Candidate, Decision, PlacementError, Site
from twinspark.planner.replan import (
    HOLD_S,
    RETRY_S,
    SETTLE_S,
    Measured,
    Watch,
    consider,
    corrected,
    elsewhere,
)
from twinspark.planner.timings import StepKey

# off 1000/4 = 250 tokens/s; colocated 1750/5 = 350; cpu 1750/(4 + 0.4 + 0.1) = 388.9
TIMES = timings(
    verify={"H200": 4.0}, draft={"EPYC x16": 0.4, "H200": 9.0}, colocated={"H200": 1.0}, link={("a", "a"): 0.1}
)


def inputs_of(**changes: object) -> PlanInputs:
    cluster = (node(gpus=(gpu(free=70 * GIB),)),)
    return PlanInputs(cluster, demand(verify_length=2, **changes), Sizes(), TIMES)  # type: ignore[arg-type]


def at(decision: Decision, placement: str) -> Candidate:
    return next(c for c in decision.candidates if c.placement == placement and c.target.device == "cuda:0")


def measured(**changes: float | tuple[float, ...] | None) -> Measured:
    """As predicted for `cpu`, but for `changes`."""
    figures = {
        "num_requests": 1.0,
        "num_drafts": 2.0,
        "draft_ms": 0.4,
        "link_ms": 0.1,
        "verify_ms": 4.0,
        "round_ms": 4.5,
        "survival": (0.5, 0.5),
    }
    return Measured(**(figures | changes))  # type: ignore[arg-type]


def look_for(seconds: float, watch: Watch, current: Candidate, decision: Decision, inputs: PlanInputs, **more: object):
    """Looks every 5 s from 100 s on: the first move and when, or None."""
    now_s = 100.0
    while now_s <= 100.0 + seconds:
        watch, move = consider(watch, now_s, current, decision.candidates, inputs, **more)  # type: ignore[arg-type]
        if move is not None:
            return watch, move, now_s
        now_s += 5.0
    return watch, None, now_s


def test_what_was_predicted_moves_nothing() -> None:
    inputs = inputs_of()
    decision = inputs.decide()
    assert decision.placement == "cpu"
    seen = corrected(inputs, decision.chosen, measured())
    assert look_for(600, Watch(0.0), decision.chosen, decision, seen)[1] is None


def test_a_slow_draft_moves_beside_the_target_after_a_while() -> None:
    inputs = inputs_of()
    decision = inputs.decide()
    seen = corrected(inputs, decision.chosen, measured(draft_ms=3.0, round_ms=7.1))  # 1750/7.1 = 246 < 350
    watch, move, when_s = look_for(600, Watch(0.0), decision.chosen, decision, seen)
    assert move is not None
    assert (move.to.placement, when_s) == ("colocated", 100.0 + HOLD_S)
    assert "measured, colocated is worth 1.42 times cpu (350 against 246.5)" in move.why
    assert watch.moved_s == when_s
    assert not watch.switched_off


def test_a_slow_link_is_seen_too() -> None:
    inputs = inputs_of()
    decision = inputs.decide()
    seen = corrected(inputs, decision.chosen, measured(link_ms=20.0, round_ms=24.5))
    _, move, _ = look_for(600, Watch(0.0), decision.chosen, decision, seen)
    assert move is not None
    assert move.to.placement == "colocated"


def test_nothing_accepted_switches_off_and_is_tried_again_later_each_time() -> None:
    inputs = inputs_of()
    decision = inputs.decide()
    seen = corrected(inputs, decision.chosen, measured(survival=(0.01, 0.0)))  # 1010/4.5 = 224 < 250
    watch, move, when_s = look_for(600, Watch(0.0), decision.chosen, decision, seen)
    assert move is not None
    assert move.to.placement == "off"
    assert watch.switched_off
    off = at(decision, "off")
    # While off nothing new is learnt of acceptance: the same inputs, until the trial is due.
    watch, again, _ = look_for(RETRY_S, replace(watch, moved_s=100.0), off, decision, seen)
    assert again is not None
    assert again.to.placement != "off"
    assert again.why == f"drafting is tried again after {RETRY_S:.0f} s without"
    assert watch.retry_s == 2 * RETRY_S
    # It does not pay this time either: off again, and the next trial comes later.
    watch, move, _ = look_for(600, watch, again.to, decision, seen)
    assert move is not None
    assert move.to.placement == "off"
    assert watch.retry_s == 2 * RETRY_S
    assert when_s < 200


def test_a_short_spell_moves_nothing() -> None:
    inputs = inputs_of()
    decision = inputs.decide()
    good = corrected(inputs, decision.chosen, measured())
    bad = corrected(inputs, decision.chosen, measured(draft_ms=3.0, round_ms=7.1))
    watch = Watch(0.0)
    for turn in range(200):
        seen = good if turn % 3 == 2 else bad  # never bad for as long as HOLD_S: two looks, 5 s apart
        watch, move = consider(watch, 100.0 + 5.0 * turn, decision.chosen, decision.candidates, seen)
        assert move is None


def test_a_small_gain_moves_nothing() -> None:
    inputs = inputs_of()
    decision = inputs.decide()
    seen = corrected(inputs, decision.chosen, measured(draft_ms=1.2, round_ms=5.3))  # 330 against 350: 6%
    assert look_for(600, Watch(0.0), decision.chosen, decision, seen)[1] is None


def test_a_new_place_is_measured_before_the_next_move() -> None:
    inputs = inputs_of()
    decision = inputs.decide()
    seen = corrected(inputs, decision.chosen, measured(draft_ms=3.0, round_ms=7.1))
    _, move, when_s = look_for(600, Watch(moved_s=95.0), decision.chosen, decision, seen)
    assert move is not None
    assert when_s >= 95.0 + SETTLE_S


def test_a_barred_place_is_left_alone() -> None:
    inputs = inputs_of()
    decision = inputs.decide()
    seen = corrected(inputs, decision.chosen, measured(draft_ms=9.0, round_ms=13.1))
    seat = Seat("a", "cuda:0")
    barred = {Site("colocated", seat, None)}
    _, move, _ = look_for(600, Watch(0.0), decision.chosen, decision, seen, barred=barred)
    assert move is not None
    assert move.to.placement == "off", "250 beats 1750/13.1"


def test_measurements_take_the_place_of_predictions() -> None:
    inputs = inputs_of(num_requests=4)
    decision = inputs.decide()
    seen = corrected(
        inputs,
        decision.chosen,
        measured(num_requests=2.2, draft_ms=0.8, link_ms=0.3, verify_ms=6.0, round_ms=7.5, survival=(0.9,)),
    )
    assert seen.demand.num_requests == 2
    assert seen.demand.survival == (0.9, 0.5, 0.5, 0.5, 0.5)
    assert seen.timings.steps[StepKey("verify", "H200")].ms(1, 2) == pytest.approx(6.0)
    assert seen.timings.steps[StepKey("draft", "EPYC x16")].ms(1, 2) == pytest.approx(0.8)
    assert seen.timings.link("a", "a") == 0.3
    assert seen.timings.overhead_ms == {"H200": pytest.approx(0.4)}


def test_a_lost_node_gives_the_draft_to_another() -> None:
    both = (node("a", gpus=(gpu(free=70 * GIB),)), node("b"), node("c", ram=3 * GIB))
    links = {("a", "b"): 0.1, ("a", "c"): 0.1, ("a", "a"): 5.0}
    inputs = PlanInputs(both, demand(verify_length=2), Sizes(), replace(TIMES, link_ms=links))
    chosen = inputs.decide().chosen
    assert chosen.draft == Seat("b", "cpu")
    # b is gone, and the target has taken its memory already: what is left would not hold it once more.
    left = (node("a", gpus=(gpu(free=10 * GIB),)), node("c", ram=3 * GIB))
    other = elsewhere(replace(inputs, nodes=left), chosen, 1)
    assert other is not None
    assert (other.placement, other.target) == ("colocated", chosen.target)
    asked = replace(inputs, nodes=left, demand=demand("cpu", verify_length=2))
    other = elsewhere(asked, chosen, 1)
    assert other is not None
    assert other.draft == Seat("a", "cpu"), "what a person asked for stays that"
    empty = replace(asked, nodes=(node("a", ram=0, gpus=(gpu(free=10 * GIB),)),))
    assert elsewhere(empty, chosen, 1) is None


@settings(max_examples=2000, deadline=None)
@given(st.data(), nodes(most=2), sizes(), st.lists(st.booleans(), max_size=30))
def test_moves_are_rare_and_stay_with_the_target(data, cluster, size, spells) -> None:  # type: ignore[no-untyped-def]
    inputs = PlanInputs(tuple(cluster), demand(verify_length=2), size, data.draw(all_timings(cluster)))
    try:
        decision = inputs.decide()
    except PlacementError:
        return
    current, watch, moves = decision.chosen, Watch(0.0), []
    for turn, slow in enumerate(spells):
        now_s = 5.0 * turn
        figures = measured(draft_ms=9.0, round_ms=20.0) if slow else measured()
        inputs = corrected(inputs, current, figures)
        watch, move = consider(watch, now_s, current, decision.candidates, inputs)
        if move is not None:
            assert move.to.feasible
            assert move.to.target == current.target
            assert Site(move.to.placement, move.to.target, move.to.draft) != Site(
                current.placement, current.target, current.draft
            )
            moves.append(now_s)
            current = move.to
    assert all(later - earlier >= SETTLE_S for earlier, later in pairwise(moves))
