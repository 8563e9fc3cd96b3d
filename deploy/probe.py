"""What `twinspark probe` shows: a snapshot of this machine, with what of it may be planned with."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console

from twinspark.cluster.probe import Snapshot
from twinspark.deploy.device_table import device_table
from twinspark.planner.nodes import seats


def document(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot, and headroom by device (null where it is unknown)."""
    node = snapshot.node(snapshot.host)
    headroom = {seat.device: node.headroom_bytes(seat.device) for seat in seats([node])}
    return {**asdict(snapshot), "headroom_bytes": headroom}


def show(snapshot: Snapshot) -> None:
    """A table of devices on stdout; the bar is the share of a device's memory that may be planned with."""
    console, node = Console(highlight=False), snapshot.node(snapshot.host)
    sets = ", ".join(snapshot.instruction_sets.value or ()) or "none that matter here"
    facts = {
        "host": snapshot.host,
        "CPUs": f"{snapshot.num_cpus.value} of {node.cpu_model} ({snapshot.num_cpus.source})",
        "sets": "unknown" if snapshot.instruction_sets.value is None else sets,
        "NUMA": "unknown" if snapshot.numa_nodes.value is None else f"nodes: {len(snapshot.numa_nodes.value)}",
    }
    for name, fact in facts.items():
        console.print(f"{name:6}{fact}", markup=False, soft_wrap=True)
    console.print(device_table([("", node)]))
    for line in _sources(snapshot):
        console.print(line, markup=False, soft_wrap=True, style="dim")


def _sources(snapshot: Snapshot) -> list[str]:
    ram = f"total {snapshot.total_ram_bytes.source}, free {snapshot.available_ram_bytes.source}"
    gpus = [f"cuda:{gpu.index}  {gpu.key} ({gpu.source})" for gpu in snapshot.gpus]
    return [f"RAM: {ram}", *gpus, f"GPUs: {snapshot.gpu_search}"]
