"""The draw of `draw`, on an accelerator: all rows in a few launches and one transfer back.

Knows the same settings, filters and noise. Everything is element-wise, a sort, or a sum of integers, so a row does not
depend on the others here either. Up to `scores` nothing waits for the device: a head's sampling loop can be captured
in a graph, with the fields of its `RowSettings` overwritten in place from round to round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twinspark.actors.sampling.filters import LOWEST, MASS_UNITS
from twinspark.actors.sampling.noise import Noise, signed, stream_key
from twinspark.actors.sampling.settings import MILLION, Sampling

# Rows drawn at once; each of their tokens takes some eight bytes a few times over.
_ROWS_AT_ONCE = 16


@dataclass(frozen=True)
class RowSettings:
    """Settings and noise keys of n rows, as tensors [n, 1] on the device. A greedy row has temperature 0, no filter."""

    keys: Tensor
    temperatures: Tensor
    top_k: Tensor
    top_p: Tensor
    log_min_p: Tensor

    @classmethod
    def of(
        cls, samplings: Sequence[Sampling], positions: Sequence[int], vocab_size: int, device: torch.device | str
    ) -> RowSettings:
        integers = [
            (signed(stream_key(s.seed, t)), min(s.top_k or vocab_size, vocab_size)) if not s.greedy else (0, vocab_size)
            for s, t in zip(samplings, positions, strict=True)
        ]
        reals = [
            (
                s.temperature,
                s.top_p_millionths / MILLION,
                math.log(s.min_p_millionths / MILLION) if s.min_p_millionths > 0 else -math.inf,
            )
            if not s.greedy
            else (0.0, 1.0, -math.inf)
            for s in samplings
        ]
        keys, top_k = torch.tensor(integers, dtype=torch.int64, device=device).split(1, dim=1)
        temperatures, top_p, log_min_p = torch.tensor(reals, dtype=torch.float64, device=device).split(1, dim=1)
        return cls(keys, temperatures, top_k, top_p, log_min_p)


def draw(logits: Tensor, samplings: Sequence[Sampling], positions: Sequence[int], noise: Noise) -> list[int]:
    """As `twinspark.actors.sampling.draw.draw`, which has checked the shapes; `logits` [rows, V] float32."""
    drawn: list[int] = []
    for start in range(0, len(samplings), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        drawn += _draw_part(logits[part], samplings[part], positions[part], noise)
    return drawn


def scores(logits: Tensor, rows: RowSettings, noise: Noise, *, filtered: bool) -> Tensor:
    """Logits + temperature * noise, [n, V] float64, -inf where a filter bars; the draw is its argmax over dim 1.

    A greedy row comes out as its logits, exactly. `filtered` says whether any row has a filter: without, it is faster.
    """
    noisy = noise.gumbel_rows(rows.keys[:, 0]).mul_(rows.temperatures).add_(logits)
    return noisy.masked_fill_(logits < thresholds(logits, rows), -math.inf) if filtered else noisy


def thresholds(logits: Tensor, rows: RowSettings) -> Tensor:
    """`filters.threshold` of every row of [n, V], as [n, 1] float32."""
    temperatures = rows.temperatures.where(rows.temperatures > 0, 1.0)
    ordered = logits.sort(dim=1, descending=True).values
    peaks = ordered[:, :1]
    lowest = ordered.gather(1, rows.top_k - 1)
    multiples = ((ordered - peaks) / temperatures.to(torch.float32)).exp()
    masses = (multiples * float(MASS_UNITS)).to(torch.int64).where(ordered >= lowest, 0)
    sums = masses.cumsum(dim=1).to(torch.float64)
    last = (sums < sums[:, -1:] * rows.top_p).sum(dim=1, keepdim=True).clamp_(max=logits.shape[1] - 1)
    lowest = lowest.maximum(ordered.gather(1, last)).where(rows.top_p < 1, lowest)
    by_min_p = (peaks + temperatures * rows.log_min_p).to(torch.float32)
    return lowest.maximum(by_min_p).clamp_(min=float(LOWEST))


def _draw_part(logits: Tensor, samplings: Sequence[Sampling], positions: Sequence[int], noise: Noise) -> list[int]:
    if all(s.greedy for s in samplings):
        outcome = logits
    else:
        rows = RowSettings.of(samplings, positions, noise.size, logits.device)
        outcome = scores(logits, rows, noise, filtered=any(s.filtered and not s.greedy for s in samplings))
    indices = outcome.argmax(dim=1, keepdim=True)
    best = outcome.gather(1, indices)
    pairs = torch.cat([indices.to(torch.float64), best.to(torch.float64)], dim=1).tolist()
    for index, value in pairs:
        if not math.isfinite(value):
            raise ValueError(
                f"logits must be finite (-inf for a barred token, not for all), got {value} at {int(index)}"
            )
    return [int(index) for index, _ in pairs]
