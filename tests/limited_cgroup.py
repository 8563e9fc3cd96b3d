"""A real cgroup with limits, for tests of what a program does inside one. Needs root and a writable cgroup."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

CGROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
JOIN = 'for group in $TWINSPARK_TEST_GROUPS; do echo $$ > "$group/cgroup.procs" || exit 120; done; exec "$@"'
REMOVAL_S = 20.0


@contextmanager
def limited(*, memory_bytes: int | None = None, cpus: float | None = None) -> Iterator[tuple[str, ...]]:
    """The start of a command line: what follows it runs in a new group with these limits, its children too.

    Skips the test where no group can be made. At the end what is left in the group is killed, and the group removed.
    """
    name = f"twinspark-test-{os.getpid()}-{time.monotonic_ns()}"
    v2 = (CGROUPS / "cgroup.controllers").is_file()
    made: list[Path] = []
    try:
        try:
            groups = _make_v2(name, made) if v2 else _make_v1(name, made)
            _limit(groups, memory_bytes, cpus)
        except OSError as error:
            pytest.skip(f"needs a cgroup with limits, which cannot be made here: {error}")
        yield ("env", f"TWINSPARK_TEST_GROUPS={' '.join(map(str, made))}", "sh", "-c", JOIN, "join")
    finally:
        for group in made:
            _remove(group)


def _make_v1(name: str, made: list[Path]) -> dict[str, Path]:
    """A group below our own in each of the two hierarchies."""
    groups = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in {"memory", "cpu"} & set(controllers.split(",")):
            groups[controller] = CGROUPS / controller / path.strip("/") / name
            groups[controller].mkdir()
            made.append(groups[controller])
    if len(groups) < 2:
        raise OSError(f"cgroup v1 has only {sorted(groups)} of memory and cpu")
    return groups


def _make_v2(name: str, made: list[Path]) -> dict[str, Path]:
    """A group at the top: below a group that holds processes, v2 lets none have controllers."""
    enabled = (CGROUPS / "cgroup.subtree_control").read_text().split()
    if not {"memory", "cpu"} <= set(enabled):
        raise OSError(f"cgroup v2 gives a group here only {enabled}, not memory and cpu")
    group = CGROUPS / name
    group.mkdir()
    made.append(group)
    return {"memory": group, "cpu": group}


def _limit(groups: dict[str, Path], memory_bytes: int | None, cpus: float | None) -> None:
    memory, cpu = groups["memory"], groups["cpu"]
    if memory_bytes is not None:
        name = "memory.max" if (memory / "memory.max").exists() else "memory.limit_in_bytes"
        (memory / name).write_text(str(memory_bytes))
    if cpus is None:
        return
    quota = int(cpus * PERIOD_US)
    if (cpu / "cpu.max").exists():
        (cpu / "cpu.max").write_text(f"{quota} {PERIOD_US}")
    else:
        (cpu / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (cpu / "cpu.cfs_quota_us").write_text(str(quota))


def _remove(group: Path) -> None:
    until = time.monotonic() + REMOVAL_S
    while group.exists():
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        try:
            group.rmdir()
        except OSError:  # its processes need a moment to go
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
