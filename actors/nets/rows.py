"""Rows of a forward pass: which token, at which position, of which request's slot. Knows nothing of layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Span:
    """Consecutive rows of one request: `count` tokens from position `start` on, in cache slot `slot`."""

    slot: int
    start: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count


class Rows:
    """The rows of one pass, span after span; `token_ids` and `positions` are int64 `[num_rows]` on `device`."""

    def __init__(self, spans: Sequence[Span], token_ids: Sequence[int], device: torch.device) -> None:
        self.spans = tuple(spans)
        self.num_rows = len(token_ids)
        if sum(span.count for span in self.spans) != self.num_rows:
            raise ValueError(f"spans must cover {self.num_rows} rows, got {sum(span.count for span in self.spans)}")
        self.device = device
        self._ids = token_ids

    @cached_property
    def token_ids(self) -> Tensor:
        return torch.tensor(self._ids, dtype=torch.int64, device=self.device)

    @cached_property
    def positions(self) -> Tensor:
        positions = [p for span in self.spans for p in range(span.start, span.end)]
        return torch.tensor(positions, dtype=torch.int64, device=self.device)

    def tiles(self, size: int, scratch_slot: int) -> list[Rows]:
        """The same rows in tiles of exactly `size`; what is missing is token 0 at position 0 of the scratch slot."""
        flat = [
            (Span(span.slot, position, 1), token)
            for span, tokens in zip(self.spans, self._per_span(), strict=True)
            for position, token in zip(range(span.start, span.end), tokens, strict=True)
        ]
        padding = -len(flat) % size
        flat += [(Span(scratch_slot, 0, 1), 0)] * padding
        return [
            Rows([span for span, _ in flat[i : i + size]], [token for _, token in flat[i : i + size]], self.device)
            for i in range(0, len(flat), size)
        ]

    def _per_span(self) -> list[Sequence[int]]:
        pieces, at = [], 0
        for span in self.spans:
            pieces.append(self._ids[at : at + span.count])
            at += span.count
        return pieces
