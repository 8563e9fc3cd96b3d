"""Which cgroups a process is in, and where their files lie: v1, v2 and both at once, in and outside containers.

/proc/self/cgroup names the group, /proc/self/mountinfo says where each hierarchy is mounted and which part of it. What
the groups' files mean is not known here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from twinspark.cluster.probe.files import Unreadable, text_of

V2 = ""  # what /proc/self/cgroup has in place of v1's controllers


@dataclass(frozen=True)
class Group:
    """`directory` holds its files; `name` is that path as the process sees it."""

    directory: Path
    name: str


@dataclass(frozen=True)
class Mount:
    """`root` is the part of the hierarchy that is mounted at `point`, as seen from our cgroup namespace."""

    controllers: frozenset[str]
    root: str
    point: str


def groups(root: Path, controller: str) -> tuple[Group, ...]:
    """This process's groups in v1's hierarchy of `controller` and in v2's, each from its own up to what is mounted."""
    paths, mounts = _paths(root), _mounts(root, controller)
    found: dict[Path, Group] = {}
    for hierarchy in (controller, V2):
        path = paths.get(hierarchy, "/")
        here = [mount for mount in mounts if hierarchy in mount.controllers]
        within = [(mount, part) for mount in here if (part := _part_below(root, mount, path)) is not None]
        # A container may see a mount that does not contain its path; what is mounted for it is then its own group.
        for mount, part in within or [(mount, "") for mount in here]:
            for directory in _upwards(_at(root, mount.point), part):
                found[directory] = Group(directory, f"/{directory.relative_to(root)}")
    return tuple(found.values())


def _paths(root: Path) -> dict[str, str]:
    """The process's path in each hierarchy, by controller."""
    paths = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def _mounts(root: Path, controller: str) -> list[Mount]:
    """Every cgroup mount that is not hidden by a later one; the usual places where there is no mountinfo."""
    by_point = {}
    lines = _lines(root / "proc/self/mountinfo")
    for line in lines:
        before, _, after = line.partition(" - ")
        part, point = (_unescaped(field) for field in before.split(" ")[3:5])
        fstype, _, options = after.split(" ", 2)
        if fstype in ("cgroup", "cgroup2"):
            controllers = {V2} if fstype == "cgroup2" else set(options.split(","))
            by_point[point] = Mount(frozenset(controllers), part, point)
    if lines:
        return list(by_point.values())
    usual = {"/sys/fs/cgroup": V2, "/sys/fs/cgroup/unified": V2, f"/sys/fs/cgroup/{controller}": controller}
    return [Mount(frozenset({name}), "/", point) for point, name in usual.items()]


def _part_below(root: Path, mount: Mount, path: str) -> str | None:
    """The group's path below the mount point, None where it is not under it."""
    above = mount.root.strip("/").split("/")
    if set(above) == {".."}:  # the mount begins above our namespace: a host's /sys/fs/cgroup given to a container
        return _searched(root, mount, len(above), path)
    start = mount.root.rstrip("/")
    if ".." in path.split("/") or not f"{path}/".startswith(f"{start}/"):
        return None
    return path[len(start) :].strip("/")


def _searched(root: Path, mount: Mount, depth: int, path: str) -> str | None:
    """Our namespace's own name is known to nobody inside it: look `depth` levels down for the group that holds us."""
    pid = next(iter(_lines(root / "proc/self/stat")), "").partition(" ")[0]
    point = _at(root, mount.point)
    for candidate in point.glob("/".join("*" * depth)):
        group = candidate / path.strip("/")
        if pid and pid in _lines(group / "cgroup.procs"):
            return str(group.relative_to(point))
    return None


def _upwards(point: Path, part: str) -> Iterator[Path]:
    group = point / part
    while group != point:
        yield group
        group = group.parent
    yield point


def _at(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def _lines(path: Path) -> list[str]:
    try:
        return (text_of(path) or "").splitlines()
    except Unreadable:
        return []


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), field)
