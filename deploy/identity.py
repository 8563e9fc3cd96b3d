"""Are two runs the same, token for token, and if not: may they differ there? (DESIGN section 7, invariant 1.)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twinspark.actors.sampling.settings import MILLION
from twinspark.actors.target.request import Request
from twinspark.cluster.pair import Pair

MOST_MARGIN = (
    2e-3  # logits: float32 runs may part only where two tokens, or a token and a filter's edge, are this close
)


@dataclass(frozen=True)
class Difference:
    """Where two runs of a request part, and how firm the draw was there, in logits."""

    index: int
    top_two: float
    edge: float

    @property
    def is_rounding(self) -> bool:
        """Whether rounding alone explains it in float32."""
        return min(self.top_two, self.edge) < MOST_MARGIN


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The first index at which two token sequences differ, None where they are the same."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


async def audit(pair: Pair, request: Request, a: Sequence[int], b: Sequence[int]) -> Difference | None:
    """None where `a` equals `b`; else where they part, with the margin computed afresh by `pair`'s idle target."""
    index = first_difference(a, b)
    if index is None:
        return None
    top_two, edge = await pair.margin_millionths([*request.prompt, *a[:index]], request.sampling)
    return Difference(index, top_two / MILLION, edge / MILLION)
