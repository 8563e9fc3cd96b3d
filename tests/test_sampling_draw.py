"""Drawing: the fast path is the definition, drafts with the target's logits always agree, mistakes are named."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from twinspark.actors.sampling.draw import draw, draw_one, margin
from twinspark.actors.sampling.filters import edge_distance, survivors
from twinspark.actors.sampling.noise import Noise
from twinspark.actors.sampling.settings import MAX_SEED, Sampling

FILTERS: list[dict[str, float]] = [
    {},
    {"top_k": 50},
    {"top_p": 0.9},
    {"min_p": 0.05},
    {"top_k": 40, "top_p": 0.95, "min_p": 0.01},
]


def by_definition(logits: torch.Tensor, sampling: Sampling, position: int, noise: Noise) -> int:
    """argmax(filtered logits + temperature * gumbel) over every token, with no shortcut."""
    scores = logits.double() + sampling.temperature * noise.gumbel(sampling.seed, position)
    return int(scores.masked_fill(~survivors(logits, sampling), -math.inf).argmax())


def _before_top_p(filters: dict[str, float]) -> dict[str, float]:
    return {"top_k": filters["top_k"]} if "top_p" in filters else filters


def some_logits(size: int, spread: float = 3.0, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * spread


@given(
    size=st.integers(1, 300),
    spread=st.sampled_from([0.0, 0.1, 1.0, 5.0, 40.0, 1000.0]),
    temperature=st.sampled_from([1e-6, 0.01, 0.3, 1.0, 1.5, 20.0, 100.0]),
    filters=st.sampled_from(FILTERS),
    seed=st.integers(0, MAX_SEED),
    position=st.integers(0, 10**6),
)
@settings(deadline=None, max_examples=500)
def test_the_draw_is_its_definition(
    size: int, spread: float, temperature: float, filters: dict[str, float], seed: int, position: int
) -> None:
    logits = some_logits(size, spread, seed=position % 97)
    noise = Noise(torch.arange(size) * 31 + 5)
    sampling = Sampling.of(temperature=temperature, seed=seed, **filters)
    assert draw_one(logits, sampling, position, noise) == by_definition(logits, sampling, position, noise)


@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("filters", FILTERS)
def test_the_draw_is_its_definition_on_a_real_vocabulary(spread: float, filters: dict[str, float]) -> None:
    logits = some_logits(49_152, spread)
    noise = Noise(49_152)
    for position in range(12):
        sampling = Sampling.of(temperature=(0.3, 1.0, 1.5)[position % 3], seed=position, **filters)
        assert draw_one(logits, sampling, position, noise) == by_definition(logits, sampling, position, noise)


def test_a_row_does_not_depend_on_the_batch_or_the_threads() -> None:
    noise = Noise(49_152)
    logits = torch.stack([some_logits(49_152, 3.0, seed) for seed in range(6)])
    samplings = [
        Sampling.of(temperature=t, seed=9, **f) for t, f in zip((0, 1, 1, 0.7, 1.5, 1), [*FILTERS, {}], strict=True)
    ]
    positions = [4, 5, 6, 100, 101, 5]
    alone = [draw_one(row, s, t, noise) for row, s, t in zip(logits, samplings, positions, strict=True)]
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            assert draw(logits, samplings, positions, noise) == alone
            order = [3, 1, 5, 0, 4, 2]
            moved = draw(logits[order], [samplings[i] for i in order], [positions[i] for i in order], noise)
            assert moved == [alone[i] for i in order]
            columns_last = logits.T.contiguous().T  # the same numbers, not contiguous
            assert draw(columns_last, samplings, positions, noise) == alone
    finally:
        torch.set_num_threads(threads)


def test_greedy_ignores_noise_and_filters_and_takes_the_lowest_of_a_tie() -> None:
    logits = torch.tensor([[0.0, 5.0, 5.0, 1.0], [2.0, 2.0, 2.0, 2.0], [-math.inf, -3.0, -math.inf, -3.0]])
    noise = Noise(4)
    for seed in range(20):
        sampling = Sampling.of(temperature=0, seed=seed, top_k=3, top_p=0.1, min_p=0.9)
        assert draw(logits, [sampling] * 3, [seed, seed + 1, 7], noise) == [1, 0, 1]


def test_equal_noise_falls_to_the_lowest_index() -> None:
    """Two indices of one target id tie exactly; the first has it."""
    noise = Noise(torch.tensor([8, 3, 3, 8]))
    drawn = {draw_one(torch.zeros(4), Sampling.of(temperature=1, seed=s), 0, noise) for s in range(50)}
    assert drawn == {0, 1}


def test_no_noise_lifts_a_barred_token() -> None:
    logits = torch.full((1000,), -math.inf)
    logits[[17, 500]] = torch.tensor([0.0, -60.0])
    noise = Noise(1000)
    assert {draw_one(logits, Sampling.of(temperature=30, seed=s), s, noise) for s in range(100)} == {17, 500}


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
@pytest.mark.parametrize("filters", FILTERS)
def test_a_draft_with_the_targets_logits_is_always_accepted(temperature: float, filters: dict[str, float]) -> None:
    """Over the same vocabulary, over a shuffled one, and over a reduced one that holds all that can be drawn."""
    size = 5_000
    target = Noise(size)
    for position in range(40):
        logits = some_logits(size, 3.0, seed=position)
        sampling = Sampling.of(temperature=temperature, seed=7, **filters)
        token = draw_one(logits, sampling, position, target)
        assert draw_one(logits.clone(), sampling, position, Noise(size)) == token
        shuffled = torch.randperm(size, generator=torch.Generator().manual_seed(position))
        assert int(shuffled[draw_one(logits[shuffled], sampling, position, Noise(shuffled))]) == token
        if "top_p" in filters and "top_k" not in filters:
            continue  # a share of the reduced vocabulary's probability is another share
        # top-p takes its share of what top-k leaves, so it is that which the draft must hold
        first = Sampling.of(temperature=temperature, **_before_top_p(filters))
        keep = survivors(logits, first) if filters else torch.arange(size) != (token + 1) % size
        reduced = shuffled[keep[shuffled]]
        assert int(reduced[draw_one(logits[reduced], sampling, position, Noise(reduced))]) == token


def test_a_draft_with_other_logits_is_not_always_accepted() -> None:
    """So that the test above can fail."""
    noise = Noise(5_000)
    agreed = 0
    for position in range(100):
        sampling = Sampling.of(temperature=1, seed=7)
        ours = draw_one(some_logits(5_000, 3.0, seed=position), sampling, position, noise)
        agreed += ours == draw_one(some_logits(5_000, 3.0, seed=position + 1), sampling, position, noise)
    assert agreed < 30


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("filters", FILTERS)
def test_logits_that_are_not_numbers_are_refused(temperature: float, filters: dict[str, float]) -> None:
    noise = Noise(4)
    sampling = Sampling.of(temperature=temperature, **filters)
    for bad in ([0.0, math.nan, 9.0, 1.0], [0.0, math.inf, 9.0, 1.0], [-math.inf] * 4):
        with pytest.raises(ValueError, match="logits must be finite"):
            draw_one(torch.tensor(bad), sampling, 0, noise)
        with pytest.raises(ValueError, match="logits must be finite"):
            margin(torch.tensor(bad), sampling, 0, noise)


def test_shapes_that_do_not_fit_are_refused() -> None:
    noise = Noise(4)
    with pytest.raises(ValueError, match=r"float32, got torch\.float64"):
        draw_one(torch.zeros(4, dtype=torch.float64), Sampling(), 0, noise)
    with pytest.raises(ValueError, match="vocabulary of 4, got 5"):
        draw_one(torch.zeros(5), Sampling(), 0, noise)
    with pytest.raises(ValueError, match="1 settings and 2 positions"):
        draw(torch.zeros(2, 4), [Sampling()], [0, 1], noise)


def test_margin_is_the_gap_of_the_two_best_and_the_distance_to_an_edge() -> None:
    logits = some_logits(500)
    noise = Noise(500)
    top = np.sort(logits.numpy())[::-1]
    assert margin(logits, Sampling(), 0, noise) == (pytest.approx(float(top[0] - top[1])), math.inf)
    for filters in FILTERS:
        sampling = Sampling.of(temperature=0.8, seed=3, **filters)
        found = margin(logits, sampling, 11, noise)
        winner = draw_one(logits, sampling, 11, noise)
        assert found.edge == edge_distance(logits.numpy(), sampling)
        pushed = logits.clone()
        pushed[winner] -= found.top_two * 0.99
        kept = survivors(logits, sampling)
        scores = (pushed.double() + 0.8 * noise.gumbel(3, 11)).masked_fill(~kept, -math.inf)
        assert int(scores.argmax()) == winner
        scores[winner] -= found.top_two * 0.02
        assert int(scores.argmax()) != winner
    assert margin(logits, Sampling.of(temperature=1, top_k=1), 0, noise).top_two == math.inf
