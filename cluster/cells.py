"""Which batch sizes and lengths are worth timing, and in which order. Knows no actors and no clock."""

from __future__ import annotations

from collections.abc import Sequence

Spot = tuple[int, int]  # requests at once, draft tokens a request
LENGTHS = (5, 2)  # beside none and the longest: what a CPU target verifies for nothing, and what is between


def cells_in_order(
    max_seqs: int, most_length: int, batch_sizes: Sequence[int] = (), lengths: Sequence[int] = ()
) -> tuple[list[Spot], list[Spot]]:
    """Cells that were asked for, and others, both in order of importance; what is out of range is left out.

    Where no size is asked for, 1 and `max_seqs` are; where no length, the longest. Plain decoding (length 0) always is:
    every placement is compared with it. Of the others those come first that share a size or a length with the former.
    """
    asked_sizes = _within(batch_sizes, 1, max_seqs) or _within((1, max_seqs), 1, max_seqs)
    asked_lengths = [*(_within(lengths, 0, most_length) or [most_length]), 0]
    sizes = list(dict.fromkeys([*asked_sizes, 1, max_seqs, *_spread(max_seqs)]))
    all_lengths = _within([*asked_lengths, most_length, *LENGTHS], 0, most_length)
    spots = [(size, length) for length in all_lengths for size in sizes]
    asked = [spot for spot in spots if spot[0] in asked_sizes and spot[1] in asked_lengths]

    def rank(spot: Spot) -> tuple[int, int, int]:
        size, length = spot
        return (size not in asked_sizes) + (length not in asked_lengths), sizes.index(size), length

    return sorted(asked, key=num_rows), sorted(set(spots) - set(asked), key=rank)


def num_rows(spot: Spot) -> int:
    """Rows of a target's pass."""
    num_requests, length = spot
    return num_requests * (length + 1)


def _within(values: Sequence[int], low: int, high: int) -> list[int]:
    return [value for value in dict.fromkeys(values) if low <= value <= high]


def _spread(max_seqs: int) -> list[int]:
    """Powers of two below `max_seqs`, each the farthest from those before it: the middle first."""
    left = [1 << i for i in range(1, max_seqs.bit_length()) if 1 << i < max_seqs]
    taken = [0.0, float(max_seqs.bit_length())]
    order = []
    while left:
        best = max(left, key=lambda size: min(abs(size.bit_length() - 1 - at) for at in taken))
        left.remove(best)
        taken.append(float(best.bit_length() - 1))
        order.append(best)
    return order
