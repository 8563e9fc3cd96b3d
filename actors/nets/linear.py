"""Linear layers as callables: plain, prepacked for the CPU, int8 for the CPU. Knows weights, not whose they are.

On a CPU a weight in oneDNN's blocked layout makes 8 rows cost nearly what 1 does, where a plain one makes 2 rows cost
twice as much (docs/performance.md). torch has no public way to reach it without converting every activation too, so the
private operators are used behind a probe, and a build without them falls back to `torch.nn.functional.linear`.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional

Precision = Literal["float32", "bfloat16", "int8"]
DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PACK_ROWS = 8  # rows the blocked layout is chosen for: a verify pass
INT8_ROWS_AT_ONCE = 4096  # rows of a weight that are quantised at once


class Linear(Protocol):
    """`[rows, in] -> [rows, out]`, result in the dtype of the input."""

    def __call__(self, x: Tensor) -> Tensor: ...


class PlainLinear:
    """`torch.nn.functional.linear` on any device."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


class PackedLinear:
    """oneDNN's blocked weight layout (CPU, float32 or bfloat16)."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_ROWS)
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")  # type: ignore[no-any-return]


class Int8Linear:
    """int8 weights (one scale an output row), activations quantised per call (one scale a tensor). For drafts only.

    It changes the argmax in 12-19% of a target's positions (measured on SmolLM2): a draft may, a target may not.
    One operator does it all: in a draft's small steps every further one costs as much as the arithmetic.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        # In parts: float copies of a whole vocabulary would take nine times what stays, and decide what fits.
        parts = weight.split(INT8_ROWS_AT_ONCE)
        levels = int8_levels()
        scales = torch.cat([part.float().abs().amax(dim=1) for part in parts]).clamp_min(1e-12) / levels
        scaled = zip(parts, scales[:, None].split(INT8_ROWS_AT_ONCE), strict=True)
        quantised = [(part.float() / scale).round_().clamp_(-levels, levels).to(torch.int8) for part, scale in scaled]
        self.packed = _packed(torch.cat(quantised), scales, None if bias is None else bias.float())

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.quantized.linear_dynamic(x.float(), self.packed, False)
        return out.to(x.dtype)


def _packed(weight: Tensor, scales: Tensor, bias: Tensor | None) -> object:
    """`weight` int8 `[out, in]` in the layout of torch's quantised kernels."""
    zeros = torch.zeros(len(scales), dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch means to move these operators; the probes below would notice
        quantised = torch._make_per_channel_quantized_tensor(weight, scales.double(), zeros, 0)
    return torch.ops.quantized.linear_prepack(quantised, bias)


class CastLinear:
    """A layer that computes in another dtype than it is fed: what int8 becomes where it is not to be had."""

    def __init__(self, inner: Linear, dtype: torch.dtype) -> None:
        self.inner, self.dtype = inner, dtype

    def __call__(self, x: Tensor) -> Tensor:
        return self.inner(x.to(self.dtype)).to(x.dtype)


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether this torch build has the blocked layout for `dtype`, shown by using it once."""
    try:
        weight = torch.eye(16, dtype=dtype)
        return torch.equal(PackedLinear(weight, None)(weight), weight)
    except (RuntimeError, AttributeError, NotImplementedError):
        return False


@cache
def int8_levels() -> int:
    """How large an int8 weight may be. Processors without VNNI add pairs of byte products in 16 bits, which saturate:
    there weights have 7 bits. Shown by the largest sum of two products there is, not by the processor's name.
    """
    packed = _packed(torch.full((16, 16), 127, dtype=torch.int8), torch.ones(16), None)
    out: Tensor = torch.ops.quantized.linear_dynamic(torch.ones(1, 16), packed, False)  # as bytes: 255 each
    return 127 if bool(((out - 16 * 127).abs() < 1).all()) else 63


@cache
def can_int8() -> bool:
    """Whether this torch build multiplies int8 on the CPU, shown by using it once."""
    try:
        weight = torch.eye(16)
        return bool(torch.allclose(Int8Linear(weight, None)(weight), weight, atol=0.02))
    except (RuntimeError, AttributeError, NotImplementedError):
        return False


def make_linear(
    weight: Tensor, bias: Tensor | None, *, precision: Precision, device: torch.device, pack: bool = True
) -> Linear:
    """The fastest layer of `precision` for `weight` [out, in] on `device`; without int8, bfloat16."""
    if precision == "int8":
        if device.type == "cpu" and can_int8():
            return Int8Linear(weight, bias)
        return CastLinear(make_linear(weight, bias, precision="bfloat16", device=device, pack=pack), torch.bfloat16)
    dtype = DTYPES[precision]
    weight = weight.to(device=device, dtype=dtype)
    bias = None if bias is None else bias.to(device=device, dtype=dtype)
    if pack and device.type == "cpu" and can_pack(dtype):
        return PackedLinear(weight, bias)
    return PlainLinear(weight.contiguous(), bias)
