"""Where tensors come from: sizes are known from headers, bytes are read only for the names asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from twinspark.actors.checkpoint.configs import DecoderConfig, HeadConfig


@dataclass(frozen=True)
class TensorInfo:
    """One tensor as its header tells it. `stored_bytes` is its size in the file, before any dequantisation."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stored_bytes: int


class TensorSource(Protocol):
    """Tensors by their Hugging Face names, whatever the file format."""

    def infos(self) -> dict[str, TensorInfo]:
        """Every tensor, from headers alone."""
        ...

    def load(self, name: str) -> torch.Tensor:
        """One tensor on the CPU: the stored dtype, or float32 where the file holds a quantised one.

        Raises CheckpointError where the file lacks `name` or is damaged.
        """
        ...

    def load_rows(self, name: str, rows: Sequence[int]) -> torch.Tensor:
        """As `load`, but only these rows (first dimension), in the order asked for."""
        ...


@dataclass(frozen=True)
class TargetCheckpoint:
    """A target that was opened (headers read, nothing loaded)."""

    path: str
    config: DecoderConfig
    tensors: TensorSource


@dataclass(frozen=True)
class HeadCheckpoint:
    """A head that was opened (headers only). `embed_tokens`/`lm_head` may be absent: the target's are used."""

    path: str
    config: HeadConfig
    tensors: TensorSource
