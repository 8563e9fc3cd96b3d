"""Confidence made honest: sequential temperature scaling (DSpark paper, section 3.2.1), and how honest it is.

A slot's confidence is the chance that its draft token is kept given that those before it were; what is scaled, slot
after slot, is judged by the product up to there: the chance that the whole prefix survives. Works on plain arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

BINS = 15  # of equal mass
TEMPERATURES = np.exp(np.linspace(np.log(0.05), np.log(20.0), 241))
TINY = 1e-12


@dataclass(frozen=True)
class Reliability:
    """Of one slot's prefix: expected calibration error, Brier score, and that of always telling the base rate."""

    expected_error: float
    brier: float
    base_brier: float


def prefix_survival(logits: Floats, temperatures: Floats) -> Floats:
    """`[blocks, slots]` products of sigmoid(logit / temperature) up to each slot."""
    return np.cumprod(_sigmoid(logits / temperatures), axis=1, dtype=np.float64)


def fit_temperatures(logits: Floats, survived: Floats) -> Floats:
    """One temperature a slot, each with those before it held: the likeliest for whether prefixes `survived` [blocks,
    slots], as 0 or 1 (or chances).
    """
    before = np.ones(len(logits))
    found = []
    for k in range(logits.shape[1]):
        worth = [_log_loss(before * _sigmoid(logits[:, k] / t), survived[:, k]) for t in TEMPERATURES]
        best = float(TEMPERATURES[int(np.argmin(worth))])
        before = before * _sigmoid(logits[:, k] / best)
        found.append(best)
    return np.array(found)


def reliability(survival: Floats, survived: Floats) -> list[Reliability]:
    """Slot by slot, of told chances `survival` and what came of them."""
    return [
        Reliability(
            expected_error=sum(share * abs(told - came) for told, came, share in curve(survival[:, k], survived[:, k])),
            brier=float(np.mean((survival[:, k] - survived[:, k]) ** 2)),
            base_brier=float(np.mean((survived[:, k].mean() - survived[:, k]) ** 2)),
        )
        for k in range(survival.shape[1])
    ]


def curve(told: Floats, came: Floats) -> list[tuple[float, float, float]]:
    """(mean told, mean of what came, share of all) for each of BINS bins of equal mass."""
    order = np.argsort(told, kind="stable")
    parts = [part for part in np.array_split(order, BINS) if len(part)]
    return [(float(told[part].mean()), float(came[part].mean()), len(part) / len(told)) for part in parts]


def _sigmoid(x: Floats) -> Floats:
    out: Floats = 1 / (1 + np.exp(-np.clip(x, -50, 50)))
    return out


def _log_loss(told: Floats, came: Floats) -> float:
    told = np.clip(told, TINY, 1 - TINY)
    return float(-np.mean(came * np.log(told) + (1 - came) * np.log1p(-told)))
