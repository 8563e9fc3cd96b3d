"""Draw the token of a position: argmax of (filtered logits + temperature * shared noise), or plain argmax if greedy.

Both sides call this: the target to verify, a draft for every step of its Markov head. Results are *indices of the
logits*; a draft with a reduced vocabulary built its `Noise` from target ids and maps the index by the same table.
Rows are drawn one by one, so nothing depends on what else is in the batch. This file draws on the host; rows on
another device are drawn there, by `device`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from twinspark.actors.sampling import device, filters
from twinspark.actors.sampling.noise import MAX_GUMBEL, UNIT, Noise, gumbel_of, stream_key
from twinspark.actors.sampling.settings import Sampling

# Noise for a part of the vocabulary costs a gather; below this share of it, that pays.
_WORTH_GATHERING = 0.4
# Bounds in single precision are off by less than 1e-5 (relative) where a token can still win; see `_contenders`.
_ROUNDING = 1e-3


class Margin(NamedTuple):
    """How firm a draw is, in logits. `top_two`: best minus second, noise included. `edge`: `filters.edge_distance`."""

    top_two: float
    edge: float


def draw(logits: Tensor, samplings: Sequence[Sampling], positions: Sequence[int], noise: Noise) -> list[int]:
    """Indices drawn from `logits` [rows, V] float32, row i for the token that will occupy `positions[i]`.

    Raises ValueError if a row holds NaN or +inf, or nothing but -inf, or if the shapes do not fit together.
    """
    if logits.ndim != 2 or not len(logits) == len(samplings) == len(positions):
        shape = tuple(logits.shape)
        raise ValueError(
            f"logits must be [rows, V] with a setting and a position for each row, got {shape}, "
            f"{len(samplings)} settings and {len(positions)} positions"
        )
    _check(logits, noise)
    if logits.device.type != "cpu":
        return device.draw(logits, samplings, positions, noise)
    rows = logits.detach().numpy()
    return [_draw_row(row, s, t, noise) for row, s, t in zip(rows, samplings, positions, strict=True)]


def draw_one(logits: Tensor, sampling: Sampling, position: int, noise: Noise) -> int:
    """`draw` for one row, `logits` [V]."""
    if logits.device.type != "cpu" or logits.ndim != 1:
        return draw(logits[None], [sampling], [position], noise)[0]
    _check(logits, noise)
    return _draw_row(logits.detach().numpy(), sampling, position, noise)


def margin(logits: Tensor, sampling: Sampling, position: int, noise: Noise) -> Margin:
    """How far the draw of one row [V] is from another outcome. Works everything out in full: for audits."""
    _check(logits, noise)
    row = logits.detach().cpu().numpy()
    _likeliest(row)
    scores = logits.detach().cpu().to(torch.float64)
    if not sampling.greedy:
        scores = scores + sampling.temperature * noise.gumbel(sampling.seed, position).cpu()
    scores = scores[torch.from_numpy(row >= filters.threshold(row, sampling))]
    best = scores.topk(min(2, len(scores))).values.tolist()
    return Margin(best[0] - best[1] if len(best) == 2 else math.inf, filters.edge_distance(row, sampling))


def _check(logits: Tensor, noise: Noise) -> None:
    if logits.dtype != torch.float32:
        raise ValueError(f"logits must be float32, got {logits.dtype}")
    if logits.shape[-1] != noise.size:
        raise ValueError(f"logits must cover the noise's vocabulary of {noise.size}, got {logits.shape[-1]}")
    if logits.device != noise.device:
        raise ValueError(f"logits must be on the noise's device {noise.device}, got {logits.device}")


def _likeliest(row: filters.Floats) -> int:
    """The lowest index of the largest logit. numpy's argmax stops at a NaN, so this one look finds those too."""
    best = int(row.argmax())
    if not math.isfinite(row[best]):
        raise ValueError(f"logits must be finite (-inf for a barred token, not for all), got {row[best]} at {best}")
    return best


def _draw_row(row: filters.Floats, sampling: Sampling, position: int, noise: Noise) -> int:
    likeliest = _likeliest(row)
    if sampling.greedy:
        return likeliest
    key = stream_key(sampling.seed, position)
    temperature = sampling.temperature
    # With the most noise there is, a token below this would still lose to the likeliest one with the noise it has.
    hopeless = row[likeliest] + temperature * (gumbel_of(noise.numerator(key, likeliest)) - MAX_GUMBEL)
    lowest = max(filters.threshold(row, sampling), np.nextafter(np.float32(hopeless), filters.LOWEST))
    eligible = row >= lowest
    best, best_score = likeliest, -math.inf
    for index, numerator in _contenders(row, eligible, row[likeliest], temperature, key, noise):
        score = float(row[index]) + temperature * gumbel_of(numerator)
        if score > best_score:  # strictly: the lowest index keeps a tie
            best, best_score = index, score
    return best


def _contenders(
    row: filters.Floats, eligible: npt.NDArray[np.bool_], peak: np.float32, temperature: float, key: int, noise: Noise
) -> list[tuple[int, int]]:
    """(index, numerator) of the few tokens that may win, in order of index, without a logarithm for each token.

    The largest logit + temperature * gumbel belongs to the smallest E / w, where w = exp((logit - peak) / temperature)
    and E = -log(1 - v) for the token's uniform v. As E is at least v, a token whose v / w already exceeds the E / w of
    some other cannot win. v / w is taken in float32: its relative error stays under 1e-5 as long as the exponent is
    under 41, beyond which no noise makes up for the gap; an overflow to inf is only further out.
    """
    indices = None
    if np.count_nonzero(eligible) < _WORTH_GATHERING * len(row):
        indices = np.flatnonzero(eligible)
        row = row[indices]
    numerators = noise.numerators(key, indices)
    with np.errstate(over="ignore", under="ignore"):
        bounds = np.exp((peak - row) / np.float32(temperature))
        bounds *= numerators.view(np.int64).astype(np.float32)
    if indices is None:
        bounds[~eligible] = np.inf
    first = int(bounds.argmin())
    gap = (float(peak) - float(row[first])) / temperature
    beaten = -math.log1p(-int(numerators[first]) * UNIT) / UNIT * math.exp(gap)
    places = np.flatnonzero(bounds <= beaten * (1 + _ROUNDING))
    return [(int(i if indices is None else indices[i]), int(numerators[i])) for i in places]
