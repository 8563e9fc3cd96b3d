"""Safetensors files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


def save_whole(tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Raises OSError where the disk is full; what was there before stays then."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode  # what the umask leaves; safetensors makes files that are their owner's alone
        save_file({name: value.detach().contiguous().cpu() for name, value in tensors.items()}, temporary, metadata)
        temporary.chmod(mode)
        os.replace(temporary, path)
    except SafetensorError as error:
        raise OSError(f"{path} could not be written ({error})") from error
    finally:
        temporary.unlink(missing_ok=True)
