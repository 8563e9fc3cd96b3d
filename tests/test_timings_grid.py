"""Step times between the measured cells: what a grid may and may not make of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinspark.planner.timings import Cell, Grid, StepKey, Timings

MANY = settings(max_examples=2000, deadline=None)
Table = dict[tuple[int, int], float]  # milliseconds by (requests, length)

counts = st.integers(1, 64)
lengths = st.integers(0, 15)
shares = st.integers(0, 1000)
# Tables are cut out of bytes, five a cell: a single draw, many times faster than one for each number.
cell_bytes = st.binary(min_size=5, max_size=40)


def grid_of(table: Table) -> Grid:
    return Grid(tuple(Cell(n, length, ms) for (n, length), ms in table.items()))


def slack(ms: float) -> float:
    return 1e-9 * ms


def table_of(cells: bytes) -> Table:
    """Any times, at any spots."""
    table: Table = {}
    for i in range(0, len(cells) - 4, 5):
        n, length, *ms = cells[i : i + 5]
        table[1 + n % 64, length % 16] = (1 + int.from_bytes(bytes(ms))) / 128
    return table


def rising_table_of(cells: bytes) -> Table:
    """More requests or longer drafts never take less."""
    table: Table = {}
    for (n, length), step in sorted(table_of(cells).items()):
        least = max((ms for (m, k), ms in table.items() if m <= n and k <= length), default=0.0)
        table[n, length] = least + (step if step >= 1000 else 0.0 if least else step)  # some steps are level
    return table


def full_table_of(cells: bytes) -> tuple[Table, list[int], list[int]]:
    """Every length for every number of requests, two lengths at least; any times."""
    found = table_of(cells)
    ns = sorted({n for n, _ in found})[:4]
    ks = sorted({k for _, k in found} | {16})[:4]
    times = list(found.values())
    table = {(n, k): times[(n * 7 + k * 3) % len(times)] + n * k / 8 for n in ns for k in ks}
    return table, ns, ks


def within(low: int, high: int, share: int) -> int:
    """`share` of 1000 of the way, so that hypothesis need not know the ends beforehand."""
    return low + (high - low) * share // 1000


tables, rising_tables, full_tables = (cell_bytes.map(f) for f in (table_of, rising_table_of, full_table_of))


@MANY
@given(tables, counts, lengths)
def test_cells_are_exact_and_every_time_is_a_positive_number(table: Table, n: int, length: int) -> None:
    grid = grid_of(table)
    assert all(grid.ms(n, length) == ms for (n, length), ms in table.items())
    ms = grid.ms(n, length)
    assert math.isfinite(ms)
    assert ms > 0
    assert grid_of(dict(reversed(table.items()))).ms(n, length) == ms, "the order of cells does not matter"


@MANY
@given(full_tables, shares, shares)
def test_between_neighbours_lies_between_them(
    full: tuple[Table, list[int], list[int]], n_share: int, k_share: int
) -> None:
    table, ns, ks = full
    n, length = within(ns[0], ns[-1], n_share), within(ks[0], ks[-1], k_share)
    around = [
        table[m, k]
        for m in (max(m for m in ns if m <= n), min(m for m in ns if m >= n))
        for k in (max(k for k in ks if k <= length), min(k for k in ks if k >= length))
    ]
    ms = grid_of(table).ms(n, length)
    assert min(around) - slack(ms) <= ms <= max(around) + slack(ms)


@MANY
@given(full_tables, shares)
def test_between_two_cells_of_a_row_it_is_linear(full: tuple[Table, list[int], list[int]], share: int) -> None:
    table, ns, ks = full
    low, high = ks[-2], ks[-1]
    length = within(low, high, share)
    expected = table[ns[0], low] + (table[ns[0], high] - table[ns[0], low]) * (length - low) / (high - low)
    assert grid_of(table).ms(ns[0], length) == pytest.approx(expected, rel=1e-9)


@MANY
@given(rising_tables, shares, shares, shares, shares)
def test_rising_cells_give_rising_times(table: Table, n1: int, n2: int, k1: int, k2: int) -> None:
    """Holes included: more requests, or longer drafts, never look faster within what was measured."""
    ns, ks = [n for n, _ in table], [k for _, k in table]
    few, many = sorted(within(min(ns), max(ns), share) for share in (n1, n2))
    short, long = sorted(within(min(ks), max(ks), share) for share in (k1, k2))
    grid = grid_of(table)
    low, high = grid.ms(few, short), grid.ms(many, long)
    assert low <= high + slack(high)


@MANY
@given(tables, counts, lengths, st.integers(0, 50))
def test_beyond_the_cells_it_never_falls(table: Table, n: int, length: int, more: int) -> None:
    grid = grid_of(table)
    most_n, most_k = max(n for n, _ in table), max(k for _, k in table)
    beyond = grid.ms(most_n + more, length)
    assert beyond >= grid.ms(most_n, length) - slack(beyond)
    for m in {m for m, _ in table}:  # between rows it is drawn from both, whose slopes may differ
        beyond = grid.ms(m, most_k + more)
        assert beyond >= grid.ms(m, most_k) - slack(beyond)


@MANY
@given(rising_tables, shares, shares)
def test_below_rising_cells_it_does_not_rise(table: Table, n_share: int, k_share: int) -> None:
    grid = grid_of(table)
    least_n, least_k = min(n for n, _ in table), min(k for _, k in table)
    corner = grid.ms(least_n, least_k)
    assert grid.ms(within(1, least_n, n_share), least_k) <= corner + slack(corner)
    assert grid.ms(least_n, within(0, least_k, k_share)) <= corner + slack(corner)


def test_a_row_with_fewer_cells_does_not_look_faster() -> None:
    """A larger batch of which only plain decoding was timed: its drafts cost no less than the smaller batch's."""
    grid = Grid((Cell(1, 0, 10), Cell(1, 7, 100), Cell(2, 0, 20)))
    assert grid.ms(2, 7) >= 100


def test_a_hole_in_the_middle_is_filled_across_batches() -> None:
    grid = Grid((Cell(1, 0, 10), Cell(1, 7, 20), Cell(4, 0, 15), Cell(9, 0, 20), Cell(9, 7, 100)))
    assert grid.ms(4, 7) == pytest.approx(20 + 80 * 3 / 8)


def test_far_below_steep_cells_nothing_is_free() -> None:
    grid = Grid((Cell(8, 0, 100), Cell(16, 0, 300)))
    assert grid.ms(1, 0) == pytest.approx(100 / 8)


def test_one_cell_stands_for_every_step() -> None:
    assert Grid((Cell(4, 3, 7.0),)).ms(100, 0) == 7.0


def test_a_grid_without_cells() -> None:
    with pytest.raises(ValueError, match="got none"):
        Grid(()).ms(1, 0)


def test_what_was_measured_alone_stands_in_for_beside_and_not_the_other_way_round() -> None:
    alone, beside = Grid((Cell(1, 0, 1),)), Grid((Cell(1, 0, 2),))
    timings = Timings({StepKey("verify", "x"): alone, StepKey("verify", "y", beside=True): beside})
    assert timings.step(StepKey("verify", "x", beside=True)) is alone
    assert timings.step(StepKey("verify", "y", beside=True)) is beside
    assert timings.step(StepKey("verify", "y")) is None
    assert timings.step(StepKey("draft", "x")) is None


def test_beside_another_actor_a_step_is_slower_by_one_factor_for_all_sizes() -> None:
    alone = Grid((Cell(1, 0, 10.0), Cell(1, 5, 20.0), Cell(4, 0, 16.0), Cell(4, 5, 40.0)))
    key = StepKey("verify", "x", beside=True)

    def beside(*cells: Cell) -> Grid | None:
        return Timings({StepKey("verify", "x"): alone, key: Grid(cells)}).step(key)

    # One size was measured in a slow moment, one in a fast one.
    found = beside(Cell(1, 0, 11.0), Cell(1, 5, 40.0), Cell(4, 5, 42.0), Cell(4, 2, 10.0), Cell(4, 0, 17.6))
    assert found is not None
    for cell in alone.cells:
        assert found.ms(cell.num_requests, cell.length) == pytest.approx(1.1 * cell.ms)
    beyond = beside(Cell(8, 7, 100.0))  # nothing to be compared with
    assert beyond is not None
    assert beyond.ms(8, 7) == 100.0


def test_a_link_is_known_from_either_end() -> None:
    timings = Timings(link_ms={("a", "b"): 0.0, ("b", "c"): 2.0})
    assert (timings.link("a", "b"), timings.link("b", "a"), timings.link("c", "b")) == (0.0, 0.0, 2.0)
    assert timings.link("a", "c") is None
