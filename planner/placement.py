"""Where draft and target go. Pure: what there is and what was asked for come in, a decision with its reason goes out.

For now `auto` follows a static rule; explicit placements are the user's choice and are only checked for being possible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Placement = Literal["off", "colocated", "cpu", "gpu"]
Requested = Literal["auto", "off", "colocated", "cpu", "gpu"]
Device = Literal["cpu", "cuda"]
PLACEMENTS: tuple[str, ...] = get_args(Placement)
LEAST_CPUS_FOR_CPU_DRAFT = 4  # below that the draft takes the target's own cores (DESIGN section 4)


class PlacementError(ValueError):
    """The placement asked for is not possible here."""


@dataclass(frozen=True)
class Resources:
    """What a node has, as far as the static rule looks. `gpu_search` says how GPUs were looked for."""

    num_cpus: int
    available_ram_bytes: int | None
    num_gpus: int
    gpu_search: str


@dataclass(frozen=True)
class Decision:
    """`target_device` and `draft_device` (None: no draft) say what kind of device each side computes on."""

    placement: Placement
    requested: Requested
    reason: str
    target_device: Device
    draft_device: Device | None


def decide(requested: Requested, resources: Resources, *, has_head: bool) -> Decision:
    """The placement to use. Raises PlacementError where `requested` cannot be had."""
    target: Device = "cuda" if resources.num_gpus else "cpu"
    if requested == "auto":
        return _auto(resources, target, has_head)
    if requested != "off" and not has_head:
        raise PlacementError(f"placement {requested} needs a draft head, got --dspark-model none")
    if requested == "gpu" and not resources.num_gpus:
        raise PlacementError(f"placement gpu needs a GPU, found none ({resources.gpu_search})")
    draft: Device | None = {"off": None, "colocated": target, "cpu": "cpu", "gpu": "cuda"}[requested]
    return Decision(requested, requested, f"asked for; {_found(resources)}", target, draft)


def _auto(resources: Resources, target: Device, has_head: bool) -> Decision:
    if not has_head:
        return Decision("off", "auto", "no draft head was given", target, None)
    if target == "cuda":
        return Decision("colocated", "auto", f"the GPU holds both; {_found(resources)}", target, target)
    if resources.num_cpus < LEAST_CPUS_FOR_CPU_DRAFT:
        why = f"fewer than {LEAST_CPUS_FOR_CPU_DRAFT} CPUs, so the draft shares the target's cores and its taps"
        return Decision("colocated", "auto", f"{why}; {_found(resources)}", target, target)
    return Decision("colocated", "auto", f"no GPU, so both share the CPUs; {_found(resources)}", target, target)


def _found(resources: Resources) -> str:
    ram = resources.available_ram_bytes
    ram_text = "RAM available unknown" if ram is None else f"{ram / 2**30:.1f} GiB of RAM available"
    return f"{resources.num_cpus} CPUs, {ram_text}, {resources.num_gpus} GPUs"
