"""Small files that are written whole or not at all: whoever reads one sees the old text or the new."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Raises OSError where its directory cannot be written; nothing is left behind then."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:16]}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
