"""Attention of a pass's rows over their slots' caches; grouped-query heads are folded into the query rows, not copied.

Two shapes of mask: `causal` (a row sees every position up to its own) and `block` (a head's block: every row sees all
context before the block and the block itself; sliding layers see `window` context positions and, where causal, only the
earlier rows of the block).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from twinspark.actors.nets.cache import SlotCache
from twinspark.actors.nets.rows import Rows, Span


@dataclass(frozen=True)
class CausalMask:
    """A row at position p sees positions 0 .. p."""

    def first_key(self, span: Span) -> int:
        return 0

    def visible(self, span: Span, device: torch.device) -> Tensor | None:
        """Boolean `[rows, keys]`, None where everything is visible."""
        if span.count == 1:
            return None
        keys = torch.arange(span.end, device=device)
        rows = torch.arange(span.start, span.end, device=device)
        return keys[None, :] <= rows[:, None]


@dataclass(frozen=True)
class BlockMask:
    """A head's block: context and block both ways, or the sliding variant (module docstring)."""

    window: int | None = None
    causal: bool = False

    def first_key(self, span: Span) -> int:
        return 0 if self.window is None else max(0, span.start - self.window)

    def visible(self, span: Span, device: torch.device) -> Tensor | None:
        if self.window is None or not self.causal:
            return None
        keys = torch.arange(self.first_key(span), span.end, device=device)
        rows = torch.arange(span.start, span.end, device=device)
        return keys[None, :] <= rows[:, None]


Mask = CausalMask | BlockMask


def _products(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Unmasked attention as two batched products, `[kv_heads, rows, head_dim]` each."""
    scores = torch.bmm(queries, keys.transpose(1, 2)).mul_(queries.shape[-1] ** -0.5)
    return torch.bmm(torch.softmax(scores, dim=-1), values)


class Attention:
    """Attends for one pass: masks are made once a pass, used by every layer."""

    def __init__(self, rows: Rows, mask: Mask, *, group: int, dtype: torch.dtype, row_by_row: bool) -> None:
        self.mask = mask
        row_by_row = row_by_row and isinstance(mask, CausalMask)
        self.pieces = (
            [Span(s.slot, p, 1) for s in rows.spans for p in range(s.start, s.end)] if row_by_row else list(rows.spans)
        )
        # torch's fused kernel for the CPU rounds otherwise with another thread count, in float32 only; bmm does not.
        self.use_products = row_by_row and dtype == torch.float32 and rows.device.type == "cpu"
        self.bias: list[Tensor | None] = []
        for span in self.pieces:
            visible = mask.visible(span, rows.device)
            if visible is None:
                self.bias.append(None)
            else:
                bias = torch.zeros(visible.shape, dtype=dtype, device=rows.device)
                bias.masked_fill_(~visible, float("-inf"))
                self.bias.append(bias.repeat(group, 1))

    def __call__(self, layer: int, queries: Tensor, cache: SlotCache) -> Tensor:
        """`queries` [rows, heads, head_dim] -> [rows, heads * head_dim], reading the cache's `layer`."""
        num_rows, num_heads, head_dim = queries.shape
        out = torch.empty_like(queries)
        at = 0
        for span, bias in zip(self.pieces, self.bias, strict=True):
            first = self.mask.first_key(span)
            keys = cache.keys[layer][span.slot, :, first : span.end]
            values = cache.values[layer][span.slot, :, first : span.end]
            kv_heads = keys.shape[0]
            piece = queries[at : at + span.count].transpose(0, 1).reshape(kv_heads, -1, head_dim)
            if self.use_products:
                seen = _products(piece, keys, values)
            else:
                seen = functional.scaled_dot_product_attention(piece[None], keys[None], values[None], attn_mask=bias)
            out[at : at + span.count] = seen.reshape(num_heads, span.count, head_dim).transpose(0, 1)
            at += span.count
        return out.view(num_rows, num_heads * head_dim)
