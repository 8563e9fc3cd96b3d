"""Key/value caches: a slot a request, lengths kept by whoever fills them. Rejected rows are simply overwritten."""

from __future__ import annotations

import torch
from torch import Tensor

from twinspark.actors.nets.rows import Span


class SlotCache:
    """Keys and values `[num_slots, kv_heads, capacity, head_dim]` per layer."""

    def __init__(
        self,
        num_layers: int,
        *,
        num_slots: int,
        capacity: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_slots, num_kv_heads, capacity, head_dim)
        self.num_slots, self.capacity = num_slots, capacity
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]

    def write(self, layer: int, spans: tuple[Span, ...], keys: Tensor, values: Tensor) -> None:
        """Store `keys`, `values` [rows, kv_heads, head_dim] at their spans' positions."""
        at = 0
        for span in spans:
            rows = slice(at, at + span.count)
            self.keys[layer][span.slot, :, span.start : span.end] = keys[rows].transpose(0, 1)
            self.values[layer][span.slot, :, span.start : span.end] = values[rows].transpose(0, 1)
            at += span.count
