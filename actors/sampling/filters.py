"""Which tokens may be drawn: temperature, then top-k, then top-p of what is left, then min-p.

Knows logits and settings; knows no noise. The order is vLLM's for top-k and top-p (top-p is a share of the probability
that top-k leaves); min-p is relative to the likeliest token, so its place does not matter.

Every filter here is a lower bound on the logit, so together they are one number: a token survives if its logit is at
least the `threshold`. Hence tokens that tie with the last one kept are all kept, whatever order a sort would put them
in, and the likeliest token always survives. A logit of -inf never does.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from twinspark.actors.sampling.settings import MILLION, Sampling

Floats = npt.NDArray[np.float32]
Masses = npt.NDArray[np.int64]
LOWEST = np.finfo(np.float32).min

# Top-p adds up probabilities as whole numbers of 2**-42 of the likeliest one: such sums are exact, so they depend on
# neither the order of the vocabulary nor the way a device adds. 2**21 tokens fit.
MASS_UNITS = np.float32(2**42)

# Top-p sorts the tokens within these shares of the likeliest one's probability, and takes the next if that was too few.
_NUCLEUS_REACH = (1e-2, 1e-4, 1e-6, 0.0)


def threshold(row: Floats, sampling: Sampling) -> np.float32:
    """The lowest logit that survives, for one row of logits [V] whose largest is finite. Greedy filters nothing."""
    lowest = LOWEST
    if sampling.greedy or not sampling.filtered:
        return lowest
    peak = row.max()
    kept = row
    if 0 < sampling.top_k < len(row):
        lowest = max(lowest, np.partition(row, len(row) - sampling.top_k)[len(row) - sampling.top_k])
        kept = row[row >= lowest]
    if sampling.top_p_millionths < MILLION:
        lowest = max(lowest, _nucleus(kept, peak, sampling))
    return max(lowest, _min_p(peak, sampling))


def survivors(logits: Tensor, sampling: Sampling) -> Tensor:
    """Which tokens of one row [V] may be drawn, as booleans [V]."""
    row = logits.detach().cpu().numpy()
    return torch.from_numpy(row >= threshold(row, sampling)).to(logits.device)


def edge_distance(row: Floats, sampling: Sampling) -> float:
    """How far, in logits, the nearest token lies from being let in or shut out by a filter; inf without filters.

    It is the least difference between two logits (or, for top-p, between the two halves of the vocabulary moved
    against each other) whose change would alter the set of survivors. Sorts the row: for audits, not for drawing.
    """
    distances = [math.inf]
    if sampling.greedy or not sampling.filtered:
        return math.inf
    ordered = np.sort(row[row >= LOWEST])[::-1].astype(np.float64)
    k = sampling.top_k
    if 0 < k < len(ordered):
        distances.append(ordered[k - 1] - ordered[k])
        ordered = ordered[ordered >= ordered[k - 1]]
    top_p = sampling.top_p_millionths / MILLION
    if top_p < 1:
        mass = np.cumsum(np.exp((ordered - ordered[0]) / sampling.temperature))
        mass /= mass[-1]
        last = min(int(np.searchsorted(mass, top_p)), len(ordered) - 1)
        wanted = _log_odds(top_p)
        distances += [sampling.temperature * abs(_log_odds(m) - wanted) for m in mass[max(last - 1, 0) : last + 1]]
        distances += list(ordered[last : last + 1] - ordered[last + 1 : last + 2])
        ordered = ordered[ordered >= ordered[last]]
    if sampling.min_p_millionths > 0:
        bound = ordered[0] + sampling.temperature * math.log(sampling.min_p_millionths / MILLION)
        # the likeliest token itself is never shut out
        distances += list(np.abs(ordered[1:] - bound))
    return float(min(distances))


def _log_odds(share: float) -> float:
    return math.log(share / (1 - share)) if share < 1 else math.inf


def _min_p(peak: np.float32, sampling: Sampling) -> np.float32:
    if sampling.min_p_millionths == 0:
        return LOWEST
    return np.float32(float(peak) + sampling.temperature * math.log(sampling.min_p_millionths / MILLION))


def _masses(row: Floats, peak: np.float32, sampling: Sampling) -> Masses:
    with np.errstate(over="ignore", under="ignore"):
        multiples = np.exp((row - peak) / np.float32(sampling.temperature))
    masses: Masses = (multiples * MASS_UNITS).astype(np.int64)
    return masses


def _nucleus(kept: Floats, peak: np.float32, sampling: Sampling) -> np.float32:
    """The lowest logit of the smallest set of likeliest tokens that holds top_p of the mass of `kept`."""
    wanted = float(_masses(kept, peak, sampling).sum()) * (sampling.top_p_millionths / MILLION)
    for reach in _NUCLEUS_REACH:
        likely = kept[kept >= float(peak) + sampling.temperature * math.log(reach)] if reach else kept
        likely = np.sort(likely)[::-1]
        first = int(np.searchsorted(np.cumsum(_masses(likely, peak, sampling)), wanted))
        if first < len(likely):
            return np.float32(likely[first])
    return LOWEST
