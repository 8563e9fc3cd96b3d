"""The target network, whole (logits) or only its first layers (the trunk that recomputes taps), over many slots.

Knows rows and slots; what a request is, and which of its tokens count, is the engine's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from twinspark.actors.checkpoint.configs import DecoderConfig
from twinspark.actors.nets.attention import Attention, CausalMask
from twinspark.actors.nets.cache import SlotCache
from twinspark.actors.nets.layer import DecoderLayer, Norm
from twinspark.actors.nets.linear import DTYPES, Precision, make_linear
from twinspark.actors.nets.rope import rope_tables
from twinspark.actors.nets.rows import Rows, Span

Numerics = Literal["exact", "fast"]
TILE_ROWS = 8  # rows of every matrix product under exact numerics
Load = Callable[[str], Tensor]


class Decoder:
    """Embedding and layers `0 .. num_layers - 1`; with `head=True` also the final norm and lm_head.

    `load` reads one tensor by its Hugging Face name; only the names needed are asked for. Under `exact` numerics every
    product has TILE_ROWS rows and attention goes row by row, so a row's result does not depend on the rest of the pass.
    """

    def __init__(
        self,
        config: DecoderConfig,
        load: Load,
        *,
        num_layers: int | None = None,
        head: bool = True,
        precision: Precision,
        numerics: Numerics = "fast",
        num_slots: int,
        context: int,
        device: torch.device,
    ) -> None:
        self.config, self.device, self.numerics = config, device, numerics
        self.dtype = DTYPES["float32" if precision == "int8" else precision]
        num_layers = config.num_layers if num_layers is None else num_layers
        self.embedding = load("model.embed_tokens.weight").to(device=device, dtype=self.dtype)
        self.layers = [
            DecoderLayer(config, f"model.layers.{i}", load, precision=precision, device=device)
            for i in range(num_layers)
        ]
        if head:
            norm = load("model.norm.weight").to(device=device, dtype=self.dtype)
            self.norm = Norm(norm, config.rms_norm_eps)
            weight = self.embedding if config.tie_embeddings else load("lm_head.weight")
            self.lm_head = make_linear(weight, None, precision=precision, device=device)
        cos, sin = rope_tables(config.rope, config.head_dim, context, device)
        self.cos, self.sin = cos.to(self.dtype)[:, None, :], sin.to(self.dtype)[:, None, :]
        self.scratch_slot = num_slots
        self.cache = SlotCache(
            num_layers,
            num_slots=num_slots + 1,  # the last one takes the padding rows of exact numerics
            capacity=context,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=self.dtype,
            device=device,
        )

    def forward(self, rows: Rows, taps: tuple[int, ...] = ()) -> tuple[Tensor, Tensor | None]:
        """Hidden states after the last layer `[num_rows, hidden]`, and the taps `[num_rows, num_taps * hidden]`."""
        if self.numerics == "fast":
            return self._pass(rows, taps)
        passes = [self._pass(tile, taps) for tile in rows.tiles(TILE_ROWS, self.scratch_slot)]
        hidden = torch.cat([h for h, _ in passes])[: rows.num_rows]
        return hidden, torch.cat([t for _, t in passes if t is not None])[: rows.num_rows] if taps else None

    def recompute_taps(self, ids: Sequence[int], start: int, taps: tuple[int, ...]) -> Tensor:
        """Taps `[num_ids, num_taps * hidden]` of `ids` at positions from `start` on, by the layers up to the last tap.

        Positions before `start` must have been recomputed just before: they are in the scratch slot, which belongs to
        one sequence at a time. No request's cache is touched. (Exact numerics pads with position 0 of that slot, so a
        sequence recomputed over several steps may see a wrong first key: such taps serve drafts only.)
        """
        rows = Rows([Span(self.scratch_slot, start, len(ids))], ids, self.device)
        _, found = self._pass(rows, taps, num_layers=max(taps) + 1)
        if found is None:
            raise ValueError("taps must be named, got none")
        return found

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 `[rows, vocab]` from hidden states after the last layer."""
        if self.numerics == "fast":
            return self.lm_head(self.norm(hidden)).float()
        padded = functional.pad(hidden, (0, 0, 0, -hidden.shape[0] % TILE_ROWS))
        tiles = [self.lm_head(self.norm(tile)).float() for tile in padded.split(TILE_ROWS)]
        return torch.cat(tiles)[: hidden.shape[0]]

    def _pass(self, rows: Rows, taps: tuple[int, ...], num_layers: int | None = None) -> tuple[Tensor, Tensor | None]:
        x = functional.embedding(rows.token_ids, self.embedding)
        cos, sin = self.cos[rows.positions], self.sin[rows.positions]
        config = self.config
        attend = Attention(
            rows,
            CausalMask(),
            group=config.num_heads // config.num_kv_heads,
            dtype=self.dtype,
            row_by_row=self.numerics == "exact",
        )
        tapped = {-1: x}
        for i, layer in enumerate(self.layers[:num_layers]):
            x = layer.forward(i, x, rows, cos, sin, self.cache, attend)
            if i in taps:
                tapped[i] = x
        return x, torch.cat([tapped[i] for i in taps], dim=-1) if taps else None
