"""Tensors of a dense llama GGUF file under their Hugging Face names, dequantised. Knows no rotary or norm setting."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from twinspark.actors.checkpoint.gguf_header import GgufTensor, read_gguf_header
from twinspark.actors.checkpoint.source import TensorInfo
from twinspark.actors.errors import CheckpointError

ARCHITECTURE = "llama"
UNQUANTISED = ("F32", "F16", "BF16")
QUANTS = (*UNQUANTISED, "Q8_0", "Q4_0", "Q4_1")
_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GgufSource:
    """The tensors of one GGUF file. Reads the header on construction, data only in `load` and `load_rows`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        header = read_gguf_header(self.path)
        self._metadata = header.metadata
        self._check_metadata()
        self._tensors: dict[str, GgufTensor] = {}
        for name, tensor in header.tensors.items():
            if tensor.info.dtype not in QUANTS:
                raise CheckpointError(
                    f"{self.path}: {name} must be stored as one of {', '.join(QUANTS)}, got {tensor.info.dtype}"
                )
            shape = tensor.info.shape
            if len(shape) > 2 or (len(shape) == 1 and tensor.info.dtype not in UNQUANTISED):
                raise CheckpointError(
                    f"{self.path}: {name} must be a matrix, or a plain vector, got {tensor.info.dtype} {list(shape)}"
                )
            mapped = self._hugging_face_name(name)
            self._tensors[mapped] = replace(tensor, info=replace(tensor.info, name=mapped))

    def infos(self) -> dict[str, TensorInfo]:
        return {name: tensor.info for name, tensor in self._tensors.items()}

    def metadata(self) -> dict[str, object]:
        """All metadata by its GGUF key, as plain numbers, booleans, strings, and lists of these."""
        return dict(self._metadata)

    def load(self, name: str) -> torch.Tensor:
        """One tensor on the CPU: float32 where the file holds blocks, else the stored dtype."""
        return self._read(name, None)

    def load_rows(self, name: str, rows: Sequence[int]) -> torch.Tensor:
        """Only these rows (first dimension) of a tensor, in the order asked for."""
        num_rows = self._tensor(name).info.shape[0]
        if not rows or not all(0 <= row < num_rows for row in rows):
            raise CheckpointError(f"{self.path}: rows of {name} must be from 0 to {num_rows - 1}, got {list(rows)}")
        return self._read(name, np.asarray(rows, dtype=np.int64))

    def _tensor(self, name: str) -> GgufTensor:
        if name not in self._tensors:
            raise CheckpointError(f"{self.path} must hold the tensor {name}, which it lacks")
        return self._tensors[name]

    def _read(self, name: str, rows: npt.NDArray[np.int64] | None) -> torch.Tensor:
        tensor = self._tensor(name)
        order = self._row_order(name, tensor.info.shape)
        if order is not None:
            rows = order if rows is None else order[rows]
        try:
            stored = _stored_rows(self.path, tensor)
        except (OSError, ValueError) as error:  # numpy says ValueError where the file has become too short
            raise CheckpointError(f"{self.path} must still hold {name} as its header said, got: {error}") from error
        return _decoded(np.array(stored) if rows is None else np.asarray(stored[rows]), tensor.info)

    def _row_order(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.int64] | None:
        """For q and k: which stored row is Hugging Face's row i. llama.cpp interleaves the two halves of each head."""
        if ".self_attn.q_proj." in name:
            heads = self._head_count("llama.attention.head_count")
        elif ".self_attn.k_proj." in name:
            heads = self._head_count("llama.attention.head_count_kv")
        else:
            return None
        if shape[0] % (2 * heads):
            raise CheckpointError(
                f"{self.path}: rows of {name} must be a multiple of 2 x {heads} heads, got {shape[0]}"
            )
        paired = np.arange(shape[0]).reshape(heads, shape[0] // heads // 2, 2)
        return paired.swapaxes(1, 2).reshape(-1)

    def _head_count(self, key: str) -> int:
        value = self._metadata.get(key, self._metadata.get("llama.attention.head_count"))
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise CheckpointError(f"{self.path}: {key} must be one positive integer, got {value!r}")
        return value

    def _check_metadata(self) -> None:
        architecture = self._metadata.get("general.architecture")
        if architecture != ARCHITECTURE:
            raise CheckpointError(f"{self.path}: general.architecture must be {ARCHITECTURE}, got {architecture!r}")
        if self._metadata.get("llama.expert_count"):
            raise CheckpointError(f"{self.path}: mixture-of-experts models are not supported, got llama.expert_count")
        split = self._metadata.get("split.count", 0)
        if split not in (0, 1):
            raise CheckpointError(
                f"{self.path}: the model must be in one file, got split.count {split} (merge it first)"
            )

    def _hugging_face_name(self, name: str) -> str:
        if name in _TOP_NAMES:
            return _TOP_NAMES[name]
        match = re.fullmatch(r"blk\.(0|[1-9]\d{0,4})\.([a-z_]+)\.(weight|bias)", name)
        if match and match[2] in _LAYER_NAMES:
            return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"
        hint = " (Llama 3 frequency scaling: use the Hugging Face checkpoint)" if name == "rope_freqs.weight" else ""
        raise CheckpointError(f"{self.path}: every tensor must be one of a dense llama, got {name}{hint}")


def _stored_rows(path: Path, tensor: GgufTensor) -> npt.NDArray[np.uint8]:
    """The stored bytes, [rows, bytes a row], mapped and not yet read; in a vector each item is a row."""
    num_rows = tensor.info.shape[0]
    if not tensor.info.stored_bytes:
        raise ValueError("it is empty")
    shape = (num_rows, tensor.info.stored_bytes // num_rows)
    return np.memmap(path, dtype=np.uint8, mode="r", offset=tensor.offset, shape=shape)


def _decoded(stored: npt.NDArray[np.uint8], info: TensorInfo) -> torch.Tensor:
    """Rows of stored bytes as a tensor of `info`'s inner shape."""
    shape = (stored.shape[0], *info.shape[1:])
    if info.dtype == "F32":
        return torch.from_numpy(stored.view("<f4").reshape(shape))
    if info.dtype == "F16":
        return torch.from_numpy(stored.view("<f2").reshape(shape))
    if info.dtype == "BF16":
        return torch.from_numpy(stored.view("<i2").reshape(shape)).view(torch.bfloat16)
    values: npt.NDArray[np.float32] = dequantize(stored, GGMLQuantizationType[info.dtype])
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32).reshape(shape))
