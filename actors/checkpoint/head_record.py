"""A head's own record of how its drafts were accepted: `training.json` beside its weights, where there is one."""

from __future__ import annotations

from pathlib import Path

from twinspark.actors.checkpoint.json_fields import Fields, parse_object
from twinspark.actors.errors import CheckpointError

RECORD_NAME = "training.json"
MAX_RECORD_BYTES = 1 << 20
MAX_POSITIONS = 64


def conditional_acceptance(head_path: str) -> tuple[float, ...] | None:
    """Chance by position that a draft token is accepted, given that those before it were; None without a record.

    Raises CheckpointError where the record is there and damaged.
    """
    path = Path(head_path) / RECORD_NAME
    if not path.is_file():
        return None
    with path.open("rb") as file:
        raw = file.read(MAX_RECORD_BYTES + 1)
    if len(raw) > MAX_RECORD_BYTES:
        raise CheckpointError(f"{path} must be at most {MAX_RECORD_BYTES} bytes, got more")
    fields = Fields(parse_object(raw, str(path)), str(path))
    values = fields.values.get("conditional_acceptance")
    if not isinstance(values, list) or not 1 <= len(values) <= MAX_POSITIONS or not all(map(_is_chance, values)):
        raise fields.error("conditional_acceptance", f"a list of 1 to {MAX_POSITIONS} numbers from 0 to 1")
    return tuple(float(value) for value in values)


def _is_chance(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
