"""Tensors of a Hugging Face directory: one safetensors file or many shards. Never opens a pickle; knows no model.

Headers are read here, with every offset checked against the file, before the safetensors library sees anything.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError, safe_open

from twinspark.actors.checkpoint.json_fields import Fields, parse_object
from twinspark.actors.checkpoint.source import TensorInfo
from twinspark.actors.errors import CheckpointError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "BOOL": 1}
PICKLE_ENDINGS = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class SafetensorsSource:
    """The tensors of `directory`. Reads headers on construction, and data only in `load` and `load_rows`."""

    def __init__(self, directory: str | Path) -> None:
        root = Path(directory)
        if not root.is_dir():
            raise CheckpointError(f"a checkpoint must be a directory, got {root}, which is not one")
        self._infos: dict[str, TensorInfo] = {}
        self._files: dict[str, Path] = {}
        if (root / SINGLE_FILE).is_file():
            self._add(root / SINGLE_FILE, None)
        elif (root / INDEX_FILE).is_file():
            for shard, names in _shards(root / INDEX_FILE).items():
                self._add(root / shard, names)
        else:
            raise CheckpointError(_nothing_readable(root))

    def infos(self) -> dict[str, TensorInfo]:
        return dict(self._infos)

    def load(self, name: str) -> torch.Tensor:
        """One tensor on the CPU, in its stored dtype."""
        path = self._file_of(name)
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                return cast(torch.Tensor, file.get_tensor(name))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} must be a readable safetensors file, got: {error}") from error

    def load_rows(self, name: str, rows: Sequence[int]) -> torch.Tensor:
        """Only these rows (first dimension) of a tensor, in the order asked for."""
        path, info = self._file_of(name), self._infos[name]
        if not info.shape or not rows or not all(0 <= row < info.shape[0] for row in rows):
            raise CheckpointError(f"{path}: rows of {name} must be in its shape {info.shape}, got {list(rows)}")
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                stored = file.get_slice(name)
                return torch.cat([stored[row : row + 1] for row in rows])
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} must be a readable safetensors file, got: {error}") from error

    def _file_of(self, name: str) -> Path:
        if name not in self._files:
            raise CheckpointError(f"the checkpoint must hold the tensor {name}, which it lacks")
        return self._files[name]

    def _add(self, path: Path, names: list[str] | None) -> None:
        """Takes the tensors `names` of `path` (all without names)."""
        found = read_header(path)
        for name in found if names is None else names:
            if name not in found:
                raise CheckpointError(f"{path} must hold {name}, which the index places there, and does not")
            self._infos[name] = found[name]
            self._files[name] = path


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Every tensor of one safetensors file. Raises CheckpointError unless the file can hold what its header says."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            prefix = file.read(8)
            if len(prefix) < 8:
                raise CheckpointError(f"{path} must begin with an 8-byte header length, got {len(prefix)} bytes in all")
            (length,) = struct.unpack("<Q", prefix)
            if length > MAX_HEADER_BYTES or length > size - 8:
                raise CheckpointError(
                    f"{path}: the header must fit into the file ({size} bytes) and {MAX_HEADER_BYTES} bytes, "
                    f"got a length of {length}: truncated, or no safetensors file"
                )
            header = parse_object(file.read(length), f"{path}: header")
    except OSError as error:
        raise CheckpointError(f"{path} must be readable, got: {error}") from error
    header.pop("__metadata__", None)
    return {name: _tensor(path, name, entry, size - 8 - length) for name, entry in header.items()}


def _tensor(path: Path, name: str, entry: object, data_bytes: int) -> TensorInfo:
    if not isinstance(entry, dict):
        raise CheckpointError(f"{path}: the header entry of {name} must be an object, got {entry!r}")
    fields = Fields(entry, f"{path}: {name}")
    dtype = fields.text("dtype")
    if dtype not in ITEM_BYTES:
        raise fields.error("dtype", f"one of {', '.join(ITEM_BYTES)}")
    shape = fields.integers("shape", low=0)
    offsets = entry.get("data_offsets")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(value) is int for value in offsets):
        raise fields.error("data_offsets", "two integers")
    begin, end = offsets
    if not 0 <= begin <= end <= data_bytes:
        raise fields.error("data_offsets", f"within the file's {data_bytes} bytes of data (is it truncated?)")
    needed = math.prod(shape) * ITEM_BYTES[dtype]
    if end - begin != needed:
        raise fields.error("data_offsets", f"{needed} bytes apart for {dtype} {list(shape)}")
    return TensorInfo(name=name, dtype=dtype, shape=shape, stored_bytes=needed)


def _shards(index: Path) -> dict[str, list[str]]:
    """Tensor names by shard file name."""
    try:
        raw = index.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{index} must be readable, got: {error}") from error
    weight_map = Fields(parse_object(raw, str(index)), str(index)).object("weight_map")
    if weight_map is None or not weight_map.values:
        raise CheckpointError(f"{index} must hold a weight_map with tensors, got none")
    shards: dict[str, list[str]] = {}
    for name in weight_map.values:
        shard = weight_map.text(name)
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise weight_map.error(name, "the name of a .safetensors file beside the index")
        shards.setdefault(shard, []).append(name)
    missing = sorted(shard for shard in shards if not (index.parent / shard).is_file())
    if missing:
        raise CheckpointError(f"{index}: every shard must be there, {', '.join(missing)} missing")
    return shards


def _nothing_readable(root: Path) -> str:
    pickles = sorted(entry.name for entry in root.iterdir() if entry.name.endswith(PICKLE_ENDINGS))
    message = f"{root} must hold {SINGLE_FILE} or {INDEX_FILE}, and holds neither"
    if pickles:
        message += f", only {', '.join(pickles)}: nothing is ever unpickled here; convert it to safetensors"
    return message
