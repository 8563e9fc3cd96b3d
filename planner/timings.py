"""How long steps take: measured cells, and what lies between them. Pure; who measured, and how, is not known here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from statistics import median
from typing import Literal

Role = Literal["verify", "draft", "colocated"]


@dataclass(frozen=True, order=True)
class StepKey:
    """Which step. `role`: "verify" is a pass of the target, "draft" a step of a draft actor (trunk included),
    "colocated" a step of a draft in the target's actor (taps read). `beside` says that the other actor of the pair
    computes on the same device: its threads wait there too.
    """

    role: Role
    device_class: str
    beside: bool = False


@dataclass(frozen=True)
class Cell:
    """`num_requests` at once; `length` is draft tokens a request (0: plain decoding; verify runs `length + 1` rows)."""

    num_requests: int
    length: int
    ms: float


@dataclass(frozen=True)
class Grid:
    """Cells of one step. Between cells it is linear, in the length first, then in the requests; beyond them the last
    slope goes on, and never falls. Below the first cell a step takes at least its share of that one.
    """

    cells: tuple[Cell, ...]

    def ms(self, num_requests: int, length: int) -> float:
        """Milliseconds of a step. Raises ValueError where there are no cells."""
        if not self.cells:
            raise ValueError("a grid must have cells, got none")
        return _between({n: _between(row, length + 1) for n, row in self._table.items()}, num_requests)

    def spans(self, num_requests: int, length: int) -> bool:
        """Whether cells lie on both sides, in both directions."""
        sizes, lengths = {cell.num_requests for cell in self.cells}, {cell.length for cell in self.cells}
        return min(sizes) <= num_requests <= max(sizes) and min(lengths) <= length <= max(lengths)

    @cached_property
    def _table(self) -> dict[int, dict[int, float]]:
        """Milliseconds by requests, then by rows a request (length + 1): every length for every number of requests.

        Where one was not measured it takes what lies between its neighbours, but no less than any cell of fewer
        requests and rows, and no more than any of more: a row with fewer cells must not look faster for that.
        """
        known = {(cell.num_requests, cell.length + 1): cell.ms for cell in self.cells}
        by_requests: dict[int, dict[int, float]] = {}
        by_rows: dict[int, dict[int, float]] = {}
        for (n, rows), ms in known.items():
            by_requests.setdefault(n, {})[rows] = ms
            by_rows.setdefault(rows, {})[n] = ms
        full: dict[tuple[int, int], float] = {}
        for n, rows in product(sorted(by_requests), sorted(by_rows)):
            if (n, rows) in known:
                full[n, rows] = known[n, rows]
                continue
            across = by_rows[rows]
            if not min(by_requests[n]) < rows < max(by_requests[n]) and min(across) < n < max(across):
                guess = _between(across, n)
            else:
                guess = _between(by_requests[n], rows)
            most = min((ms for (m, k), ms in known.items() if m >= n and k >= rows), default=guess)
            least = max((ms for (m, k), ms in full.items() if m <= n and k <= rows), default=0.0)
            full[n, rows] = max(least, min(most, guess))
        return {n: {rows: full[n, rows] for rows in by_rows} for n in by_requests}

    def scaled(self, factor: float) -> Grid:
        """Every step slower by `factor`."""
        return Grid(tuple(Cell(cell.num_requests, cell.length, cell.ms * factor) for cell in self.cells))


@dataclass(frozen=True)
class Timings:
    """`link_ms` by pair of node names (either order), one round trip of a round's frames; `overhead_ms` by target
    device class: what a round takes beside its steps and its link.
    """

    steps: Mapping[StepKey, Grid] = field(default_factory=dict)
    link_ms: Mapping[tuple[str, str], float] = field(default_factory=dict)
    overhead_ms: Mapping[str, float] = field(default_factory=dict)

    def step(self, key: StepKey) -> Grid | None:
        """The grid of `key`. Beside the pair's other actor a step is the same work, slower by one factor for all sizes:
        the median of what was measured. A single size measured in a slow moment must not decide between placements.
        """
        alone, found = self.steps.get(StepKey(key.role, key.device_class)), self.steps.get(key)
        if alone is None or found is None or not key.beside:
            return found or alone
        factors = [
            cell.ms / alone.ms(cell.num_requests, cell.length)
            for cell in found.cells
            if alone.spans(cell.num_requests, cell.length) and alone.ms(cell.num_requests, cell.length) > 0
        ]
        return alone.scaled(median(factors)) if factors else found

    def drawn_towards(self, seen: Timings, share: float) -> Timings:
        """The cells and links of `seen` alone: what is believed of them here, drawn by `share` towards what was
        seen. What is not known here, or lies beyond what is, is what was seen.
        """

        def between(believed: float | None, ms: float) -> float:
            return ms if believed is None else believed + share * (ms - believed)

        steps = {}
        for key, grid in seen.steps.items():
            known = self.steps.get(key)
            cells = []
            for cell in grid.cells:
                n, k = cell.num_requests, cell.length
                believed = known.ms(n, k) if known is not None and known.spans(n, k) else None
                cells.append(Cell(n, k, between(believed, cell.ms)))
            steps[key] = Grid(tuple(cells))
        links = {ends: between(self.link(*ends), ms) for ends, ms in seen.link_ms.items()}
        return Timings(steps, links, seen.overhead_ms)

    def link(self, a: str, b: str) -> float | None:
        """Milliseconds between two nodes; None where it is unknown."""
        found = self.link_ms.get((a, b))
        return self.link_ms.get((b, a)) if found is None else found


def _between(points: Mapping[int, float], at: int) -> float:
    """Piecewise linear through `points` (at 1 and more), extended by the outermost slope where that does not fall."""
    known: Sequence[int] = sorted(points)
    if at in points or len(known) == 1:
        return points[at] if at in points else points[known[0]]
    above = next((i for i, x in enumerate(known) if x > at), len(known) - 1)
    low, high = known[max(0, above - 1)], known[max(1, above)]
    slope = (points[high] - points[low]) / (high - low)
    if at > known[-1]:
        return points[known[-1]] + max(0.0, slope) * (at - known[-1])
    if at < known[0]:
        # The slope of a step that has outgrown the memory bandwidth would lead below zero.
        return max(points[low] * at / low, points[low] - slope * (low - at))
    share = (at - low) / (high - low)
    return points[low] * (1 - share) + points[high] * share
