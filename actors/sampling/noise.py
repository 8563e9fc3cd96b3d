"""The shared noise: one number for every (seed, position, token), the same bits wherever it is computed.

Knows integers and target token ids. Knows nothing of logits, temperature or filters; `draw` adds those.

A seed and a position make a 64-bit key (exact, in Python integers). Key and token id go through one splitmix64
finaliser; its upper bits, made odd, are n / 2**53: a uniform number strictly inside (0, 1), exact in float64. From it
E = -log(1 - n / 2**53) is exponential and -log(E) is Gumbel. What wins a draw is a *small* E, and there float64 keeps
2**-53 steps, so a token of one in a million competes at full resolution.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from twinspark.actors.sampling.settings import MAX_SEED

UInt64s = npt.NDArray[np.uint64]

WORD = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15  # splitmix64's increment: steps from one token id to the next
POSITION_STEP = 0xD1B54A32D192ED03  # odd, unrelated to GOLDEN: steps from one position to the next
COMPLETION_STEP = 0x8CB92BA72F3D8DD7  # odd: steps from one completion of a request to the next
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
UNIT = 2.0**-53
MAX_GUMBEL = 36.75  # a little over -log(-log1p(-2**-53)) = 36.7368, the largest value that can occur

_FIRST, _SECOND, _THIRD, _TO_53_BITS, _ODD = (np.uint64(n) for n in (30, 27, 31, 11, 1))
_MUL1, _MUL2 = (np.uint64(m) for m in MULTIPLIERS)


def mix64(z: int) -> int:
    """splitmix64's finaliser on an unsigned 64-bit integer."""
    z = ((z ^ (z >> 30)) * MULTIPLIERS[0]) & WORD
    z = ((z ^ (z >> 27)) * MULTIPLIERS[1]) & WORD
    return z ^ (z >> 31)


def stream_key(seed: int, position: int) -> int:
    """The unsigned 64-bit key of a position's noise. The steps added first keep (0, 0, token 0) off mix64(0) = 0."""
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed must be from 0 to {MAX_SEED}, got {seed}")
    if position < 0:
        raise ValueError(f"position must be 0 or more, got {position}")
    return mix64((mix64((seed + GOLDEN) & WORD) + (position + 1) * POSITION_STEP) & WORD)


def derived_seed(seed: int, completion: int) -> int:
    """The seed of a request's i-th completion; the 0-th has the request's own."""
    if completion < 0:
        raise ValueError(f"completion must be 0 or more, got {completion}")
    if completion == 0:
        return seed
    return mix64((mix64((seed + GOLDEN) & WORD) + completion * COMPLETION_STEP) & WORD) & MAX_SEED


def signed(key: int) -> int:
    """The int64 with the bits of an unsigned 64-bit integer, for tensors."""
    return key - 2**64 if key > MAX_SEED else key


def gumbel_of(numerator: int) -> float:
    """Gumbel noise of one numerator, as `Noise.numerators` gives them."""
    return -math.log(-math.log1p(-numerator * UNIT))


def tensor_numerators(offsets: Tensor, keys: Tensor) -> Tensor:
    """`Noise.numerators` in int64 tensor operations, on any device: `keys` [n] and `offsets` [V] give [n, V].

    int64 products and sums wrap; a right shift copies the sign, so each is masked back to a logical one.
    """
    z = keys[:, None] + offsets
    for shift, multiplier in zip((30, 27), MULTIPLIERS, strict=True):
        z.bitwise_xor_((z >> shift).bitwise_and_(WORD >> shift)).mul_(signed(multiplier))
    z.bitwise_xor_((z >> 31).bitwise_and_(WORD >> 31))
    return (z >> 11).bitwise_and_(WORD >> 11).bitwise_or_(1)


class Noise:
    """Noise for one vocabulary: the target's, or a draft's reduced one given by its target ids.

    Reuses buffers between calls, so each compute thread needs its own.
    """

    def __init__(self, token_ids: Tensor | int, device: torch.device | str = "cpu") -> None:
        """`token_ids`: the *target* id of every index of the logits (int64 [V]); a number means 0 .. V - 1."""
        ids = torch.arange(token_ids) if isinstance(token_ids, int) else token_ids.cpu()
        if ids.ndim != 1 or len(ids) == 0 or ids.dtype != torch.int64:
            raise ValueError(f"token_ids must be a filled int64 vector, got {ids.dtype} of shape {tuple(ids.shape)}")
        if int(ids.min()) < 0:
            raise ValueError(f"token_ids must be 0 or more, got {int(ids.min())}")
        self.size = len(ids)
        self._host_offsets: UInt64s = ids.numpy().astype(np.uint64) * np.uint64(GOLDEN)
        self.offsets = torch.from_numpy(self._host_offsets.view(np.int64)).to(device)
        self.device = self.offsets.device  # with its index, where "cuda" was asked for
        self._buffer = np.empty(self.size, dtype=np.uint64)
        self._scratch = np.empty(self.size, dtype=np.uint64)

    def numerator(self, key: int, index: int) -> int:
        """The numerator of one index, in Python integers."""
        return (mix64((key + int(self._host_offsets[index])) & WORD) >> 11) | 1

    def numerators(self, key: int, indices: npt.NDArray[np.intp] | None = None) -> UInt64s:
        """Odd n < 2**53 with n / 2**53 uniform, for every index of the vocabulary or only for `indices`.

        Computed on the host, in one thread. The array is this object's own: it holds until the next call.
        """
        offsets = self._host_offsets if indices is None else self._host_offsets[indices]
        z, shifted = self._buffer[: len(offsets)], self._scratch[: len(offsets)]
        np.add(offsets, np.uint64(key), out=z)
        for shift, multiplier in ((_FIRST, _MUL1), (_SECOND, _MUL2)):
            np.right_shift(z, shift, out=shifted)
            np.bitwise_xor(z, shifted, out=z)
            np.multiply(z, multiplier, out=z)
        np.right_shift(z, _THIRD, out=shifted)
        np.bitwise_xor(z, shifted, out=z)
        np.right_shift(z, _TO_53_BITS, out=z)
        return np.bitwise_or(z, _ODD, out=z)

    def gumbel(self, seed: int, position: int) -> Tensor:
        """The noise of a position: float64 [V] on this object's device."""
        keys = torch.tensor([signed(stream_key(seed, position))], dtype=torch.int64, device=self.device)
        return self.gumbel_rows(keys)[0]

    def gumbel_rows(self, keys: Tensor) -> Tensor:
        """The noise of several streams, [n, V] float64, without leaving the device (so it can be captured in a graph).

        `keys`: int64 [n] on this object's device, each `signed(stream_key(seed, position))`.
        """
        uniform = tensor_numerators(self.offsets, keys).to(torch.float64).mul_(UNIT)
        return uniform.neg_().log1p_().neg_().log_().neg_()
