"""What `twinspark probe` shows: a snapshot of this machine, with what of it may be planned with."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from twinspark.cluster.probe import Snapshot
from twinspark.planner.nodes import CPU, GIB, Node, Seat, seats

BAR_CELLS = 20


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
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("device", no_wrap=True)
    table.add_column("model", overflow="fold")
    for heading in ("total", "free now", "headroom"):
        table.add_column(f"{heading} GiB", justify="right", no_wrap=True)
    table.add_column(width=BAR_CELLS)
    for seat in seats([node]):
        table.add_row(*_row(node, seat))
    console.print(table)
    for line in _sources(snapshot):
        console.print(line, markup=False, soft_wrap=True, style="dim")


def _row(node: Node, seat: Seat) -> tuple[Text | ProgressBar, ...]:
    if seat.device == CPU:
        model, total, free = "RAM", node.total_ram_bytes, node.available_ram_bytes
    else:
        gpu = node.gpu(seat.device)
        model, total, free = gpu.name, gpu.total_bytes, gpu.free_bytes
    headroom = node.headroom_bytes(seat.device)
    bar = ProgressBar(total=total or 1, completed=headroom or 0, width=BAR_CELLS)
    return Text(seat.device), Text(model), _gib(total), _gib(free), _gib(headroom), bar


def _gib(num_bytes: int | None) -> Text:
    return Text("unknown" if num_bytes is None else f"{num_bytes / GIB:.1f}")


def _sources(snapshot: Snapshot) -> list[str]:
    ram = f"total {snapshot.total_ram_bytes.source}, free {snapshot.available_ram_bytes.source}"
    gpus = [f"cuda:{gpu.index}  {gpu.key} ({gpu.source})" for gpu in snapshot.gpus]
    return [f"RAM: {ram}", *gpus, f"GPUs: {snapshot.gpu_search}"]
