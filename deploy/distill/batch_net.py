"""A target over a batch of texts that all stand at the same position: every position at once, or one after another.

Its weights are a `Decoder`'s; only the caches and the attention are a batch's own. Knows ids and positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from twinspark.actors.nets.decoder import Decoder
from twinspark.actors.nets.rope import rotate


@dataclass(frozen=True)
class BatchCache:
    """Keys and values of every layer, `[texts, kv_heads, positions, head_dim]` each."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]


class BatchNet:
    """Forward passes only; nothing here has a gradient."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.device, self.dtype = decoder.device, decoder.dtype

    @torch.no_grad()
    def texts(self, ids: Tensor, taps: tuple[int, ...] = ()) -> tuple[Tensor, Tensor | None]:
        """Of `ids` [texts, positions]: hidden states after the last layer `[texts, positions, hidden]`, and the taps
        `[texts, positions, num_taps * hidden]`.
        """
        decoder = self.decoder
        num_texts, length = ids.shape
        x = functional.embedding(ids.reshape(-1), decoder.embedding)
        cos, sin = (table[:length].repeat(num_texts, 1, 1) for table in (decoder.cos, decoder.sin))
        tapped = {-1: x}
        for i, layer in enumerate(decoder.layers):
            queries, keys, values = layer.split(layer.qkv(layer.input_norm(x)))
            queries, keys, values = (
                part.view(num_texts, length, *part.shape[1:]).transpose(1, 2)
                for part in (rotate(queries, cos, sin), rotate(keys, cos, sin), values)
            )
            seen = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
            x = x + layer.output(seen.transpose(1, 2).reshape(num_texts * length, -1))
            x = layer.feed_forward(x)
            if i in taps:
                tapped[i] = x
        shape = (num_texts, length, -1)
        return x.view(shape), torch.cat([tapped[i] for i in taps], dim=-1).view(shape) if taps else None

    def cache(self, num_texts: int, length: int) -> BatchCache:
        """Empty caches for `step`."""
        config = self.decoder.config
        shape = (num_texts, config.num_kv_heads, length, config.head_dim)

        def empty() -> tuple[Tensor, ...]:
            return tuple(torch.zeros(shape, dtype=self.dtype, device=self.device) for _ in self.decoder.layers)

        return BatchCache(empty(), empty())

    @torch.no_grad()
    def step(self, ids: Tensor, position: Tensor, cache: BatchCache, reach: int) -> Tensor:
        """float32 logits `[texts, vocab]` after `ids` [texts] at `position` (int64 [1], on the device, below `reach`).

        Nothing waits for the device, and nothing depends on the value of `position`: it can be captured in a graph.
        """
        decoder, config = self.decoder, self.decoder.config
        group = config.num_heads // config.num_kv_heads
        x = functional.embedding(ids, decoder.embedding)
        cos, sin = decoder.cos[position], decoder.sin[position]
        hidden_keys = torch.arange(reach, device=self.device) > position
        bias = torch.zeros(reach, dtype=self.dtype, device=self.device).masked_fill_(hidden_keys, float("-inf"))
        for i, layer in enumerate(decoder.layers):
            queries, keys, values = layer.split(layer.qkv(layer.input_norm(x)))
            cache.keys[i].index_copy_(2, position, rotate(keys, cos, sin)[:, :, None])
            cache.values[i].index_copy_(2, position, values[:, :, None])
            # The query heads of a key head are its rows: keys and values are not copied.
            rows = rotate(queries, cos, sin).view(len(ids), config.num_kv_heads, group, config.head_dim)
            seen = functional.scaled_dot_product_attention(
                rows, cache.keys[i][:, :, :reach], cache.values[i][:, :, :reach], attn_mask=bias.expand(group, reach)
            )
            x = x + layer.output(seen.reshape(len(ids), -1))
            x = layer.feed_forward(x)
        return decoder.logits(x)
