"""The planner's choice: a table worked out by hand, and what must hold on any cluster (DESIGN, invariant 6)."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import Sizes, all_timings, demand, gpu, node, nodes, sizes, timings

from twinspark.planner.candidates import candidates
from twinspark.planner.decide import LEAST_CPUS_FOR_CPU_DRAFT, decide
from twinspark.planner.nodes import CPU, GIB, Node, Seat, seats
from twinspark.planner.placement import (
    PLACEMENTS,
    Candidate,
    Decision,
    Demand,
    Placement,
    PlacementError,
    Requested,
    TargetDoesNotFitError,
)
from twinspark.planner.prices import Prices
from twinspark.planner.rooms import DRAFT_MARGIN, needs, shortage
from twinspark.planner.timings import Timings

EXAMPLES = settings(max_examples=2000, deadline=None)
NOTHING_MEASURED = Timings()
FAST_GPU = {"H200": 4.0}
requests = st.sampled_from(["auto", "off", "colocated", "cpu", "gpu"])


def decided(cluster: list[Node], asked: Demand, size: Sizes, times: Timings) -> Decision | None:
    """None where nothing can be had."""
    try:
        return decide(cluster, asked, size, times)
    except PlacementError:
        return None


# A table -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cluster", "chosen", "target", "draft"),
    [
        ([node()], "colocated", "cpu", None),
        ([node(cpus=2)], "colocated", "cpu", None),
        ([node(gpus=(gpu(free=70 * GIB),))], "colocated", "cuda:0", None),
        ([node(gpus=(gpu(free=13 * GIB),))], "colocated", "cuda:0", None),
        # 12.25 GiB free of 80: 4.25 of headroom hold the target (4), not 1.15 x 0.5 more: the CPU takes the draft
        ([node(gpus=(gpu(free=12 * GIB + GIB // 4),))], "cpu", "cuda:0", "cpu"),
        ([node(cpus=2, gpus=(gpu(free=12 * GIB + GIB // 4),))], "off", "cuda:0", None),
        # a second GPU with a little room (case 8: one is full while the other is empty)
        (
            [node(gpus=(gpu(0, free=12 * GIB + GIB // 4), gpu(1, free=10 * GIB)))],
            "gpu",
            "cuda:0",
            "cuda:1",
        ),
        ([node(gpus=(gpu(0, free=0), gpu(1, free=70 * GIB)))], "colocated", "cuda:1", None),
        ([node(gpus=(gpu(free=None),))], "colocated", "cpu", None),
    ],
)
def test_without_measurements_a_static_rule_decides(
    cluster: list[Node], chosen: Placement, target: str, draft: str | None
) -> None:
    decision = decide(cluster, demand(), Sizes(), NOTHING_MEASURED)
    seat = decision.chosen.draft
    assert (decision.placement, decision.chosen.target.device) == (chosen, target)
    assert (None if seat is None else seat.device) == draft
    assert not decision.measured
    assert decision.reason.startswith("not measured")


def test_measured_the_fastest_wins_and_the_reason_names_the_others() -> None:
    cluster = [node(gpus=(gpu(free=70 * GIB),))]
    # acceptance 1 + .5 + .25 = 1.75 with two drafts; off 1000/4 = 250, colocated 1750/(4+1) = 350,
    # cpu 1750/(4+0.5+0.5) = 350: equal, and the plainer one wins; gpu 1750/(4+1+0.5) = 318
    times = timings(
        verify=FAST_GPU, draft={"H200": 1.0, "EPYC x16": 0.5}, colocated={"H200": 1.0}, link={("a", "a"): 0.5}
    )
    decision = decide(cluster, demand(verify_length=2), Sizes(), times)
    speeds = {
        (c.placement, c.seat.device): c.predicted_tok_per_s
        for c in decision.candidates
        if c.target.device == "cuda:0" and c.predicted_tok_per_s is not None
    }
    assert speeds == {
        ("off", "cuda:0"): 250.0,
        ("colocated", "cuda:0"): 350.0,
        ("cpu", "cpu"): 350.0,
        ("gpu", "cuda:0"): pytest.approx(1750 / 5.5),
    }
    assert decision.placement == "colocated"
    assert decision.measured
    assert decision.reason == "predicted fastest: 350 tokens/s (cpu 350, gpu 318.2, off 250)"


def test_the_verify_length_is_the_best_one_unless_it_was_asked_for() -> None:
    from twinspark.planner.timings import Cell, Grid, StepKey

    # 10 ms for one row, 2 ms more for every draft; colocated 1 ms. tokens/ms for 1..5 drafts:
    # 1.5/13, 1.75/15, 1.875/17, 1.9375/19, 1.96875/21: two drafts are best
    verify = Grid((Cell(1, 0, 10.0), Cell(1, 5, 20.0)))
    times = Timings({StepKey("verify", "EPYC x16"): verify, StepKey("colocated", "EPYC x16"): Grid((Cell(1, 0, 1.0),))})
    best = decide([node()], demand(), Sizes(), times).chosen
    assert (best.placement, best.verify_length) == ("colocated", 2)
    assert best.predicted_tok_per_s == pytest.approx(1750 / 15)
    assert decide([node()], demand(verify_length=4), Sizes(), times).chosen.verify_length == 4


def test_off_wins_where_nothing_is_predicted_faster() -> None:
    times = timings(verify={"EPYC x16": 10.0}, colocated={"EPYC x16": 30.0}, draft={"EPYC x16": 30.0})
    decision = decide([node()], demand(), Sizes(), times)
    assert decision.placement == "off"
    assert "predicted fastest: 100 tokens/s (colocated 49.22)" in decision.reason


def test_memory_that_the_draft_takes_costs_requests() -> None:
    # 20 GiB of headroom: target 4 + 1 a request: 16 requests. Beside the head (1.15 x 4) 11: 4 + 11 + 4.6 = 19.6
    cluster = [node(gpus=(gpu(free=28 * GIB),), ram=0)]
    size = Sizes(target_bytes=4 * GIB, per_request_bytes=1 * GIB, colocated_bytes=4 * GIB)
    asked = demand(num_requests=16, verify_length=2)
    for colocated_ms, expected in ((0.5, "colocated"), (2.0, "off")):
        # off: 16 x 1000/4 = 4000; colocated: 11 x 1750/4.5 = 4278, or 11 x 1750/6 = 3208
        decision = decide(cluster, asked, size, timings(verify=FAST_GPU, colocated={"H200": colocated_ms}))
        assert decision.placement == expected
        [beside] = [c for c in decision.candidates if c.placement == "colocated" and c.target.device == "cuda:0"]
        assert beside.num_requests == 11
        assert "its memory costs 5 of 16 requests at once" in beside.why
    unmeasured = decide(cluster, asked, size, NOTHING_MEASURED)
    assert unmeasured.placement == "off", "without a measurement nobody's requests are given up"


def test_an_idle_cpu_wins_on_cost_against_a_share_of_the_gpu() -> None:
    cluster = [node(gpus=(gpu(free=70 * GIB),))]
    times = timings(verify=FAST_GPU, draft={"EPYC x16": 1.5}, colocated={"H200": 1.0}, link={("a", "a"): 0.5})
    prices = Prices(gpu_hour={"*": 4.0}, core_hour=0.01)
    size = Sizes(target_bytes=40 * GIB, colocated_bytes=16 * GIB)
    # colocated: 350 tok/s for 4 x 56/80 + 1 core = 2.81; cpu: 291.7 for 4 x 40/80 + 2 cores = 2.02; off 250 for 2.01
    asked = demand(verify_length=2, prices=prices)
    assert decide(cluster, asked, size, times).placement == "colocated"
    decision = decide(cluster, replace(asked, objective="cost"), size, times)
    assert decision.placement == "cpu"
    assert decision.chosen.price_per_hour == pytest.approx(2.02)
    assert "predicted cheapest" in decision.reason
    assert "tokens per unit of money" in decision.reason


def test_without_prices_cost_cannot_be_told() -> None:
    times = timings(verify={"EPYC x16": 10.0})
    decision = decide([node()], demand(objective="cost"), Sizes(), times)
    assert not decision.measured


def test_a_target_that_fits_nowhere_is_an_error_with_the_numbers() -> None:
    cluster = [node(ram=10 * GIB, gpus=(gpu(free=9 * GIB),))]
    with pytest.raises(TargetDoesNotFitError) as error:
        decide(cluster, demand(num_requests=3), Sizes(target_bytes=20 * GIB), NOTHING_MEASURED)
    message = str(error.value)
    assert "3 requests at once" in message
    assert "host-a cuda:0 wanted 20.00 GiB, headroom 1.00 GiB" in message
    assert "host-a cpu wanted 20.00 GiB, headroom 3.60 GiB" in message
    assert "\n" not in message


def test_a_gpu_that_nobody_timed_does_not_lose_to_a_cpu_that_somebody_did() -> None:
    cluster = [node(gpus=(gpu(free=70 * GIB),))]
    decision = decide(cluster, demand(), Sizes(), timings(verify={"EPYC x16": 50.0}))
    assert decision.chosen.target.device == "cuda:0"
    assert not decision.measured


@pytest.mark.parametrize("requested", ["colocated", "cpu", "gpu"])
def test_a_draft_needs_a_head(requested: Requested) -> None:
    with pytest.raises(PlacementError, match=f"placement {requested} needs a draft head"):
        decide([node(gpus=(gpu(free=70 * GIB),))], demand(requested), Sizes(has_head=False), NOTHING_MEASURED)


def test_gpu_without_a_gpu() -> None:
    with pytest.raises(PlacementError, match="placement gpu needs a GPU, found none"):
        decide([node()], demand("gpu"), Sizes(), NOTHING_MEASURED)


def test_steps_down_stay_with_the_target_and_never_below_off() -> None:
    cluster = [node(gpus=(gpu(0, free=70 * GIB), gpu(1, free=70 * GIB)))]
    beside = {"H200": 3.0}
    fast = timings(verify=FAST_GPU, draft={"H200": 0.2, "EPYC x16": 1.0}, colocated=beside, link={("a", "a"): 0.1})
    decision = decide(cluster, demand(), Sizes(), fast)
    assert decision.placement == "gpu"
    assert [c.placement for c in decision.fallbacks] == ["cpu", "off"]
    assert {c.target for c in decision.fallbacks} == {decision.chosen.target}
    slow = timings(verify=FAST_GPU, draft={"H200": 0.2, "EPYC x16": 20.0}, colocated=beside, link={("a", "a"): 0.1})
    assert [c.placement for c in decide(cluster, demand(), Sizes(), slow).fallbacks] == ["off"]


# What holds on any cluster -------------------------------------------------------------------------------------------


def short(requested: Requested = "auto", **changes: object) -> Demand:
    """At most two drafts: fewer lengths to try for each of thousands of examples."""
    return demand(requested, most_drafts=2, **changes)


def possible_placements(cluster: list[Node], asked: Demand, size: Sizes) -> set[Placement]:
    """By brute force over every pair of seats, one request at once beside a draft."""
    room = {seat: n.headroom_bytes(seat.device) for n in cluster for seat in seats([n])}
    kinds = {seat: "cpu" if seat.device == CPU else "cuda" for seat in room}
    length = asked.priced_length
    found: set[Placement] = set()
    for target in room:
        alone = needs(target, size.target(kinds[target], asked.num_requests, 0))
        if shortage(room, alone) is not None:
            continue
        found.add("off")
        if not size.has_head:
            continue
        one = needs(target, size.target(kinds[target], 1, length))
        beside = needs(target, size.colocated(kinds[target], 1, length), DRAFT_MARGIN)
        if shortage(room, one + beside) is None:
            found.add("colocated")
        for draft in room:
            apart = needs(draft, size.draft(kinds[draft], 1, length), DRAFT_MARGIN)
            if shortage(room, one + apart) is None:
                found.add("cpu" if draft.device == CPU else "gpu")
    return found


def feasible(found: list[Candidate]) -> set[Placement]:
    return {candidate.placement for candidate in found if candidate.feasible}


@EXAMPLES
@given(nodes(), sizes(), st.integers(1, 4))
def test_looking_at_the_roomiest_only_loses_no_placement(cluster: list[Node], size: Sizes, num_requests: int) -> None:
    asked = short(num_requests=num_requests)
    assert feasible(candidates(cluster, asked, size, NOTHING_MEASURED)) == possible_placements(cluster, asked, size)


@EXAMPLES
@given(st.data(), nodes(), sizes(), st.integers(1, 4))
def test_never_more_than_the_headroom(data: st.DataObject, cluster: list[Node], size: Sizes, num_requests: int) -> None:
    decision = decided(cluster, short(num_requests=num_requests), size, data.draw(all_timings(cluster)))
    if decision is None:
        return
    by_name = {n.name: n for n in cluster}
    for candidate in (decision.chosen, *decision.fallbacks):
        assert candidate.feasible
        kind = "cpu" if candidate.target.device == CPU else "cuda"
        priced = 0 if candidate.placement == "off" else 5
        parts = [(candidate.target, size.target(kind, candidate.num_requests, priced), 1.0)]
        if candidate.placement == "colocated":
            parts.append((candidate.target, size.colocated(kind, candidate.num_requests, 5), DRAFT_MARGIN))
        elif candidate.draft is not None:
            draft_kind = "cpu" if candidate.draft.device == CPU else "cuda"
            parts.append((candidate.draft, size.draft(draft_kind, candidate.num_requests, 5), DRAFT_MARGIN))
        taken: dict[Seat, float] = {}
        for seat, footprint, margin in parts:
            taken[seat] = taken.get(seat, 0) + margin * footprint.device_bytes
            ram = Seat(seat.node, CPU)
            taken[ram] = taken.get(ram, 0) + margin * footprint.host_bytes
        for seat, amount in taken.items():
            room = by_name[seat.node].headroom_bytes(seat.device)
            assert amount == 0 or (room is not None and amount <= room + len(parts))


@EXAMPLES
@given(st.data(), nodes(), sizes(), st.integers(1, 4), st.sampled_from(["speed", "cost"]))
def test_the_order_of_nodes_does_not_matter(
    data: st.DataObject, cluster: list[Node], size: Sizes, num_requests: int, objective: str
) -> None:
    asked = short(num_requests=num_requests, objective=objective, prices=Prices({"*": 2.0}, 0.05))
    times = data.draw(all_timings(cluster))
    shuffled = data.draw(st.permutations(cluster))
    assert decided(cluster, asked, size, times) == decided(shuffled, asked, size, times)


@EXAMPLES
@given(st.data(), nodes(), sizes(), st.integers(1, 4))
def test_more_headroom_never_loses_a_placement(
    data: st.DataObject, cluster: list[Node], size: Sizes, num_requests: int
) -> None:
    asked = short(num_requests=num_requests)
    before = feasible(candidates(cluster, asked, size, NOTHING_MEASURED))
    index = data.draw(st.integers(0, len(cluster) - 1))
    grown, more = cluster[index], data.draw(st.integers(0, 40)) * GIB
    if grown.gpus and data.draw(st.booleans()):
        first = grown.gpus[0]
        first = replace(first, free_bytes=more if first.free_bytes is None else first.free_bytes + more)
        grown = replace(grown, gpus=(first, *grown.gpus[1:]))
    else:
        ram = grown.available_ram_bytes
        grown = replace(grown, available_ram_bytes=more if ram is None else ram + more)
    roomier = [*cluster[:index], grown, *cluster[index + 1 :]]
    assert before <= feasible(candidates(roomier, asked, size, NOTHING_MEASURED))


@EXAMPLES
@given(st.data(), nodes(), sizes(), st.integers(1, 4))
def test_off_if_and_only_if_nothing_is_feasible_or_predicted_faster(
    data: st.DataObject, cluster: list[Node], size: Sizes, num_requests: int
) -> None:
    decision = decided(cluster, short(num_requests=num_requests), size, data.draw(all_timings(cluster)))
    if decision is None or not decision.measured:
        return
    drafted = [c for c in decision.candidates if c.feasible and c.placement != "off"]
    offs = [c for c in decision.candidates if c.feasible and c.placement == "off"]
    best_off = max((c.predicted_tok_per_s or 0.0) for c in offs)
    faster = any((c.predicted_tok_per_s or 0.0) > best_off for c in drafted)
    assert (decision.placement == "off") == (not faster)
    assert decision.chosen.predicted_tok_per_s == max(
        c.predicted_tok_per_s for c in drafted + offs if c.predicted_tok_per_s is not None
    )


@EXAMPLES
@given(st.data(), nodes(), sizes(), requests.filter(lambda name: name != "auto"))
def test_an_explicit_placement_always_wins(
    data: st.DataObject, cluster: list[Node], size: Sizes, requested: Requested
) -> None:
    has_gpu = any(n.gpus for n in cluster)
    possible = requested == "off" or (size.has_head and (requested != "gpu" or has_gpu))
    decision = decided(cluster, short(requested), size, data.draw(all_timings(cluster)))
    if not possible:
        assert decision is None
        return
    assert decision is not None
    assert decision.placement == decision.requested == requested
    assert decision.reason.startswith("asked for; ")
    assert not decision.fallbacks
    if any(c.feasible and c.placement == requested for c in decision.candidates):
        assert decision.chosen.feasible


@EXAMPLES
@given(st.data(), nodes(), sizes(), st.integers(1, 4))
def test_the_draft_goes_before_the_requests_do(
    data: st.DataObject, cluster: list[Node], size: Sizes, num_requests: int
) -> None:
    """The context is never touched (there is no such word here); where nothing was measured, no request is given up."""
    decision = decided(cluster, short(num_requests=num_requests), size, NOTHING_MEASURED)
    headless = decided(cluster, short(num_requests=num_requests), replace(size, has_head=False), NOTHING_MEASURED)
    assert (decision is None) == (headless is None), "a head never costs the target its place"
    if decision is not None:
        assert decision.chosen.num_requests == num_requests


@EXAMPLES
@given(st.data(), nodes(), sizes())
def test_every_candidate_explains_itself(data: st.DataObject, cluster: list[Node], size: Sizes) -> None:
    decision = decided(cluster, short(), size, data.draw(all_timings(cluster)))
    if decision is None:
        return
    assert decision.chosen in decision.candidates
    for candidate in decision.candidates:
        assert candidate.why
        assert "\n" not in candidate.why
        assert candidate.placement in PLACEMENTS
        assert (candidate.draft is None) == (candidate.placement in ("off", "colocated"))
    assert LEAST_CPUS_FOR_CPU_DRAFT == 4
    keys = [(c.placement, c.target, c.draft) for c in decision.candidates]
    assert len(keys) == len(set(keys))
    assert list(itertools.chain(keys)) == keys
