"""The header of a GGUF file: metadata and tensor table, every length checked against the file. Knows no model.

Parsed here and not by the gguf library's reader, which follows whatever lengths a damaged file gives (a bad array
count makes it loop on, past the end) and takes seconds for a vocabulary.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from twinspark.actors.checkpoint.source import TensorInfo
from twinspark.actors.errors import CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_HEADER_BYTES = 256_000_000  # a 250k vocabulary with merges takes about 12 MB
MAX_DIMENSIONS = 4
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class GgufTensor:
    """One stored tensor; `info.name` is GGUF's, `info.shape` row-major, `offset` counts from the file's start."""

    info: TensorInfo
    offset: int


@dataclass(frozen=True)
class GgufHeader:
    metadata: dict[str, object]
    tensors: dict[str, GgufTensor]


def read_gguf_header(path: Path) -> GgufHeader:
    """Raises CheckpointError unless `path` is a whole little-endian GGUF file of version 2 or 3."""
    if not path.is_file():
        raise CheckpointError(f"a GGUF checkpoint must be a file, got {path}, which is not one")
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if file.read(4) != MAGIC:
                raise CheckpointError(f"{path} must begin with the bytes GGUF: it is no GGUF file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Parser(path, data, size).header()
    except OSError as error:
        raise CheckpointError(f"{path} must be readable, got: {error}") from error


class _Parser:
    """A cursor over the header that never leaves the file."""

    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self.path = path
        self.data = data
        self.size = size
        self.end = min(size, MAX_HEADER_BYTES)
        self.at = len(MAGIC)

    def header(self) -> GgufHeader:
        version = self.integer("I")
        if version not in VERSIONS:
            raise CheckpointError(f"{self.path}: the GGUF version must be 2 or 3 (little-endian), got {version}")
        num_tensors, num_entries = self.integer("Q"), self.integer("Q")
        metadata: dict[str, object] = {}
        for _ in range(num_entries):
            key = self.string()
            if key in metadata:
                raise CheckpointError(f"{self.path}: metadata keys must be unique, got {key} twice")
            metadata[key] = self.value(self.integer("I"))
        table = [self.tensor_entry() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise CheckpointError(f"{self.path}: general.alignment must be a power of two, got {alignment!r}")
        start = -(-self.at // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for info, offset in table:
            if info.name in tensors:
                raise CheckpointError(f"{self.path}: tensor names must be unique, got {info.name} twice")
            if start + offset + info.stored_bytes > self.size:
                raise CheckpointError(
                    f"{self.path}: {info.name} must end within the file's {self.size} bytes, got an end at "
                    f"{start + offset + info.stored_bytes} (is it truncated?)"
                )
            tensors[info.name] = GgufTensor(info, start + offset)
        return GgufHeader(metadata, tensors)

    def take(self, count: int) -> bytes:
        if count > self.end - self.at:
            raise CheckpointError(
                f"{self.path}: the header must end within {self.end} bytes, got {count} more at byte {self.at}: "
                "truncated or damaged"
            )
        self.at += count
        return self.data[self.at - count : self.at]

    def integer(self, code: str) -> int:
        (value,) = struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))
        return cast(int, value)

    def string(self) -> str:
        raw = self.take(self.integer("Q"))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.path}: strings must be UTF-8, got {raw[:40]!r}") from error

    def value(self, kind: int) -> object:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array()
        code = self.scalar_code(kind)
        (value,) = struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))
        return cast(object, value)

    def array(self) -> list[object]:
        kind, count = self.integer("I"), self.integer("Q")
        if kind == _STRING:
            return [self.string() for _ in range(count)]
        code = self.scalar_code(kind)
        raw = self.take(count * struct.calcsize("<" + code))  # before the format string is built: bounds `count`
        return list(struct.unpack(f"<{count}{code}", raw))

    def scalar_code(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise CheckpointError(f"{self.path}: metadata must have a known value type, got type {kind}")
        return _SCALARS[kind]

    def tensor_entry(self) -> tuple[TensorInfo, int]:
        """The tensor, and its offset within the data section."""
        name = self.string()
        num_dimensions = self.integer("I")
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            raise CheckpointError(
                f"{self.path}: {name} must have 1 to {MAX_DIMENSIONS} dimensions, got {num_dimensions}"
            )
        shape = tuple(reversed([self.integer("Q") for _ in range(num_dimensions)]))
        raw_type = self.integer("I")
        if raw_type not in {int(known) for known in GGML_QUANT_SIZES}:
            raise CheckpointError(f"{self.path}: {name} must have a known tensor type, got type {raw_type}")
        quant = GGMLQuantizationType(raw_type)
        block_items, block_bytes = GGML_QUANT_SIZES[quant]
        if shape[-1] % block_items:
            raise CheckpointError(
                f"{self.path}: rows of {name} must be whole {quant.name} blocks of {block_items}, got {shape[-1]} items"
            )
        stored = math.prod(shape) // block_items * block_bytes
        return TensorInfo(name=name, dtype=str(quant.name), shape=shape, stored_bytes=stored), self.integer("Q")
