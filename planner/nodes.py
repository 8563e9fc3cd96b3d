"""What the planner knows of a node: its devices and their headroom. Bytes that nobody could read are None, never 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

GIB = 2**30
MIB = 2**20
RESERVED_SHARE = 0.10  # of a device's total; what is never planned with (DESIGN section 4)
LEAST_RAM_RESERVE_BYTES = 2 * GIB
LEAST_VRAM_RESERVE_BYTES = 512 * MIB
CPU = "cpu"


@dataclass(frozen=True)
class Gpu:
    """One GPU. `key` is what CUDA_VISIBLE_DEVICES would call it (a UUID, or an index); `name` its model."""

    index: int
    key: str
    name: str
    total_bytes: int | None
    free_bytes: int | None

    @property
    def device(self) -> str:
        """As a seat names it."""
        return f"cuda:{self.index}"


@dataclass(frozen=True)
class Node:
    """One node. `name` is unique in the cluster (its Ray node id); `host` is what people call it.

    `total_ram_bytes` is what the node's limits allow, `available_ram_bytes` what of it is free now.
    """

    name: str
    host: str
    num_cpus: int
    cpu_model: str
    total_ram_bytes: int | None
    available_ram_bytes: int | None
    gpus: tuple[Gpu, ...] = ()
    gpu_search: str = ""  # how GPUs were looked for, for whoever wonders why there is none

    def gpu(self, device: str) -> Gpu:
        """The GPU a seat names. Raises KeyError for a device the node does not have."""
        for gpu in self.gpus:
            if gpu.device == device:
                return gpu
        raise KeyError(f"node {self.name} has no {device}")

    def headroom_bytes(self, device: str) -> int | None:
        """Free memory of a device less its reserve; None where it is unknown."""
        if device == CPU:
            return headroom_bytes(self.available_ram_bytes, self.total_ram_bytes, LEAST_RAM_RESERVE_BYTES)
        gpu = self.gpu(device)
        return headroom_bytes(gpu.free_bytes, gpu.total_bytes, LEAST_VRAM_RESERVE_BYTES)

    def device_class(self, device: str) -> str:
        """What two devices share that are equally fast: the GPU's model, or the CPU's with the number of CPUs."""
        return f"{self.cpu_model} x{self.num_cpus}" if device == CPU else self.gpu(device).name


@dataclass(frozen=True, order=True)
class Seat:
    """A device of a node: where an actor may sit. `device` is "cpu" or "cuda:N"."""

    node: str
    device: str

    @property
    def kind(self) -> Literal["cpu", "cuda"]:
        """Of which kind the device is."""
        return "cpu" if self.device == CPU else "cuda"


def headroom_bytes(free_bytes: int | None, total_bytes: int | None, least_reserve_bytes: int) -> int | None:
    """What may be planned with, at least 0: `free_bytes` less max(10% of the total, the least reserve)."""
    if free_bytes is None:
        return None
    reserve = max(int(RESERVED_SHARE * (total_bytes or free_bytes)), least_reserve_bytes)
    return max(0, free_bytes - reserve)


def seats(nodes: Sequence[Node]) -> list[Seat]:
    """Every device of every node."""
    return [Seat(n.name, device) for n in nodes for device in (CPU, *(gpu.device for gpu in n.gpus))]
