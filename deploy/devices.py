"""The torch device that `--device` names."""

from __future__ import annotations

import torch


def device_of(name: str) -> torch.device:
    """Raises ValueError for a device that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device must be one that is there, got {name} ({str(error).splitlines()[0]})") from None
    return device
