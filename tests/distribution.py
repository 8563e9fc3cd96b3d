"""What a distribution should be, slowly and clearly, and whether counted draws fit it. For any test that samples.

Shares no code with `twinspark.actors.sampling.filters`: it is what that is measured against.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2

Reals = npt.NDArray[np.float64]


def exact_probs(
    logits: npt.ArrayLike, *, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Reals:
    """Probabilities [V] after temperature, top-k, top-p of the rest, min-p; ties with the last one kept are kept."""
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    raw = np.exp(scaled - scaled.max())
    probs = raw / raw.sum()
    if 0 < top_k < len(probs):
        last = sorted(scaled, reverse=True)[top_k - 1]
        probs = np.where(scaled >= last, probs, 0.0)
        probs /= probs.sum()
    if top_p < 1.0:
        mass = 0.0
        last = np.inf
        for i in sorted(range(len(probs)), key=lambda i: -scaled[i]):
            if mass >= top_p:
                break
            mass += probs[i]
            last = scaled[i]
        probs = np.where(scaled >= last, probs, 0.0)
    if min_p > 0.0:
        probs = np.where(raw >= min_p, probs, 0.0)
    return probs / probs.sum()


def counts_of(draws: Iterable[int], size: int) -> npt.NDArray[np.int64]:
    return np.bincount(np.fromiter(draws, dtype=np.int64), minlength=size)


def chi_square_p(counts: npt.ArrayLike, probs: npt.ArrayLike, *, min_expected: float = 5.0) -> float:
    """How often honest draws would fit worse than `counts` do. Cells of few expected draws are pooled.

    0.0 if anything was drawn that has no probability at all.
    """
    observed, wanted = np.ravel(counts).astype(np.float64), np.ravel(probs).astype(np.float64)
    if observed.shape != wanted.shape:
        raise ValueError(f"counts and probs must be of one size, got {observed.shape} and {wanted.shape}")
    if observed[wanted == 0].any():
        return 0.0
    expected = wanted / wanted.sum() * observed.sum()
    small = expected < min_expected
    cells = [*zip(observed[~small], expected[~small], strict=True)]
    if expected[small].sum() > 0:
        cells.append((observed[small].sum(), expected[small].sum()))
    if len(cells) < 2:
        return 1.0
    statistic = sum((o - e) ** 2 / e for o, e in cells)
    return float(chi2.sf(statistic, len(cells) - 1))
