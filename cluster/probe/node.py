"""One node's snapshot, taken by the process that asks: its limits, and what its environment lets CUDA see."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from twinspark.cluster.probe.cpuinfo import read_cpuinfo
from twinspark.cluster.probe.cpus import count_cpus
from twinspark.cluster.probe.gpus import visible_gpus
from twinspark.cluster.probe.memory import read_memory
from twinspark.cluster.probe.numa import read_numa_nodes
from twinspark.cluster.probe.nvml import GpuRecord, read_gpus
from twinspark.cluster.probe.reading import Reading
from twinspark.cluster.probe.snapshot import Snapshot

ReadGpus = Callable[[], Reading[tuple[GpuRecord, ...] | None]]


def probe_node(
    root: Path = Path("/"),
    *,
    affinity: frozenset[int] | None = None,
    environment: Mapping[str, str] | None = None,
    gpus_by: ReadGpus = read_gpus,
) -> Snapshot:
    """What is there now, read and never allocated. `root` holds `proc` and `sys`.

    `affinity` (CPU numbers) and `environment` stand in for the process's own. Under another root than `/` the affinity
    is the tree's, as all else but the GPUs.
    """
    memory, cpu = read_memory(root), read_cpuinfo(root)
    gpus, gpu_search = visible_gpus(gpus_by(), os.environ if environment is None else environment)
    return Snapshot(
        host=_host(root),
        num_cpus=count_cpus(root, affinity),
        cpu_model=cpu.model,
        instruction_sets=cpu.instruction_sets,
        numa_nodes=read_numa_nodes(root),
        total_ram_bytes=memory.total,
        available_ram_bytes=memory.available,
        gpus=gpus,
        gpu_search=gpu_search,
    )


def _host(root: Path) -> str:
    try:
        return (root / "proc/sys/kernel/hostname").read_text(encoding="utf-8").strip()
    except OSError:
        return socket.gethostname()
