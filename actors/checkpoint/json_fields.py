"""Reading untrusted JSON objects field by field, with errors that name the file and the key. Knows no model."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping

from twinspark.actors.errors import CheckpointError

MAX_INTEGER = 2**31 - 1


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} stands twice in one object")
        found[key] = value
    return found


def parse_object(raw: bytes, where: str) -> dict[str, object]:
    """The JSON object in `raw`. Raises CheckpointError for anything else, a repeated key included."""
    try:
        value = json.loads(raw, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:  # ValueError: bad JSON, bad UTF-8, a repeated key, a huge integer
        raise CheckpointError(f"{where} must be valid JSON, got: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} must hold a JSON object, got a {type(value).__name__}")
    return value


class Fields:
    """One JSON object. A null counts as absent; a getter without a default demands its key."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self.values = values
        self.where = where

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def error(self, key: str, must: str) -> CheckpointError:
        """The error for `key`: what must hold, then what is there."""
        got = repr(self.values[key]) if key in self.values else "nothing"
        return CheckpointError(f"{self.where}: {key} must be {must}, got {got[:200]}")

    def integer(self, key: str, default: int | None = None, *, low: int = 1, high: int = MAX_INTEGER) -> int:
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(key, f"an integer from {low} to {high}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0 or not math.isfinite(value):
            raise self.error(key, "a finite number above 0")
        return float(value)

    def boolean(self, key: str, default: bool | None = None) -> bool:
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.error(key, "a string")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; empty where the key is absent."""
        value = self.values.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, "a list of strings")
        return tuple(value)

    def integers(self, key: str, *, low: int) -> tuple[int, ...]:
        """A list of integers from `low` on."""
        value = self.values.get(key)
        if not isinstance(value, list) or not all(
            isinstance(item, int) and not isinstance(item, bool) and low <= item <= MAX_INTEGER for item in value
        ):
            raise self.error(key, f"a list of integers from {low} on")
        return tuple(value)

    def object(self, key: str) -> Fields | None:
        """The object under `key`, or None where it is absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, "an object")
        return Fields(value, f"{self.where}: {key}")

    def refuse_unknown(self, known: Collection[str]) -> None:
        """Raises CheckpointError naming every key outside `known`: a key nobody reads may change the model."""
        unknown = sorted(set(self.values) - set(known))
        if unknown:
            raise CheckpointError(f"{self.where}: every key must be a known one, got unknown {', '.join(unknown)}")
