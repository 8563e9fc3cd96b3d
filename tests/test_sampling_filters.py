"""Filters against a slow, clear oracle, and the properties that make them safe on both sides of the boundary."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from distribution import exact_probs
from hypothesis import given, settings
from hypothesis import strategies as st

from twinspark.actors.sampling.filters import (
    edge_distance,
    survivors,
    threshold,
)
from twinspark.actors.sampling.settings import MILLION, Sampling

# Halves make ties common; a filter's edge is where mistakes live.
ROWS = st.lists(st.integers(-12, 12), min_size=1, max_size=60).map(lambda v: np.array(v, dtype=np.float32) / 2)
SAMPLINGS = st.builds(
    Sampling,
    temperature_millionths=st.sampled_from([300_000, 700_000, MILLION, 1_500_000, 5_000_000]),
    top_k=st.sampled_from([0, 0, 1, 2, 5, 20, 59, 1000]),
    top_p_millionths=st.one_of(st.just(MILLION), st.integers(1, MILLION)),
    min_p_millionths=st.one_of(st.just(0), st.integers(0, MILLION)),
)


def kept_by_oracle(row: np.ndarray, sampling: Sampling, nudge: float) -> np.ndarray:
    """The oracle's survivors, with the edges of top-p and min-p moved outwards by `nudge` (inwards if negative)."""
    top_p = sampling.top_p_millionths / MILLION
    min_p = sampling.min_p_millionths / MILLION
    return (
        exact_probs(
            row,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=top_p if top_p == 1 else min(max(top_p + nudge, 1e-9), 1 - 1e-12),
            min_p=min(max(min_p * (1 - nudge), 0.0), 1.0),
        )
        > 0
    )


@given(row=ROWS, sampling=SAMPLINGS)
@settings(deadline=None, max_examples=400)
def test_survivors_are_the_oracles(row: np.ndarray, sampling: Sampling) -> None:
    kept = survivors(torch.from_numpy(row), sampling).numpy()
    assert (kept >= kept_by_oracle(row, sampling, -2e-6)).all()
    assert (kept <= kept_by_oracle(row, sampling, 2e-6)).all()
    assert kept[row.argmax()]


@given(row=ROWS, sampling=SAMPLINGS, data=st.data())
@settings(deadline=None)
def test_order_of_the_vocabulary_does_not_matter(row: np.ndarray, sampling: Sampling, data: st.DataObject) -> None:
    order = np.array(data.draw(st.permutations(range(len(row)))))
    kept = survivors(torch.from_numpy(row), sampling).numpy()
    moved = survivors(torch.from_numpy(row[order]), sampling).numpy()
    assert (kept[order] == moved).all()


@pytest.mark.parametrize("temperature", [0.0, 0.01, 1.0, 50.0])
def test_filters_that_are_off_keep_every_token(temperature: float) -> None:
    row = torch.tensor([-1e30, 0.0, 3.0, 80.0])
    assert survivors(row, Sampling.of(temperature=temperature)).all()
    assert survivors(row, Sampling.of(temperature=temperature, top_k=4)).all()
    assert survivors(row, Sampling.of(top_k=1, top_p=0.1, min_p=0.9)).all()  # greedy filters nothing


def test_a_barred_token_never_survives() -> None:
    row = torch.tensor([-math.inf, 1.0, -math.inf, 0.0])
    for sampling in (
        Sampling.of(temperature=1),
        Sampling.of(temperature=1, top_k=3),
        Sampling.of(temperature=1, top_p=0.999),
    ):
        assert survivors(row, sampling).tolist() == [False, True, False, True]


def test_one_token_remains_under_the_hardest_filters() -> None:
    row = torch.tensor([0.5, 2.0, 1.0])
    for temperature in (1e-6, 1.0, 100.0):
        for hard in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"top_k": 1, "top_p": 1e-6, "min_p": 1.0}):
            assert survivors(row, Sampling.of(temperature=temperature, **hard)).tolist() == [False, True, False]


def test_ties_with_the_last_one_kept_are_kept() -> None:
    row = torch.tensor([1.0, 3.0, 2.0, 2.0, 2.0, 0.0])
    wanted = [False, True, True, True, True, False]
    assert survivors(row, Sampling.of(temperature=1, top_k=2)).tolist() == wanted
    assert survivors(row, Sampling.of(temperature=1, top_p=0.5)).tolist() == wanted


def test_top_p_is_a_share_of_what_top_k_leaves() -> None:
    row = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert survivors(row, Sampling.of(temperature=1, top_p=0.55)).tolist() == [True, True, False, False]
    # of the two that top-k leaves, the first alone holds 4/7 = 0.571
    assert survivors(row, Sampling.of(temperature=1, top_k=2, top_p=0.55)).tolist() == [True, False, False, False]


def test_temperature_comes_before_the_filters() -> None:
    row = torch.tensor([0.6, 0.3, 0.1]).log()
    assert int(survivors(row, Sampling.of(temperature=1, top_p=0.6 - 1e-3)).sum()) == 1
    assert int(survivors(row, Sampling.of(temperature=2, top_p=0.6 - 1e-3)).sum()) == 2
    assert int(survivors(row, Sampling.of(temperature=1, min_p=0.4)).sum()) == 2
    assert int(survivors(row, Sampling.of(temperature=2, min_p=0.4)).sum()) == 3


@pytest.mark.parametrize("spread", [0.0, 0.5, 4.0])
@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_a_large_vocabulary_from_flat_to_peaked(spread: float, temperature: float) -> None:
    """Where top-p must look further and further down, the oracle agrees."""
    row = (np.random.default_rng(1).normal(size=20_000) * spread).astype(np.float32)
    for top_p in (0.05, 0.95, 0.999):
        sampling = Sampling.of(temperature=temperature, top_p=top_p)
        kept = survivors(torch.from_numpy(row), sampling).numpy()
        assert (kept >= kept_by_oracle(row, sampling, -2e-6)).all()
        assert (kept <= kept_by_oracle(row, sampling, 2e-6)).all()


def test_distance_to_an_edge() -> None:
    row = np.array([0.0, 3.0, 2.5, 1.0], dtype=np.float32)
    assert edge_distance(row, Sampling.of(temperature=1)) == math.inf
    assert edge_distance(row, Sampling.of(top_k=2)) == math.inf  # greedy
    assert edge_distance(row, Sampling.of(temperature=1, top_k=2)) == pytest.approx(1.5)
    # the bound is 3 + 0.5 * ln(0.1) = 1.8487: the token at 2.5 is the nearest
    assert edge_distance(row, Sampling.of(temperature=0.5, min_p=0.1)) == pytest.approx(2.5 - 3 - 0.5 * math.log(0.1))
    tied = np.array([1.0, 2.0, 1.0], dtype=np.float32)
    assert edge_distance(tied, Sampling.of(temperature=1, top_k=2)) == 0


@given(row=ROWS, sampling=SAMPLINGS, noise_seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=300)
def test_nothing_closer_than_the_edge_changes_the_survivors(
    row: np.ndarray, sampling: Sampling, noise_seed: int
) -> None:
    distance = edge_distance(row, sampling)
    if 1e-4 < distance < math.inf:
        # two logits moved by less than half each differ by less than the whole
        shift = np.random.default_rng(noise_seed).uniform(-0.45, 0.45, len(row)) * distance
        moved = (row + shift).astype(np.float32)
        assert ((row >= threshold(row, sampling)) == (moved >= threshold(moved, sampling))).all()
