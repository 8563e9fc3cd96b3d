"""How a request wants its tokens drawn, as integers: what crosses the boundary is what both sides compute with."""

from __future__ import annotations

import math
from dataclasses import dataclass

MILLION = 1_000_000
MAX_TEMPERATURE = 100.0
MAX_SEED = 2**63 - 1
MAX_TOP_K = 2**31 - 1


def millionths(name: str, value: float, low: float, high: float) -> int:
    """`value` in millionths. Raises ValueError unless it is a number in [low, high]."""
    if not math.isfinite(value) or not low <= value <= high:
        raise ValueError(f"{name} must be a number from {low:g} to {high:g}, got {value}")
    return round(value * MILLION)


@dataclass(frozen=True)
class Sampling:
    """Temperature 0 is greedy. `top_k` 0, `top_p` 1.0 and `min_p` 0.0 filter nothing."""

    temperature_millionths: int = 0
    top_k: int = 0
    top_p_millionths: int = MILLION
    min_p_millionths: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("temperature_millionths", self.temperature_millionths, 0, int(MAX_TEMPERATURE) * MILLION),
            ("top_k", self.top_k, 0, MAX_TOP_K),
            ("top_p_millionths", self.top_p_millionths, 1, MILLION),
            ("min_p_millionths", self.min_p_millionths, 0, MILLION),
            ("seed", self.seed, 0, MAX_SEED),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ValueError(f"{name} must be an integer from {low} to {high}, got {value!r}")

    @classmethod
    def of(
        cls, *, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, seed: int = 0
    ) -> Sampling:
        """From the numbers people write. Raises ValueError naming the one that is out of range."""
        if not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
            raise ValueError(f"seed must be an integer from 0 to {MAX_SEED}, got {seed!r}")
        if not isinstance(top_k, int) or not 0 <= top_k <= MAX_TOP_K:
            raise ValueError(f"top_k must be an integer from 0 (off) to {MAX_TOP_K}, got {top_k!r}")
        return cls(
            temperature_millionths=millionths("temperature", temperature, 0.0, MAX_TEMPERATURE),
            top_k=top_k,
            top_p_millionths=millionths("top_p", top_p, 1e-6, 1.0),
            min_p_millionths=millionths("min_p", min_p, 0.0, 1.0),
            seed=seed,
        )

    @property
    def greedy(self) -> bool:
        return self.temperature_millionths == 0

    @property
    def temperature(self) -> float:
        return self.temperature_millionths / MILLION

    @property
    def filtered(self) -> bool:
        """Whether any filter removes tokens."""
        return self.top_k > 0 or self.top_p_millionths < MILLION or self.min_p_millionths > 0
