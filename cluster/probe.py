"""What this node has now: CPUs, RAM, GPUs. Reads only, makes no CUDA context; unknown is None, not 0."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pynvml

UNLIMITED_BYTES = 2**60  # cgroup v1 writes a huge number where there is no limit


@dataclass(frozen=True)
class Gpu:
    """One GPU by NVML."""

    index: int
    uuid: str
    name: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Snapshot:
    """One node. `ram_source`, `cpu_source` and `gpu_search` say where a value came from."""

    host: str
    num_cpus: int
    cpu_source: str
    total_ram_bytes: int
    available_ram_bytes: int
    ram_source: str
    gpus: tuple[Gpu, ...]
    gpu_search: str


def probe_node(root: Path = Path("/")) -> Snapshot:
    """A snapshot of the node this runs on; `root` holds `proc` and `sys` (tests give their own)."""
    memory = psutil.virtual_memory()
    available, ram_source = memory.available, "MemAvailable"
    for group in _cgroups(root):
        room = _memory_room(group)
        if room is not None and room < available:
            available, ram_source = room, f"cgroup {group.name or '/'}: limit less usage"
    num_cpus, cpu_source = len(os.sched_getaffinity(0)), "affinity"
    for group in _cgroups(root):
        quota = _cpu_quota(group)
        if quota is not None and max(1, int(quota)) < num_cpus:
            num_cpus, cpu_source = max(1, int(quota)), f"cgroup {group.name or '/'}: quota {quota:g}"
    gpus, gpu_search = probe_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
    return Snapshot(
        host=socket.gethostname(),
        num_cpus=num_cpus,
        cpu_source=cpu_source,
        total_ram_bytes=memory.total,
        available_ram_bytes=max(0, available),
        ram_source=ram_source,
        gpus=gpus,
        gpu_search=gpu_search,
    )


def _cgroups(root: Path) -> Iterator[Path]:
    """This process's groups from its own up to the root, of v2 and of v1's memory and cpu hierarchies."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for base in _mounts(root, controllers):
            group = base / path.lstrip("/")
            while True:
                if group.is_dir():
                    yield group
                if group == base:
                    break
                group = group.parent


def _mounts(root: Path, controllers: str) -> list[Path]:
    fs = root / "sys/fs/cgroup"
    if not controllers:
        return [fs, fs / "unified"]
    return [fs / name for name in (controllers, *controllers.split(",")) if name]


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) < UNLIMITED_BYTES else None


def _memory_room(group: Path) -> int | None:
    """Limit less usage, page cache that can be dropped not counted as used. None where there is no limit."""
    limits = [_number(group / name) for name in ("memory.max", "memory.high", "memory.limit_in_bytes")]
    usage = _number(group / "memory.current")
    usage = _number(group / "memory.usage_in_bytes") if usage is None else usage
    known = [limit for limit in limits if limit is not None]
    if not known or usage is None:
        return None
    try:
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        stat = {}
    droppable = int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
    return min(known) - max(0, usage - droppable)


def _cpu_quota(group: Path) -> float | None:
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    quota_us, period_us = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
    return quota_us / period_us if quota_us and period_us else None


def probe_gpus(visible: str | None) -> tuple[tuple[Gpu, ...], str]:
    """GPUs by NVML, limited to CUDA_VISIBLE_DEVICES (`visible`), and how they were looked for."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return (), f"looked for NVIDIA GPUs by NVML: {error}"
    try:
        gpus = tuple(_gpu(i) for i in range(pynvml.nvmlDeviceGetCount()))
    finally:
        pynvml.nvmlShutdown()
    if visible is None:
        return gpus, f"looked by NVML: {len(gpus)} found"
    wanted = [name.strip() for name in visible.split(",") if name.strip()]
    seen = tuple(gpu for gpu in gpus if str(gpu.index) in wanted or any(gpu.uuid.startswith(w) for w in wanted))
    return seen, f"looked by NVML: {len(gpus)} found, {len(seen)} left by CUDA_VISIBLE_DEVICES={visible}"


def _gpu(index: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    name = pynvml.nvmlDeviceGetName(handle)
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    return Gpu(index, _text(uuid), _text(name), int(memory.total), int(memory.free))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
