"""The DSpark head's network: context keys/values from taps, one block pass, base logits, confidence.

Knows slots and positions; sessions, sampling and lengths are the drafter's business. Conventions: golden/README.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from twinspark.actors.checkpoint.configs import HeadConfig
from twinspark.actors.nets.attention import Attention, BlockMask
from twinspark.actors.nets.cache import SlotCache
from twinspark.actors.nets.layer import DecoderLayer, Norm
from twinspark.actors.nets.linear import DTYPES, Linear, Precision, make_linear
from twinspark.actors.nets.markov import Markov
from twinspark.actors.nets.rope import rope_tables, rotate
from twinspark.actors.nets.rows import Rows, Span

Load = Callable[[str], Tensor]


@dataclass(frozen=True)
class HeadPrecision:
    """Precision part by part (int8 costs acceptance in the trunk, none elsewhere: docs/performance.md)."""

    backbone: Precision
    lm_head: Precision
    markov: Precision

    @classmethod
    def uniform(cls, precision: Precision) -> HeadPrecision:
        return cls(precision, precision, precision)


class Head:
    """`embedding` `[vocab, hidden]` and `lm_head` are the head's own where its file holds them, else the target's."""

    def __init__(
        self,
        config: HeadConfig,
        load: Load,
        *,
        embedding: Tensor,
        lm_head: Tensor,
        precision: HeadPrecision,
        num_slots: int,
        context: int,
        device: torch.device,
    ) -> None:
        self.config, self.device = config, device
        self.dtype = DTYPES["float32" if precision.backbone == "int8" else precision.backbone]
        decoder = config.decoder
        self.embedding = embedding
        self.fc = make_linear(load("fc.weight"), None, precision=precision.backbone, device=device)
        self.hidden_norm = self._norm(load("hidden_norm.weight"))
        self.norm = self._norm(load("norm.weight"))
        self.layers = [
            DecoderLayer(decoder, f"layers.{i}", load, precision=precision.backbone, device=device)
            for i in range(decoder.num_layers)
        ]
        self.lm_head: Linear = make_linear(lm_head, None, precision=precision.lm_head, device=device)
        self.markov = (
            None
            if config.markov_kind == "none"
            else Markov(config.markov_kind, config.markov_rank, load, precision=precision.markov, device=device)
        )
        if config.has_confidence:
            self.confidence_weight = load("confidence_head.proj.weight").to(device=device, dtype=torch.float32)
            self.confidence_bias = load("confidence_head.proj.bias").to(device=device, dtype=torch.float32)
        capacity = context + config.block_size
        cos, sin = rope_tables(decoder.rope, decoder.head_dim, capacity, device)
        self.cos, self.sin = cos.to(self.dtype)[:, None, :], sin.to(self.dtype)[:, None, :]
        self.cache = SlotCache(
            decoder.num_layers,
            num_slots=num_slots,
            capacity=capacity,
            num_kv_heads=decoder.num_kv_heads,
            head_dim=decoder.head_dim,
            dtype=self.dtype,
            device=device,
        )
        windows = config.layer_windows or (None,) * decoder.num_layers
        self.masks = [BlockMask(window, causal=window is not None and config.windows_are_causal) for window in windows]

    def _norm(self, weight: Tensor) -> Norm:
        return Norm(weight.to(device=self.device, dtype=self.dtype), self.config.decoder.rms_norm_eps)

    def extend(self, spans: Sequence[Span], taps: Tensor) -> None:
        """Project `taps` [rows, num_taps * hidden] of the spans' positions into every layer's context."""
        rows = Rows(spans, [0] * taps.shape[0], self.device)
        context = self.hidden_norm(self.fc(taps.to(self.dtype)))
        cos, sin = self.cos[rows.positions], self.sin[rows.positions]
        for i, layer in enumerate(self.layers):
            keys, values = layer.keys_values(layer.qkv(context))
            self.cache.write(i, rows.spans, rotate(keys, cos, sin), values)

    def block(self, anchors: Sequence[tuple[int, int, int]]) -> Tensor:
        """Hidden states after the final norm `[num_requests, block_size, hidden]`, for (slot, position, id) anchors.

        The context of a slot must hold every position before its anchor. The block's own keys lie in the cache after it
        until the context grows over them.
        """
        size, mask_id = self.config.block_size, self.config.mask_token_id
        spans = [Span(slot, position, size) for slot, position, _ in anchors]
        ids = [i for _, _, anchor in anchors for i in (anchor, *[mask_id] * (size - 1))]
        rows = Rows(spans, ids, self.device)
        x = functional.embedding(rows.token_ids, self.embedding).to(self.dtype)
        cos, sin = self.cos[rows.positions], self.sin[rows.positions]
        group = self.config.decoder.num_heads // self.config.decoder.num_kv_heads
        attends = {
            mask: Attention(rows, mask, group=group, dtype=self.dtype, row_by_row=False) for mask in set(self.masks)
        }
        for i, layer in enumerate(self.layers):
            x = layer.forward(i, x, rows, cos, sin, self.cache, attends[self.masks[i]])
        return self.norm(x).view(len(anchors), size, -1)

    def confidence(self, hidden: Tensor, prev: Tensor) -> Tensor:
        """Confidence logits (before the sigmoid) `[n]`, from `hidden` [n, hidden] and previous ids `prev` [n]."""
        features = hidden.float()
        if self.config.confidence_uses_markov and self.markov is not None:
            features = torch.cat((features, self.markov.rows(prev).float()), dim=-1)
        return functional.linear(features, self.confidence_weight, self.confidence_bias).squeeze(-1)
