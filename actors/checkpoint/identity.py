"""Which checkpoint this is, for what is kept about it between runs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from twinspark.actors.checkpoint.source import HeadCheckpoint, TargetCheckpoint

WEIGHT_ENDINGS = (".safetensors", ".gguf")


def checkpoint_identity(checkpoint: TargetCheckpoint | HeadCheckpoint) -> str:
    """A hash over the configuration, every tensor's name, type and shape, and the sizes of the weight files: all that a
    step's time depends on. Where the checkpoint lies is no part of it. Raises OSError where it is gone.
    """
    path = Path(checkpoint.path)
    files = [path] if path.is_file() else [f for f in path.iterdir() if f.name.endswith(WEIGHT_ENDINGS)]
    told = {
        "config": asdict(checkpoint.config),
        "tensors": sorted((i.name, i.dtype, i.shape, i.stored_bytes) for i in checkpoint.tensors.infos().values()),
        "bytes": sorted(file.stat().st_size for file in files),
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
