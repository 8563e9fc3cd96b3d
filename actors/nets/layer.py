"""One decoder layer (Llama, Qwen2, Qwen3, and the DSpark head's own): weights, and the pass of some rows through it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from twinspark.actors.checkpoint.configs import DecoderConfig
from twinspark.actors.nets.attention import Attention
from twinspark.actors.nets.cache import SlotCache
from twinspark.actors.nets.linear import DTYPES, Precision, make_linear
from twinspark.actors.nets.rope import rotate
from twinspark.actors.nets.rows import Rows

Load = Callable[[str], Tensor]


class Norm:
    """RMS norm over the last dimension, computed in float32 inside torch."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight, self.eps = weight, eps
        self.shape = tuple(weight.shape)

    def __call__(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.shape, self.weight, self.eps)


class DecoderLayer:
    """Weights under `prefix` (Hugging Face names), read through `load`."""

    def __init__(
        self, config: DecoderConfig, prefix: str, load: Load, *, precision: Precision, device: torch.device
    ) -> None:
        self.config = config
        self.dtype = DTYPES["float32" if precision == "int8" else precision]

        def norm(name: str) -> Norm:
            return Norm(load(f"{prefix}.{name}.weight").to(device=device, dtype=self.dtype), config.rms_norm_eps)

        def fused(names: tuple[str, ...], biased: bool) -> Callable[[Tensor], Tensor]:
            weight = torch.cat([load(f"{prefix}.{name}.weight") for name in names])
            bias = torch.cat([load(f"{prefix}.{name}.bias") for name in names]) if biased else None
            return make_linear(weight, bias, precision=precision, device=device)

        self.input_norm = norm("input_layernorm")
        self.mlp_norm = norm("post_attention_layernorm")
        self.qkv = fused(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), config.qkv_bias)
        self.output = fused(("self_attn.o_proj",), config.output_bias)
        self.gate_up = fused(("mlp.gate_proj", "mlp.up_proj"), config.mlp_bias)
        self.down = fused(("mlp.down_proj",), config.mlp_bias)
        self.q_norm = norm("self_attn.q_norm") if config.qk_norm else None
        self.k_norm = norm("self_attn.k_norm") if config.qk_norm else None

    def split(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys, values `[rows, heads, head_dim]` of a fused projection, normed, not yet rotated."""
        config = self.config
        heads = projected.view(projected.shape[0], -1, config.head_dim)
        queries, keys, values = heads.split((config.num_heads, config.num_kv_heads, config.num_kv_heads), dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        return queries, keys, values

    def keys_values(self, projected: Tensor) -> tuple[Tensor, Tensor]:
        """As `split`, without the queries: what positions need that nobody asks from."""
        config = self.config
        heads = projected.view(projected.shape[0], -1, config.head_dim)[:, config.num_heads :]
        keys, values = heads.split(config.num_kv_heads, dim=1)
        return keys if self.k_norm is None else self.k_norm(keys), values

    def forward(
        self, layer: int, x: Tensor, rows: Rows, cos: Tensor, sin: Tensor, cache: SlotCache, attend: Attention
    ) -> Tensor:
        """`x` [rows, hidden] through the layer; its keys and values are written to the cache first."""
        queries, keys, values = self.split(self.qkv(self.input_norm(x)))
        cache.write(layer, rows.spans, rotate(keys, cos, sin), values)
        x = x + self.output(attend(layer, rotate(queries, cos, sin), cache))
        return self.feed_forward(x)

    def feed_forward(self, x: Tensor) -> Tensor:
        """The layer's second half: `x` [rows, hidden] plus what its gated MLP adds."""
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)
