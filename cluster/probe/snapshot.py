"""All that is known of one node at one moment, and what of it the planner is told."""

from __future__ import annotations

from dataclasses import dataclass

from twinspark.cluster.probe.gpus import GpuReading
from twinspark.cluster.probe.numa import NumaNode
from twinspark.cluster.probe.reading import Reading
from twinspark.planner.nodes import Gpu, Node

UNKNOWN_MODEL = "unknown"


@dataclass(frozen=True)
class Snapshot:
    """One node. `gpu_search` says how GPUs were looked for; each of them has a source of its own."""

    host: str
    num_cpus: Reading[int]
    cpu_model: Reading[str | None]
    instruction_sets: Reading[tuple[str, ...] | None]
    numa_nodes: Reading[tuple[NumaNode, ...] | None]
    total_ram_bytes: Reading[int | None]
    available_ram_bytes: Reading[int | None]
    gpus: tuple[GpuReading, ...]
    gpu_search: str

    def node(self, name: str) -> Node:
        """As the planner sees it; `name` is unique in the cluster."""
        return Node(
            name=name,
            host=self.host,
            num_cpus=self.num_cpus.value,
            cpu_model=self.cpu_model.value or UNKNOWN_MODEL,
            total_ram_bytes=self.total_ram_bytes.value,
            available_ram_bytes=self.available_ram_bytes.value,
            gpus=tuple(
                Gpu(gpu.index, gpu.key, gpu.name or UNKNOWN_MODEL, gpu.total_bytes, gpu.free_bytes) for gpu in self.gpus
            ),
            gpu_search=self.gpu_search,
        )
