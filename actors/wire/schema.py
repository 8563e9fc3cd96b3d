"""The three kinds of field a frame may have. There is no other, so nothing else can be encoded.

Knows how a field is declared and what its value must be; knows neither frames nor bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from twinspark.actors.errors import WireError

ID_BYTES = 4
ID_DTYPE = np.dtype("<i4")


@dataclass(frozen=True)
class Int:
    """An integer in [low, high]; `low` is never negative."""

    name: str
    low: int
    high: int
    meaning: str

    width = 1

    def check(self, value: object) -> int:
        """`value`, known to be a plain integer in range. Raises WireError."""
        if type(value) is not int:
            raise WireError("malformed", f"{self.name} must be an integer, got {type(value).__name__}")
        if not self.low <= value <= self.high:
            raise WireError("out_of_range", f"{self.name} must be in [{self.low}, {self.high}], got {value}")
        return value


@dataclass(frozen=True)
class Ids:
    """Token IDs: on the wire a count, then 4 bytes for each, little-endian."""

    name: str
    max_count: int
    meaning: str

    width = 2

    @property
    def count(self) -> Int:
        return Int(f"{self.name}_count", 0, self.max_count, f"how many {self.name} follow")

    def pack(self, value: Sequence[int], vocab_size: int) -> bytes:
        """The bytes of plain integers in [0, vocab_size). Raises WireError for anything else."""
        if not isinstance(value, (tuple, list)) or not set(map(type, value)) <= {int}:
            raise WireError("malformed", f"{self.name} must be a tuple or list of plain integers")
        self.count.check(len(value))
        try:
            ids = np.fromiter(value, dtype=np.int64, count=len(value))
        except OverflowError:
            raise WireError("out_of_range", f"{self.name} must be in [0, {vocab_size}), got a larger one") from None
        self._check_vocabulary(ids, vocab_size)
        return ids.astype(ID_DTYPE).tobytes()

    def unpack(self, count: object, data: object, vocab_size: int) -> tuple[int, ...]:
        """The IDs that `data` holds. Raises WireError unless they are `count` and all in [0, vocab_size)."""
        checked = self.count.check(count)
        if type(data) is not bytes or len(data) != ID_BYTES * checked:
            got = f"{len(data)} bytes" if isinstance(data, bytes) else type(data).__name__
            raise WireError("malformed", f"{checked} {self.name} must be {ID_BYTES * checked} bytes, got {got}")
        ids = np.frombuffer(data, dtype=ID_DTYPE)
        self._check_vocabulary(ids, vocab_size)
        return tuple(ids.tolist())

    def _check_vocabulary(self, ids: np.ndarray[Any, Any], vocab_size: int) -> None:
        if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= vocab_size):
            raise WireError(
                "out_of_range", f"{self.name} must be in [0, {vocab_size}), got {int(ids.min())} to {int(ids.max())}"
            )


@dataclass(frozen=True)
class Layout:
    """A dataclass and its fields in the order they are written."""

    record: type[Any]
    fields: tuple[Int | Ids | Many, ...]

    @property
    def width(self) -> int:
        """Array elements one such record takes."""
        return sum(field.width for field in self.fields)


@dataclass(frozen=True)
class Many:
    """Up to `max_count` records of one layout. No two may have the same value of the field named `unique`."""

    name: str
    layout: Layout
    max_count: int
    unique: str
    meaning: str

    width = 1

    @property
    def count(self) -> Int:
        return Int(f"{self.name}_count", 0, self.max_count, f"how many {self.name} follow")

    def check_unique(self, records: Sequence[object]) -> None:
        """Raises WireError where two records claim the same thing."""
        if len({getattr(record, self.unique) for record in records}) != len(records):
            raise WireError("duplicate", f"no two of {self.name} may have the same {self.unique}")
