"""RAM that the kernel and every cgroup above this process leave us (DESIGN section 4). The reserve is the planner's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from twinspark.cluster.probe.cgroup import Group, groups
from twinspark.cluster.probe.files import Unreadable, number_of, table_of
from twinspark.cluster.probe.reading import Reading, least

LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes")
USAGES = ("memory.current", "memory.usage_in_bytes")


@dataclass(frozen=True)
class Memory:
    """`total`: the least of MemTotal and the limits. `available`: of MemAvailable and each limit less its usage."""

    total: Reading[int | None]
    available: Reading[int | None]


def read_memory(root: Path) -> Memory:
    """What is under `root`, which holds `proc` and `sys`. A limit or usage that cannot be read makes it unknown."""
    machine = total = _meminfo(root, "MemTotal")
    available = _meminfo(root, "MemAvailable")
    for group in groups(root, "memory"):
        limit = _limit(group)
        if limit is None:
            continue
        total = least(total, limit)
        available = least(available, _room(group, limit, machine.value))
    return Memory(total, available)


def _meminfo(root: Path, name: str) -> Reading[int | None]:
    try:
        value = table_of(root / "proc/meminfo").get(name)
    except Unreadable as error:
        return Reading(None, f"/proc/{error}")
    return Reading(value, f"/proc/meminfo {name}" if value is not None else f"/proc/meminfo has no {name}")


def _limit(group: Group) -> Reading[int | None] | None:
    """The tightest limit that this group's files name, None where there is none."""
    tightest: Reading[int | None] | None = None
    for name in LIMITS:
        try:
            value = number_of(group.directory / name)
        except Unreadable as error:
            return Reading(None, f"{group.name}/{error}")
        if value is not None:
            limit = Reading(value, f"{group.name}/{name}")
            tightest = limit if tightest is None else least(tightest, limit)
    # v1 tells the tightest limit of all groups above as well, also of those a container cannot see.
    inherited = _stat(group).get("hierarchical_memory_limit")
    if tightest is not None and inherited is not None:
        tightest = least(tightest, Reading(inherited, f"{group.name}/memory.stat hierarchical_memory_limit"))
    return tightest


def _room(group: Group, limit: Reading[int | None], machine_bytes: int | None) -> Reading[int | None]:
    """Limit less usage, at least 0."""
    if limit.value is None:
        return limit
    try:
        usages = [number_of(group.directory / name) for name in USAGES]
    except Unreadable as error:
        usages, why = [], str(error)
    else:
        why = "there is no such file"
    usage = next((usage for usage in usages if usage is not None), None)
    if usage is None and machine_bytes is not None and limit.value >= machine_bytes:
        return limit  # v1's way to say that there is no limit
    if usage is None:
        return Reading(None, f"{limit.source} less usage, which is unknown: {why}")
    used = max(0, usage - droppable_bytes(_stat(group)))
    return Reading(max(0, limit.value - used), f"{limit.source} less usage")


def droppable_bytes(stat: dict[str, int]) -> int:
    """Page cache that the kernel drops rather than kill us: file pages (not tmpfs) that need no writing first.

    `stat` is a memory.stat; v1 counts a group's children in under `total_*`.
    """
    if "total_inactive_file" in stat:
        names = ("total_inactive_file", "total_active_file", "total_dirty", "total_writeback")
    else:
        names = ("inactive_file", "active_file", "file_dirty", "file_writeback")
    inactive, active, dirty, writeback = (stat.get(name, 0) for name in names)
    return max(0, inactive + active - dirty - writeback)


def _stat(group: Group) -> dict[str, int]:
    try:
        return table_of(group.directory / "memory.stat")
    except Unreadable:
        return {}  # then no cache counts as droppable
