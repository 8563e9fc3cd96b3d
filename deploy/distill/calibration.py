"""Confidence made honest: sequential scaling (DSpark paper, section 3.2.1), and how honest it is.

A slot's confidence is the chance that its draft token is kept given that those before it were; what is scaled, slot
after slot, is judged by the product up to there: the chance that the whole prefix survives. Beside the paper's
temperature a slot has a shift: the confidence learns 1 - TV, of which greedy keeps more and shared noise less, also
where it is one half, which no temperature moves. Works on plain arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float64]

BINS = 15  # of equal mass
LEAST_TEMPERATURE, MOST_TEMPERATURE, MOST_SHIFT = 0.05, 20.0, 10.0
TINY = 1e-12


@dataclass(frozen=True)
class Scaling:
    """A slot's chance is sigmoid(logit / temperature + shift); `[slots]` each."""

    temperatures: Floats
    shifts: Floats

    @classmethod
    def none(cls, num_slots: int) -> Scaling:
        return cls(np.ones(num_slots), np.zeros(num_slots))


@dataclass(frozen=True)
class Reliability:
    """Of one slot's prefix: expected calibration error, Brier score, and that of always telling the base rate."""

    expected_error: float
    brier: float
    base_brier: float


def prefix_survival(logits: Floats, scaling: Scaling) -> Floats:
    """`[blocks, slots]` products of the slots' chances up to each slot."""
    return np.cumprod(_sigmoid(logits / scaling.temperatures + scaling.shifts), axis=1, dtype=np.float64)


def fit_scaling(logits: Floats, survived: Floats) -> Scaling:
    """Slot after slot, with those before it held: the likeliest for whether prefixes `survived` [blocks, slots], as 0
    or 1 (or chances).
    """
    before = np.ones(len(logits))
    found = Scaling.none(logits.shape[1])
    for k in range(logits.shape[1]):
        found.temperatures[k], found.shifts[k] = _likeliest(logits[:, k], before, survived[:, k])
        before = prefix_survival(logits[:, : k + 1], Scaling(found.temperatures[: k + 1], found.shifts[: k + 1]))[:, k]
    return found


def _likeliest(logits: Floats, before: Floats, survived: Floats) -> tuple[float, float]:
    """Temperature and shift of a slot behind prefixes that survive with the chances `before`."""
    logit, prefix, came = (torch.from_numpy(np.ascontiguousarray(values)) for values in (logits, before, survived))
    free = torch.zeros(2, dtype=torch.float64, requires_grad=True)  # log temperature, shift
    solver = torch.optim.LBFGS([free], max_iter=100, line_search_fn="strong_wolfe")

    def scaled() -> tuple[Tensor, Tensor]:
        temperature = free[0].exp().clamp(LEAST_TEMPERATURE, MOST_TEMPERATURE)
        return temperature, free[1].clamp(-MOST_SHIFT, MOST_SHIFT)

    def loss() -> Tensor:
        solver.zero_grad()
        temperature, shift = scaled()
        told = (prefix * torch.sigmoid(logit / temperature + shift)).clamp(TINY, 1 - TINY)
        worth = -(came * told.log() + (1 - came) * torch.log1p(-told)).mean()
        worth.backward()  # type: ignore[no-untyped-call]
        return worth

    solver.step(loss)  # type: ignore[no-untyped-call]
    temperature, shift = scaled()
    return temperature.item(), shift.item()


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
