"""A fleet's plan: cases worked out by hand, and what must hold on any fleet (the rules are at the top of fleet.py)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import Sizes, demand, gpu, node, nodes, sizes, timings

from twinspark.planner.candidates import candidates
from twinspark.planner.decide import decide, score
from twinspark.planner.fleet import Fleet, plan_fleet
from twinspark.planner.fleet_layouts import Device, LayoutMaker, Links, Where
from twinspark.planner.fleet_plans import Wanted
from twinspark.planner.node_groups import group_equal, representatives
from twinspark.planner.nodes import CPU, GIB, Gpu, Node, Seat
from twinspark.planner.placement import Demand, Requested
from twinspark.planner.prices import Prices
from twinspark.planner.rooms import DRAFT_MARGIN
from twinspark.planner.timings import Timings

EXAMPLES = settings(max_examples=2000, deadline=None)
NEAR = Links(0.5, 0.5)
CPU_CLASSES = ("EPYC x1", "EPYC x2", "EPYC x8")  # of planning.nodes
PRICES = Prices({"*": 4.0}, 0.01)
REQUESTS: tuple[Requested, ...] = ("auto", "auto", "auto", "off", "colocated", "cpu", "gpu")
# 250 tokens/s alone, 350 with two drafts beside the target, 1750 / 4.6 = 380.4 with the draft on another node's EPYC
TIMES = timings(verify={"H200": 4.0, "EPYC x16": 50.0}, draft={"EPYC x16": 0.1}, colocated={"H200": 1.0})


def eight(free: int = 70 * GIB, total: int = 80 * GIB) -> tuple[Gpu, ...]:
    return tuple(gpu(i, free=free, total=total) for i in range(8))


def fleet(cluster: list[Node], wanted: Wanted, asked: Demand | None = None, size: Sizes | None = None) -> Fleet:
    return plan_fleet(cluster, asked or demand(verify_length=2), size or Sizes(), TIMES, wanted, NEAR)


# By hand -------------------------------------------------------------------------------------------------------------


def test_as_many_pairs_as_the_demand_needs_on_as_few_nodes() -> None:
    cluster = [node(f"n{i}", gpus=eight(), cpus=8, cpu_model="slow") for i in range(3)]
    found = fleet(cluster, Wanted(tok_per_s=3000.0))
    # 3000 / 350 = 8.6: nine pairs, a whole node and one GPU more; 8 + 8 + 8 GPUs less 9, as many cores
    assert (found.met, found.num_pairs, found.measured) == (True, 9, True)
    assert found.tok_per_s == pytest.approx(9 * 350)
    assert found.most == pytest.approx(24 * 350)
    assert [(run.nodes, run.each) for run in found.parts[0].targets] == [(("n0",), 8), (("n1",), 1)]
    assert (found.free.gpus, found.free.cores) == (15, 15)
    assert found.free.vram_bytes == 24 * 62 * GIB - 9 * (4 * GIB + int(1.15 * GIB / 2))
    assert "3,000 tokens/s can be met: 9 pairs give 9 requests at once, 3,150 tokens/s" in found.reason


def test_what_cannot_be_met_says_how_much_can() -> None:
    found = fleet([node("a", gpus=eight(), cpus=8, cpu_model="slow")], Wanted(tok_per_s=1e6))
    assert not found.met
    assert found.num_pairs == 8
    assert found.reason == "1,000,000 tokens/s cannot be met: all nodes together give at most 2,800"


def test_an_idle_cpu_node_takes_the_drafts_of_others() -> None:
    cluster = [node("gpus", gpus=eight(), cpus=8, cpu_model="slow"), node("idle", ram=8 * GIB, total=8 * GIB)]
    found = fleet(cluster, Wanted(tok_per_s=8 * 360.0))
    # 8 - 2 of reserve = 6 GiB of headroom hold 5 drafts of 1.15 GiB: 5 x 380.4 + 3 x 350 = 2952
    assert [(p.layout.placement, p.layout.where, p.num_pairs) for p in found.parts] == [
        ("cpu", "other node", 5),
        ("colocated", "same device", 3),
    ]
    assert found.parts[0].drafts[0].nodes == ("idle",)
    assert found.tok_per_s == pytest.approx(5 * 1750 / 4.6 + 3 * 350)
    assert not fleet(cluster[:1], Wanted(tok_per_s=8 * 360.0)).met


def test_a_cpu_fleet_has_a_pair_a_node() -> None:
    times = timings(verify={"EPYC x16": 50.0}, colocated={"EPYC x16": 20.0})
    cluster = [node(f"n{i}") for i in range(10)]
    # 1750 / 70 = 25 tokens/s a pair
    found = plan_fleet(cluster, demand(verify_length=2), Sizes(), times, Wanted(tok_per_s=100.0))
    assert (found.met, found.num_pairs, found.free.cores) == (True, 4, 6 * 16)
    assert plan_fleet(cluster, demand(verify_length=2), Sizes(), times, Wanted(tok_per_s=251.0)).most == 250.0


def test_the_objective_cost_takes_the_cheaper_devices() -> None:
    times = timings(verify={"H200": 4.0, "T4": 8.0}, colocated={"H200": 1.0, "T4": 2.0})
    cards = tuple(gpu(i, free=70 * GIB, name="T4") for i in range(4))
    cluster = [node("big", gpus=eight()), node("small", gpus=cards)]
    prices = Prices({"H200": 8.0, "T4": 2.0}, 0.0)
    for objective, model, pairs in (("speed", "H200", 2), ("cost", "T4", 3)):
        # 350 and 175 tokens/s a pair, at 4 to 1 of money
        asked = demand(verify_length=2, objective=objective, prices=prices)
        found = plan_fleet(cluster, asked, Sizes(), times, Wanted(tok_per_s=500.0), NEAR)
        assert [(part.layout.target.model, part.num_pairs) for part in found.parts] == [(model, pairs)]


def test_requests_at_once_need_no_measured_speed_and_tokens_do() -> None:
    cluster = [node("a", gpus=eight())]
    asked = demand(num_requests=16)
    found = plan_fleet(cluster, asked, Sizes(), Timings(), Wanted(concurrency=50))
    assert (found.num_pairs, found.concurrency, found.tok_per_s, found.measured) == (4, 64, None, False)
    assert "speed not measured" in found.reason
    with pytest.raises(ValueError, match="needs measured speeds"):
        plan_fleet(cluster, asked, Sizes(), Timings(), Wanted(tok_per_s=50.0))


def test_a_target_that_fits_nowhere_gives_nothing() -> None:
    found = plan_fleet([node(ram=4 * GIB)], demand(), Sizes(), TIMES, Wanted(concurrency=1))
    assert (found.met, found.num_pairs, found.most, found.free.cores) == (False, 0, 0.0, 16)


@pytest.mark.parametrize(
    ("tok_per_s", "concurrency"), [(None, None), (1.0, 1), (0.0, None), (math.inf, None), (None, 0)]
)
def test_what_is_asked_is_one_thing_above_zero(tok_per_s: float | None, concurrency: int | None) -> None:
    with pytest.raises(ValueError, match="must be"):
        Wanted(tok_per_s, concurrency)


# On any fleet --------------------------------------------------------------------------------------------------------


wanteds = st.one_of(
    st.sampled_from([10.0, 300.0, 1000.0, 5000.0]).map(lambda amount: Wanted(tok_per_s=amount)),
    st.sampled_from([1, 3, 8, 40]).map(lambda amount: Wanted(concurrency=amount)),
)
links = st.tuples(st.sampled_from([None, 0.0, 0.5]), st.sampled_from([None, 0.0, 2.0])).map(lambda ms: Links(*ms))


@st.composite
def fleets(draw: st.DrawFn) -> list[Node]:
    """A few kinds of nodes, some of them several times."""
    found: list[Node] = []
    for i, one in enumerate(draw(nodes(most=3))):
        found += [replace(one, name=f"{one.name}.{k}", host=f"h{i}.{k}") for k in range(draw(st.integers(1, 3)))]
    return found


@st.composite
def speeds(draw: st.DrawFn) -> Timings:
    """Of every device class there may be: some timed, some not."""
    ms = st.sampled_from([None, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0])

    def some() -> dict[str, float]:
        return {name: found for name in ("H200", "T4", *CPU_CLASSES) if (found := draw(ms)) is not None}

    return timings(verify=some(), draft=some(), colocated=some())


def planned(
    cluster: list[Node], asked: Demand, size: Sizes, times: Timings, wanted: Wanted, near: Links
) -> Fleet | None:
    """None where speeds are needed and nobody knows any."""
    try:
        return plan_fleet(cluster, asked, size, times, wanted, near)
    except ValueError as error:
        if "needs measured speeds" not in str(error):
            raise
        return None


def demands(data: st.DataObject) -> Demand:
    requested: Requested = data.draw(st.sampled_from(REQUESTS))
    return demand(
        requested,
        num_requests=data.draw(st.integers(1, 4)),
        draft_threads=data.draw(st.integers(1, 3)),
        objective=data.draw(st.sampled_from(["speed", "cost"])),
        prices=PRICES,
    )


@EXAMPLES
@given(st.data(), fleets(), sizes(), wanteds, links)
def test_no_device_is_used_twice_or_beyond_its_headroom(
    data: st.DataObject, cluster: list[Node], size: Sizes, wanted: Wanted, near: Links
) -> None:
    asked = demands(data)
    found = planned(cluster, asked, size, data.draw(speeds()), wanted, near)
    if found is None:
        return
    by_name = {n.name: n for n in cluster}
    pairs = list(found.pairs())
    taken: dict[Seat, float] = {}
    cores: dict[str, int] = {}
    owners: dict[Seat, set[int]] = {}
    have = 0.0

    def take(seat: Seat, amount: float) -> None:
        taken[seat] = taken.get(seat, 0.0) + amount

    for number, pair in enumerate(pairs):
        layout, target, draft = pair.layout, pair.target, pair.draft
        assert asked.requested in ("auto", layout.placement)
        assert (draft is None) == (layout.placement in ("off", "colocated"))
        own = size.target(target.kind, asked.num_requests, 5)
        take(target, own.device_bytes)
        take(Seat(target.node, CPU), own.host_bytes)
        seat = draft or target
        beside = None
        if layout.placement == "colocated":
            beside = size.colocated(seat.kind, asked.num_requests, 5)
        elif draft is not None:
            assert layout.placement == ("cpu" if draft.device == CPU else "gpu")
            beside = size.draft(seat.kind, asked.num_requests, 5)
        if beside is not None:
            take(seat, DRAFT_MARGIN * beside.device_bytes)
            take(Seat(seat.node, CPU), DRAFT_MARGIN * beside.host_bytes)
        for one in {target, seat}:
            owners.setdefault(one, set()).add(number)
        on_cpu = target.device == CPU
        cores[target.node] = cores.get(target.node, 0) + (by_name[target.node].num_cpus if on_cpu else 1)
        if draft is not None and draft != target and not (on_cpu and draft.node == target.node):
            cores[draft.node] = cores.get(draft.node, 0) + asked.draft_threads
        have += layout.num_requests if wanted.tok_per_s is None else layout.tok_per_s or 0.0
    for seat, amount in taken.items():
        room = by_name[seat.node].headroom_bytes(seat.device)
        assert amount == 0 or (room is not None and amount <= room + len(pairs))
    for seat, numbers in owners.items():
        assert len(numbers) == 1 or seat.device == CPU, "a GPU belongs to one pair"
        targets = [i for i in numbers if pairs[i].target == seat]
        assert len(targets) <= 1, "one target a device"
        assert not targets or len(numbers) == 1 or seat.kind == "cpu"
    for name, used in cores.items():
        assert used <= by_name[name].num_cpus
    # What it says of itself.
    assert found.met == (have >= wanted.amount * (1 - 1e-9))
    assert found.most >= have * (1 - 1e-9)
    assert found.num_pairs == len(pairs)
    used_gpus = {seat for seat in owners if seat.device != CPU}
    assert found.free.gpus == sum(len(n.gpus) for n in cluster) - len(used_gpus)
    assert found.free.cores == sum(n.num_cpus for n in cluster) - sum(cores.values())
    assert found.free.ram_bytes >= -len(pairs)
    assert found.free.vram_bytes >= -len(pairs)
    for part in found.parts:
        assert sum(len(run.nodes) * run.each for run in part.targets) == part.num_pairs
        across = part.num_pairs if part.layout.where == "other node" else 0
        assert sum(len(run.nodes) * run.each for run in part.drafts) == across
    assert "\n" not in found.reason


@EXAMPLES
@given(st.data(), fleets(), sizes(), wanteds, links)
def test_the_order_of_nodes_does_not_matter(
    data: st.DataObject, cluster: list[Node], size: Sizes, wanted: Wanted, near: Links
) -> None:
    asked, times = demands(data), data.draw(speeds())
    shuffled = data.draw(st.permutations(cluster))
    one, other = (planned(c, asked, size, times, wanted, near) for c in (cluster, shuffled))
    assert one == other
    if one is not None and other is not None:
        assert list(one.pairs()) == list(other.pairs())


@EXAMPLES
@given(st.data(), fleets(), fleets(), sizes(), wanteds, links)
def test_more_nodes_never_give_less(
    data: st.DataObject, cluster: list[Node], more: list[Node], size: Sizes, wanted: Wanted, near: Links
) -> None:
    asked = demands(data)
    larger = [*cluster, *(replace(n, name=f"more-{n.name}") for n in more)]
    times = data.draw(speeds())
    before = planned(cluster, asked, size, times, wanted, near)
    after = planned(larger, asked, size, times, wanted, near)
    if before is None:
        return
    assert after is not None
    assert after.most >= before.most * (1 - 1e-9)
    assert after.met or not before.met


@EXAMPLES
@given(st.data(), nodes(most=2), sizes(), links)
def test_a_layout_is_as_fast_and_as_dear_as_the_candidate_it_stands_for(
    data: st.DataObject, cluster: list[Node], size: Sizes, near: Links
) -> None:
    asked = demands(data)
    times = data.draw(speeds())
    maker = LayoutMaker(asked, size, times, near)
    by_name = {n.name: n for n in cluster}
    table = near.table(cluster[0].name, cluster[-1].name) if len(cluster) > 1 else near.table(cluster[0].name, "-")

    def device(seat: Seat) -> Device:
        owner = by_name[seat.node]
        return Device.cpu_of(owner) if seat.device == CPU else Device.of(owner.gpu(seat.device))

    for candidate in candidates(cluster, asked, size, replace(times, link_ms=table)):
        target, draft = candidate.target, candidate.draft
        if candidate.num_requests != asked.num_requests:
            continue
        where: Where = "alone" if candidate.placement == "off" else "same device"
        if draft is not None and draft != target:
            where = "same node" if draft.node == target.node else "other node"
        layout = maker.layout(candidate.placement, where, device(target), None if draft is None else device(draft))
        assert layout.tok_per_s == candidate.predicted_tok_per_s
        assert layout.verify_length == candidate.verify_length
        assert layout.price_per_hour == candidate.price_per_hour
        assert layout.merit == (score(candidate, asked) or 0.0)


@EXAMPLES
@given(st.data(), fleets(), sizes(), links)
def test_of_equal_nodes_two_stand_for_all(data: st.DataObject, cluster: list[Node], size: Sizes, near: Links) -> None:
    """A decision among the representatives is the decision among all."""
    asked, times = demands(data), data.draw(speeds())
    shuffled = data.draw(st.permutations(cluster))
    table: dict[tuple[str, str], float] = {}
    for a in cluster:
        for b in cluster:
            ms = near.same_node_ms if a.name == b.name else near.between_nodes_ms
            table |= {} if ms is None else {(a.name, b.name): ms}
    times = replace(times, link_ms=table)
    few = representatives(group_equal(shuffled))
    assert candidates(few, asked, size, times) == candidates(cluster, asked, size, times)


@EXAMPLES
@given(st.data(), nodes(), sizes(), st.integers(1, 3))
def test_one_pair_can_be_had_where_a_plan_for_one_finds_room(
    data: st.DataObject, cluster: list[Node], size: Sizes, num_requests: int
) -> None:
    """A fleet of one pair and the plan of a pair agree about whether there is room."""
    times = data.draw(speeds())
    asked = demand(num_requests=num_requests)
    try:
        decide(cluster, asked, size, times)
    except ValueError:
        possible = False
    else:
        possible = True
    found = planned(cluster, asked, size, times, Wanted(concurrency=num_requests), NEAR)
    assert found is not None
    assert found.met == possible
