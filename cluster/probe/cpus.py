"""How many CPUs this process may keep busy: the least of affinity, cpuset and quota on the whole path to the root."""

from __future__ import annotations

import os
from pathlib import Path

from twinspark.cluster.probe.cgroup import Group, groups
from twinspark.cluster.probe.files import NO_LIMIT, Unreadable, cpu_list, cpus_of, number_of, text_of, whole
from twinspark.cluster.probe.reading import Reading

CPUSETS = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")  # v2, v1, v1 before Linux 3.17
UNLIMITED = -1  # as v1 writes it
PERIOD_US = 100_000  # the kernel's default


def count_cpus(root: Path, affinity: frozenset[int] | None = None) -> Reading[int]:
    """At least 1. `affinity` stands in for the process's own, which is read where None is given."""
    count = _allowed(root, affinity)
    for controller, bound in (("cpuset", _cpuset), ("cpu", _quota)):
        for group in groups(root, controller):
            try:
                found = bound(group)
            except Unreadable as error:
                count = Reading(count.value, f"{count.source} (unknown: {group.name}/{error})")
                continue
            if found is not None and found.value < count.value:
                count = found
    return count


def _allowed(root: Path, affinity: frozenset[int] | None) -> Reading[int]:
    if affinity is None and root == Path("/"):
        affinity = frozenset(os.sched_getaffinity(0))
    if affinity is None:
        affinity = _affinity_of(root)
    if affinity:
        return Reading(len(affinity), "affinity")
    return Reading(1, "affinity unknown, 1 taken")


def _affinity_of(root: Path) -> frozenset[int]:
    """Empty where the tree does not tell."""
    status = root / "proc/self/status"
    try:
        lines = (text_of(status) or "").splitlines()
        lists = [line.partition(":")[2] for line in lines if line.startswith("Cpus_allowed_list:")]
        return frozenset(cpu for text in lists for cpu in cpu_list(text, status))
    except Unreadable:
        return frozenset()


def _cpuset(group: Group) -> Reading[int] | None:
    for name in CPUSETS:
        cpus = cpus_of(group.directory / name)
        if cpus:  # v1 leaves it empty in a group that nobody has set up
            return Reading(len(cpus), f"{group.name}/{name}")
    return None


def _quota(group: Group) -> Reading[int] | None:
    """Rounded down: a thread more than the quota makes all of them wait. At least 1."""
    name = "cpu.max"
    text = text_of(group.directory / name)
    if text is not None:
        first, _, second = text.strip().partition(" ")
        quota = UNLIMITED if first == NO_LIMIT else whole(first, group.directory / name)
        period = whole(second, group.directory / name) if second else PERIOD_US
    else:
        name = "cpu.cfs_quota_us"
        quota = number_of(group.directory / name) or UNLIMITED
        period = number_of(group.directory / "cpu.cfs_period_us") or PERIOD_US
    if quota <= 0 or period <= 0:
        return None
    return Reading(max(1, quota // period), f"{group.name}/{name} of {quota / period:g} CPUs")
