"""Small files that are written whole or not at all: whoever reads one sees the old text or the new."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Raises OSError where its directory cannot be written; nothing is left behind then."""
    temporary = path.with_name(f".{path.name[:16]}-{secrets.token_hex(8)}")
    try:
        with temporary.open("x", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
