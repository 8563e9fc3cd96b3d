"""The machine's NUMA nodes. These are the hardware's: what a container may use of them is not known here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from twinspark.cluster.probe.files import Unreadable, cpus_of, table_of
from twinspark.cluster.probe.reading import Reading

NODES = "sys/devices/system/node"


@dataclass(frozen=True)
class NumaNode:
    """`cpus` is empty for a node of memory alone."""

    index: int
    cpus: tuple[int, ...] | None
    total_bytes: int | None
    free_bytes: int | None


def read_numa_nodes(root: Path) -> Reading[tuple[NumaNode, ...] | None]:
    """By number; None where the kernel tells of none."""
    indices = sorted(int(path.name[4:]) for path in (root / NODES).glob("node[0-9]*") if path.name[4:].isdigit())
    if not indices:
        return Reading(None, f"/{NODES} has no nodes")
    return Reading(tuple(_node(root / NODES / f"node{index}", index) for index in indices), f"/{NODES}")


def _node(directory: Path, index: int) -> NumaNode:
    try:
        cpus, memory = cpus_of(directory / "cpulist"), table_of(directory / "meminfo")
    except Unreadable:
        return NumaNode(index, None, None, None)
    return NumaNode(index, cpus, memory.get("MemTotal"), memory.get("MemFree"))
