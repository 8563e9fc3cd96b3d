"""Rotary position embedding: tables of cosines and sines for default, linear, llama3 and yarn scaling.

Formulas: RoPE (arXiv 2104.09864), YaRN (arXiv 2309.00071), the rule of Llama 3.1 under the names of Hugging Face's
configuration. Checked against transformers in tests/test_nets_target.py.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from twinspark.actors.checkpoint.configs import RopeConfig


def _llama3(inverse: Tensor, rope: RopeConfig) -> Tensor:
    wavelength = 2 * math.pi / inverse
    low = rope.original_max_positions / rope.low_freq_factor
    high = rope.original_max_positions / rope.high_freq_factor
    smooth = (rope.original_max_positions / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - smooth) * inverse / rope.factor + smooth * inverse
    scaled = torch.where(wavelength > low, inverse / rope.factor, inverse)
    return torch.where((wavelength <= low) & (wavelength >= high), blended, scaled)


def _yarn(inverse: Tensor, rope: RopeConfig, head_dim: int) -> Tensor:
    def dimension_of(rotations: float) -> float:
        return head_dim * math.log(rope.original_max_positions / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return inverse / rope.factor * ramp + inverse * (1 - ramp)


def _yarn_attention_factor(rope: RopeConfig) -> float:
    def scale(mscale: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * mscale * math.log(rope.factor) + 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return scale(rope.mscale) / scale(rope.mscale_all_dim)
    return scale(1.0)


def rope_tables(rope: RopeConfig, head_dim: int, num_positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines, float32 `[num_positions, head_dim]` each, halves repeated for `rotate`."""
    inverse = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    factor = 1.0
    if rope.kind == "linear":
        inverse = inverse / rope.factor
    elif rope.kind == "llama3":
        inverse = _llama3(inverse, rope)
    elif rope.kind == "yarn":
        inverse = _yarn(inverse, rope, head_dim)
        factor = _yarn_attention_factor(rope)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), inverse)
    angles = torch.cat((angles, angles), dim=-1)
    sign = torch.cat((-torch.ones(head_dim // 2), torch.ones(head_dim // 2)))
    return (angles.cos() * factor).to(device), (angles.sin() * factor * sign).to(device)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`x` [rows, heads, head_dim] turned by `cos`, `sin` [rows, 1, head_dim], first half of the sines negated."""
    half = x.shape[-1] // 2
    return x * cos + torch.roll(x, half, dims=-1) * sin
