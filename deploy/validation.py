"""One line for what pydantic found wrong with a file."""

from __future__ import annotations

from pydantic import ValidationError


def first_fault(error: ValidationError) -> str:
    """Where, what must hold, what was got."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the file"
    return f"{where}: {first['msg'].removeprefix('Value error, ')}, got {first['input']!r}"[:500]
