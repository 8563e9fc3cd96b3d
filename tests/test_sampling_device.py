"""The draw on an accelerator is the draw on the host; its arithmetic runs on any torch device, so also on the CPU."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from twinspark.actors.sampling import device
from twinspark.actors.sampling.draw import draw, draw_one, margin
from twinspark.actors.sampling.filters import edge_distance, threshold
from twinspark.actors.sampling.noise import Noise, signed, stream_key
from twinspark.actors.sampling.settings import MILLION, Sampling

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
    ),
]
# Halves make ties common; a filter's edge is where mistakes live.
ROWS = st.lists(st.integers(-12, 12), min_size=1, max_size=60).map(lambda v: np.array(v, dtype=np.float32) / 2)
SAMPLINGS = st.builds(
    Sampling,
    temperature_millionths=st.sampled_from([0, 300_000, MILLION, 5_000_000]),
    top_k=st.sampled_from([0, 0, 1, 2, 5, 20, 59, 1000]),
    top_p_millionths=st.one_of(st.just(MILLION), st.integers(1, MILLION)),
    min_p_millionths=st.one_of(st.just(0), st.integers(0, MILLION)),
)
SETTINGS = [
    Sampling.of(temperature=t, seed=21, **f)
    for t in (0.0, 0.7, 1.5)
    for f in ({}, {"top_k": 50}, {"top_p": 0.9}, {"min_p": 0.05}, {"top_k": 2000, "top_p": 0.999})
]


def some_rows(count: int, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(count, size, generator=generator) * torch.linspace(0.5, 4, count)[:, None]


@pytest.mark.parametrize("where", DEVICES)
def test_bits_are_the_hosts(where: str) -> None:
    host = Noise(49_152)
    there = Noise(49_152, where)
    keys = [stream_key(3, t) for t in range(5)]
    rows = there.gumbel_rows(torch.tensor([signed(key) for key in keys], device=where)).cpu()
    for key, row in zip(keys, rows, strict=True):
        v = host.numerators(key).astype(np.float64) * 2.0**-53
        assert np.allclose(row.numpy(), -np.log(-np.log1p(-v)), rtol=1e-14, atol=1e-15)
    assert torch.equal(rows[2], there.gumbel(3, 2).cpu())  # alone or in company


@given(row=ROWS, samplings=st.lists(SAMPLINGS, min_size=1, max_size=4))
@settings(deadline=None, max_examples=300)
def test_thresholds_are_the_hosts(row: np.ndarray, samplings: list[Sampling]) -> None:
    """Ties, edges and filters that are off, several rows at once; only exp may round otherwise at an edge of top-p."""
    rows = device.RowSettings.of(samplings, [0] * len(samplings), len(row), "cpu")
    found = device.thresholds(torch.from_numpy(row).expand(len(samplings), -1), rows)[:, 0].numpy()
    for lowest, sampling in zip(found, samplings, strict=True):
        if sampling.top_p_millionths == MILLION or edge_distance(row, sampling) > 1e-5:
            assert ((row >= lowest) == (row >= threshold(row, sampling))).all()


@pytest.mark.parametrize("where", DEVICES)
def test_draws_are_the_hosts(where: str) -> None:
    logits = some_rows(3 * len(SETTINGS), 20_000)
    samplings = SETTINGS * 3
    positions = list(range(100, 100 + len(samplings)))
    host = draw(logits, samplings, positions, Noise(20_000))
    there = Noise(20_000, where)
    moved = logits.to(where)
    assert device.draw(moved, samplings, positions, there) == host
    assert draw(moved, samplings, positions, there) == host
    assert draw_one(moved[4], samplings[4], positions[4], there) == host[4]
    assert margin(moved[4], samplings[4], 9, there) == margin(logits[4], samplings[4], 9, Noise(20_000))
    for i in range(0, len(host), 7):
        assert device.draw(moved[i : i + 1], samplings[i : i + 1], positions[i : i + 1], there) == host[i : i + 1]


@pytest.mark.parametrize("where", DEVICES)
def test_a_row_that_is_not_numbers_is_refused(where: str) -> None:
    noise = Noise(4, where)
    for sampling in (Sampling(), Sampling.of(temperature=1), Sampling.of(temperature=1, top_p=0.5)):
        for bad in ([0.0, math.nan, 9.0, 1.0], [0.0, math.inf, 9.0, 1.0], [-math.inf] * 4):
            rows = torch.tensor([[1.0, 2.0, 3.0, 4.0], bad], device=where)
            with pytest.raises(ValueError, match="logits must be finite"):
                device.draw(rows, [sampling] * 2, [0, 1], noise)


@pytest.mark.parametrize("where", DEVICES)
def test_the_lowest_index_wins_ties(where: str) -> None:
    rows = torch.zeros(3, 9_000, device=where)
    rows[1, [4_000, 8_999]] = 1.0
    rows[2, [7, 8]] = 1.0
    greedy = Sampling()
    assert device.draw(rows, [greedy] * 3, [0, 1, 2], Noise(9_000, where)) == [0, 4_000, 7]
    mixed = device.draw(rows, [greedy, greedy, Sampling.of(temperature=1)], [0, 1, 2], Noise(9_000, where))
    assert mixed[:2] == [0, 4_000]  # greedy rows stay so beside a sampled one


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_graph_draws_the_same() -> None:
    size = 49_152
    logits = some_rows(4, size).cuda()
    noise, host = Noise(size, "cuda"), Noise(size)
    samplings = [SETTINGS[i] for i in (0, 5, 7, 14)]
    rows = device.RowSettings.of(samplings, [0] * 4, size, "cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        device.scores(logits, rows, noise, filtered=True).argmax(dim=1)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drawn = device.scores(logits, rows, noise, filtered=True).argmax(dim=1)
    for position in range(5):
        rows.keys.copy_(device.RowSettings.of(samplings, [position] * 4, size, "cuda").keys)
        graph.replay()
        assert drawn.tolist() == draw(logits.cpu(), samplings, [position] * 4, host)
