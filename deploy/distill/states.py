"""A training run's state on disk, so that it goes on after a kill as if nothing had been: one safetensors file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from twinspark.actors.errors import CheckpointError
from twinspark.deploy.distill.tensor_files import save_whole

STATE_NAME = "state.safetensors"
MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer")  # AdamW's and Muon's


@dataclass
class Progress:
    """How far a run is. `history` has a row for every time that was looked."""

    step: int = 0
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)


def save_state(
    folder: Path,
    settings: Mapping[str, Any],
    progress: Progress,
    net: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    average: Mapping[str, Tensor],
) -> None:
    """Replaces the state in `folder`. Raises OSError where the disk is full; the old one stays then."""
    tensors: dict[str, Tensor] = {f"net.{name}": value for name, value in net.named_parameters()}
    tensors |= {f"average.{name}": value for name, value in average.items()}
    for name, parameter in net.named_parameters():
        for optimizer in optimizers:
            moments = optimizer.state.get(parameter, {})
            tensors |= {f"{key}.{name}": moments[key] for key in MOMENTS if key in moments}
    numbers = {
        "settings": dict(settings),
        "step": progress.step,
        "seconds": progress.seconds,
        "history": progress.history,
    }
    save_whole(tensors, folder / STATE_NAME, {"run": json.dumps(numbers)})


def load_state(
    folder: Path,
    settings: Mapping[str, Any],
    net: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    average: dict[str, Tensor],
) -> Progress:
    """Goes on where `save_state` left it; a new run where there is no state. Raises CheckpointError where the state is
    of other settings, or damaged.
    """
    path = folder / STATE_NAME
    if not path.exists():
        return Progress()
    try:
        with safe_open(path, framework="pt") as file:
            numbers = json.loads(file.metadata()["run"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        progress = Progress(int(numbers["step"]), float(numbers["seconds"]), list(numbers["history"]))
        before = dict(numbers["settings"])
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} must be a training state, got a damaged one ({error})") from error
    for name, wanted in settings.items():
        if before.get(name) != wanted:
            raise CheckpointError(f"{path} must be of a run with {name} {wanted}, got {before.get(name)}")
    owners = {parameter: o for o in optimizers for group in o.param_groups for parameter in group["params"]}
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.copy_(tensors[f"net.{name}"])
            moments = {key: tensors[f"{key}.{name}"] for key in MOMENTS if f"{key}.{name}" in tensors}
            if moments:
                on_device = {key: value.to(parameter.device) for key, value in moments.items()}
                owners[parameter].state[parameter] = {"step": torch.tensor(float(progress.step)), **on_device}
        for name in average:
            average[name].copy_(tensors[f"average.{name}"])
    return progress
