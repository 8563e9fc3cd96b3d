"""The shared noise never changes: known answers, a second implementation in plain integers, every way to compute it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from twinspark.actors.sampling.noise import (
    MAX_GUMBEL,
    Noise,
    derived_seed,
    gumbel_of,
    signed,
    stream_key,
    tensor_numerators,
)
from twinspark.actors.sampling.settings import MAX_SEED

SEEDS = st.integers(0, MAX_SEED)
POSITIONS = st.integers(0, 2**31 - 1)
TOKENS = st.integers(0, 2**31 - 1)

# (seed, position, token, numerator). Changing these changes every seeded answer ever given.
KNOWN = [
    (0, 0, 0, 4574846829065883),
    (0, 0, 1, 451098308347767),
    (0, 1, 0, 3243315585515663),
    (1, 0, 0, 19084976516629),
    (42, 17, 49151, 5015618924395659),
    (9223372036854775807, 8191, 248319, 1401538110755003),
    (123456789, 2147483647, 2147483647, 3405236133674301),
]


def hash_reference(seed: int, position: int, token: int) -> int:
    """The numerator of a token's uniform number, written out in unbounded integers."""

    def finalise(z: int) -> int:
        z %= 2**64
        z = (z ^ z // 2**30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z // 2**27) * 0x94D049BB133111EB % 2**64
        return z ^ z // 2**31

    key = finalise(finalise(seed + 0x9E3779B97F4A7C15) + (position + 1) * 0xD1B54A32D192ED03)
    return finalise(key + token * 0x9E3779B97F4A7C15) // 2**11 | 1


@pytest.mark.parametrize(("seed", "position", "token", "numerator"), KNOWN)
def test_known_answers(seed: int, position: int, token: int, numerator: int) -> None:
    assert hash_reference(seed, position, token) == numerator
    noise = Noise(torch.tensor([token]))
    assert int(noise.numerators(stream_key(seed, position))[0]) == numerator
    wanted = -math.log(-math.log1p(-numerator / 2**53))
    assert noise.gumbel(seed, position)[0].item() == pytest.approx(wanted, rel=1e-14)


@given(seed=SEEDS, position=POSITIONS, tokens=st.lists(TOKENS, min_size=1, max_size=40))
@settings(deadline=None)
def test_every_way_to_compute_it_gives_the_reference_bits(seed: int, position: int, tokens: list[int]) -> None:
    wanted = [hash_reference(seed, position, token) for token in tokens]
    noise = Noise(torch.tensor(tokens))
    key = stream_key(seed, position)
    assert noise.numerators(key).tolist() == wanted
    assert tensor_numerators(noise.offsets, torch.tensor([signed(key)]))[0].tolist() == wanted
    assert [noise.numerator(key, i) for i in range(len(tokens))] == wanted
    assert noise.numerators(key, np.arange(len(tokens))[::-2]).tolist() == wanted[::-2]


def test_bits_do_not_depend_on_shape_batch_or_threads() -> None:
    full = Noise(50_000)
    keys = [stream_key(3, t) for t in range(4)]
    wanted = [full.numerators(key).copy() for key in keys]
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            rows = tensor_numerators(full.offsets, torch.tensor([signed(key) for key in keys]))
            assert all((row.numpy().view(np.uint64) == w).all() for row, w in zip(rows, wanted, strict=True))
            for size in (1, 7, 33_000):
                part = tensor_numerators(full.offsets[-size:], torch.tensor([signed(keys[2])]))
                assert (part[0].numpy().view(np.uint64) == wanted[2][-size:]).all()
    finally:
        torch.set_num_threads(threads)


def test_noise_belongs_to_the_target_id_not_to_the_index() -> None:
    ids = torch.tensor([40_000, 7, 123, 9])
    assert torch.equal(Noise(ids).gumbel(11, 5), Noise(50_000).gumbel(11, 5)[ids])


def test_numbers_lie_strictly_inside_their_interval() -> None:
    """The ends of the numerators' range, and a long run of them: finite noise, never above the stated largest."""
    assert gumbel_of(1) <= MAX_GUMBEL < gumbel_of(1) + 0.05
    assert math.isfinite(gumbel_of(2**53 - 1))
    noise = Noise(100_000)
    numerators = noise.numerators(stream_key(0, 0))
    assert (numerators % np.uint64(2) == 1).all()
    assert int(numerators.max()) < 2**53
    assert torch.isfinite(noise.gumbel(0, 0)).all()


def test_bits_of_neighbours_differ_in_half() -> None:
    """A step in seed, position or token flips every usable bit half of the time."""
    base = [hash_reference(s, t, v) for s in range(20) for t in range(20) for v in range(20)]
    for step in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (0, 1, 1)):
        other = [
            hash_reference(s + step[0], t + step[1], v + step[2])
            for s in range(20)
            for t in range(20)
            for v in range(20)
        ]
        flips = np.array([a ^ b for a, b in zip(base, other, strict=True)], dtype=np.uint64)
        for bit in range(1, 53):  # bit 0 is always set
            share = float(((flips >> np.uint64(bit)) & np.uint64(1)).mean())
            assert abs(share - 0.5) < 5 * 0.5 / math.sqrt(len(base)), (step, bit, share)


def test_streams_do_not_repeat() -> None:
    keys = {stream_key(seed, position) for seed in range(300) for position in range(300)}
    assert len(keys) == 300 * 300


def test_completions_of_a_request_have_seeds_of_their_own() -> None:
    assert derived_seed(42, 0) == 42
    seeds = {derived_seed(seed, i) for seed in range(100) for i in range(1, 100)}
    assert len(seeds) == 100 * 99
    assert all(0 <= seed <= MAX_SEED for seed in seeds)
    assert derived_seed(42, 1) == 1466831814122314082


def test_a_callers_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="position must be 0 or more, got -1"):
        stream_key(0, -1)
    with pytest.raises(ValueError, match="seed must be from 0"):
        stream_key(-1, 0)
    with pytest.raises(ValueError, match="completion must be 0 or more"):
        derived_seed(0, -1)
    with pytest.raises(ValueError, match=r"int64 vector, got torch\.int32"):
        Noise(torch.tensor([1], dtype=torch.int32))
    with pytest.raises(ValueError, match="int64 vector"):
        Noise(0)
    with pytest.raises(ValueError, match="token_ids must be 0 or more, got -3"):
        Noise(torch.tensor([5, -3]))
