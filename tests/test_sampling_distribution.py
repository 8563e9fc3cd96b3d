"""Seeded draws follow the target's distribution exactly, one by one and in neighbouring pairs, down to rare tokens.

Every seed is fixed, so each test gives the same verdict every time.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from distribution import chi_square_p, counts_of, exact_probs

from twinspark.actors.sampling.draw import draw_one
from twinspark.actors.sampling.filters import survivors
from twinspark.actors.sampling.noise import GOLDEN, POSITION_STEP, UNIT, Noise, mix64, signed, stream_key
from twinspark.actors.sampling.settings import Sampling

DRAWS = 50_000
FILTERS: list[dict[str, float]] = [
    {},
    {"top_k": 12},
    {"top_p": 0.9},
    {"min_p": 0.05},
    {"top_k": 20, "top_p": 0.95, "min_p": 0.02},
]
TEMPERATURES = (0.7, 1.0, 1.5)


def many(logits: torch.Tensor, sampling: Sampling, streams: list[tuple[int, int]]) -> np.ndarray:
    """One draw for each (seed, position): `draw_one`'s definition on all at once, checked against it on some."""
    noise = Noise(torch.arange(len(logits)) * 700 + 3)  # ids as far apart as in a large vocabulary
    keys = torch.tensor([signed(stream_key(seed, position)) for seed, position in streams])
    scores = noise.gumbel_rows(keys) * sampling.temperature + logits
    drawn = scores.masked_fill(~survivors(logits, sampling), -math.inf).argmax(dim=1).numpy()
    for i in range(0, len(streams), len(streams) // 100):
        seed, position = streams[i]
        assert draw_one(logits, replace(sampling, seed=seed), position, noise) == drawn[i]
    return drawn


def model(size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(size)) * 1.5


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("filters", FILTERS)
def test_positions_of_one_seed(temperature: float, filters: dict[str, float]) -> None:
    logits = model(50)
    drawn = many(logits, Sampling.of(temperature=temperature, **filters), [(1, t) for t in range(DRAWS)])
    probs = exact_probs(logits.numpy(), temperature=temperature, **filters)
    assert chi_square_p(counts_of(drawn, 50), probs) > 0.001


@pytest.mark.parametrize("filters", FILTERS)
def test_seeds_at_one_position(filters: dict[str, float]) -> None:
    logits = model(50)
    drawn = many(logits, Sampling.of(temperature=1, **filters), [(s, 77) for s in range(DRAWS)])
    assert chi_square_p(counts_of(drawn, 50), exact_probs(logits.numpy(), temperature=1, **filters)) > 0.001


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("filters", [{}, {"top_k": 8}, {"top_p": 0.9}])
@pytest.mark.parametrize("neighbour", ["position", "seed", "both"])
def test_neighbouring_pairs(temperature: float, filters: dict[str, float], neighbour: str) -> None:
    """The pair's counts against the product of the two distributions: independent, not just right one by one."""
    size = 16
    logits = model(size)
    first = [(2, t) for t in range(0, DRAWS, 2)] if neighbour == "position" else [(s, 9) for s in range(0, DRAWS, 2)]
    step = {"position": (0, 1), "seed": (1, 0), "both": (1, -1)}[neighbour]
    second = [(s + step[0], t + step[1]) for s, t in first]
    drawn = many(logits, Sampling.of(temperature=temperature, **filters), first + second)
    a, b = drawn[: len(first)], drawn[len(first) :]
    probs = exact_probs(logits.numpy(), temperature=temperature, **filters)
    assert chi_square_p(counts_of(a * size + b, size**2), np.outer(probs, probs)) > 0.001


def test_the_chi_square_can_fail() -> None:
    logits = model(50)
    drawn = many(logits, Sampling.of(temperature=1), [(1, t) for t in range(DRAWS)])
    assert chi_square_p(counts_of(drawn, 50), exact_probs(logits.numpy(), temperature=1.1)) < 1e-6
    assert chi_square_p(counts_of(drawn, 50), exact_probs(logits.numpy(), temperature=1, top_k=49)) == 0.0


def keys_of(seed: int, first: int, count: int) -> np.ndarray:
    """`stream_key` of a run of positions at once."""
    steps = np.arange(first + 1, first + 1 + count, dtype=np.uint64)
    return _mixed(np.uint64(mix64(seed + GOLDEN)) + steps * np.uint64(POSITION_STEP))


def _mixed(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def test_a_token_of_one_in_a_million_comes_up_as_often_as_it_should() -> None:
    """A hundred million draws from 250,000 tokens, four of which have a probability of 1e-6.

    A draw is worth making only where one of the four has a uniform number under 15e-6: elsewhere it would win only if
    the best of all other tokens, an exponential of mean 1, exceeded 15 (three in ten million). Those are made in full.
    """
    size, rare, total, chunk = 250_000, [5, 70_001, 180_000, 249_999], 100_000_000, 50_000
    logits = torch.randn(size, generator=torch.Generator().manual_seed(4)).double() * 2
    logits[rare] = -math.inf
    logits -= logits.logsumexp(0)  # the others sum to one
    logits[rare] = math.log(1e-6 / (1 - 4e-6))
    row = logits.float()
    noise = Noise(size)
    sampling = Sampling.of(temperature=1, seed=12345)
    assert keys_of(12345, 40, 3).tolist() == [stream_key(12345, t) for t in (40, 41, 42)]
    ceiling = np.uint64(int(15e-6 * 2**64))
    wins = np.zeros(4, dtype=np.int64)
    for start in range(0, total, chunk):
        keys = keys_of(12345, start, chunk)
        lucky = np.zeros(chunk, dtype=bool)
        for token in rare:
            lucky |= _mixed(keys + np.uint64(token * GOLDEN % 2**64)) < ceiling
        for position in np.flatnonzero(lucky):
            token = draw_one(row, sampling, start + int(position), noise)
            wins += [token == r for r in rare]
    assert wins.sum() == pytest.approx(4 * total * 1e-6, abs=4 * math.sqrt(4 * total * 1e-6))
    assert chi_square_p([*wins, 0], [1, 1, 1, 1, 0]) > 0.001


def test_uncommon_tokens_of_a_large_vocabulary() -> None:
    """Full draws from 250,000 tokens: 100 of 1e-3 each, 1,000 of 1e-4 each, the rest spread over all others."""
    size, draws = 250_000, 4_000
    order = torch.randperm(size, generator=torch.Generator().manual_seed(6))
    probs = torch.full((size,), 0.8 / (size - 1_100), dtype=torch.float64)
    probs[order[:100]] = 1e-3
    probs[order[100:1_100]] = 1e-4
    group = torch.full((size,), 15)
    group[order[:100]] = torch.arange(100) // 20
    group[order[100:1_100]] = 5 + torch.arange(1_000) // 100
    noise, row = Noise(size), probs.log().float()
    drawn = [int(group[draw_one(row, Sampling.of(temperature=1, seed=8), t, noise)]) for t in range(draws)]
    assert chi_square_p(counts_of(drawn, 16), [0.02] * 5 + [0.01] * 10 + [0.8]) > 0.001


def test_the_tail_of_the_noise_is_exact() -> None:
    """Counts of uniform numbers under 2**-8 .. 2**-22 over 2**28 of them: no bit of the small ones is missing."""
    below = np.zeros(8, dtype=np.int64)
    edges = [2**-e for e in range(8, 24, 2)]
    noise = Noise(2**16)
    for position in range(2**12):
        numerators = noise.numerators(stream_key(31, position))
        small = numerators[numerators < np.uint64(2**45)].astype(np.float64) * UNIT
        below += [np.count_nonzero(small < edge) for edge in edges]
    expected = np.array([2**28 * edge for edge in edges])
    assert (np.abs(below - expected) < 4.5 * np.sqrt(expected)).all(), below / expected
