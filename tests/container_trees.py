"""File trees of /proc and /sys as processes see them in containers of each kind, and what a probe must say there.

One is captured; the others are written by hand from the kernel's documents (admin-guide/cgroup-v1/memory.rst,
admin-guide/cgroup-v2.rst, scheduler/sched-bwc.rst, man 7 cgroups, man 7 cgroup_namespaces) and say so.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

GIB = 2**30
NO_V1_LIMIT = 9223372036854771712
POD = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod7.slice"
SCOPE = f"{POD}/cri-containerd-4f2a.scope"
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
HOST: dict[str, str] = {  # 16 CPUs, 64 GiB, 48 of it available
    "proc/meminfo": f"MemTotal:       {64 * 2**20} kB\nMemFree:        1048576 kB\nMemAvailable:   {48 * 2**20} kB\n",
    "proc/self/status": "Name:\tpython\nCpus_allowed:\tffff\nCpus_allowed_list:\t0-15\n",
    "proc/self/stat": "4321 (python) R 1 4321\n",
    "proc/sys/kernel/hostname": "somewhere\n",
}


@dataclass(frozen=True)
class Tree:
    """`files` by path; the rest is what must be found, sources by a part that they must contain."""

    kind: str
    files: dict[str, str]
    total_bytes: int
    available_bytes: int
    num_cpus: int
    ram_source: str = "/proc/meminfo MemAvailable"
    cpu_source: str = "affinity"
    origin: str = "by hand"
    host_files: dict[str, str] = field(default_factory=lambda: HOST)

    def write(self, root: Path) -> Path:
        return write(root, {**self.host_files, **self.files})


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@contextmanager
def nested_v2() -> Iterator[Nested]:
    """In memory where there is such a place: property tests write it thousands of times."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if os.access(shm, os.W_OK) else None) as folder:
        yield Nested(write(Path(folder), {**HOST, "proc/self/mountinfo": V2_MOUNT}))


@dataclass(frozen=True)
class Nested:
    """A tree with v2 groups g0, g0/g1, ... under `root`."""

    root: Path

    @staticmethod
    def directory(depth: int) -> str:
        return "/".join(f"g{above}" for above in range(depth + 1))

    def enter(self, num_groups: int) -> Path:
        """The process moves to the innermost of so many groups."""
        return write(self.root, {"proc/self/cgroup": f"0::/{self.directory(num_groups - 1)}\n"})


def v1_mount(controllers: str, part: str = "/") -> str:
    return f"31 23 0:27 {part} /sys/fs/cgroup/{controllers} ro,nosuid master:9 - cgroup cgroup rw,{controllers}\n"


def v1_memory(
    directory: str, limit: int, usage: int, *, inherited: int | None = None, cache: int = 0
) -> dict[str, str]:
    """`cache`: half of it active, half inactive; `total_*` counts children in, which the plain names do not."""
    stat = f"cache 0\ninactive_file 0\nactive_file 0\nhierarchical_memory_limit {inherited or limit}\n"
    stat += f"total_inactive_file {cache // 2}\ntotal_active_file {cache - cache // 2}\n"
    base = f"sys/fs/cgroup/memory{directory}"
    return {
        f"{base}/memory.limit_in_bytes": f"{limit}\n",
        f"{base}/memory.usage_in_bytes": f"{usage}\n",
        f"{base}/memory.stat": stat,
    }


def v1_cpu(directory: str, quota: int, period: int = 100_000, *, controllers: str = "cpu,cpuacct") -> dict[str, str]:
    base = f"sys/fs/cgroup/{controllers}{directory}"
    return {f"{base}/cpu.cfs_quota_us": f"{quota}\n", f"{base}/cpu.cfs_period_us": f"{period}\n"}


def v2_memory(
    directory: str, most: int | str, usage: int, *, high: int | str = "max", cache: int = 0, dirty: int = 0
) -> dict[str, str]:
    base = f"sys/fs/cgroup/{directory}".rstrip("/")
    stat = f"anon 1\ninactive_file {cache // 2}\nactive_file {cache - cache // 2}\nfile_dirty {dirty}\n"
    return {
        f"{base}/memory.max": f"{most}\n",
        f"{base}/memory.high": f"{high}\n",
        f"{base}/memory.current": f"{usage}\n",
        f"{base}/memory.stat": stat,
    }


def v2_cpu(directory: str, most: str) -> dict[str, str]:
    return {f"{f'sys/fs/cgroup/{directory}'.rstrip('/')}/cpu.max": f"{most}\n"}


DOCKER_V1 = Tree(
    "Docker on v1, host's cgroup namespace",
    {
        "proc/self/cgroup": "12:memory:/docker/a1b2\n4:cpu,cpuacct:/docker/a1b2\n1:name=systemd:/docker/a1b2\n",
        "proc/self/mountinfo": v1_mount("memory", "/docker/a1b2") + v1_mount("cpu,cpuacct", "/docker/a1b2"),
        **v1_memory("", 4 * GIB, 3 * GIB, cache=1 * GIB),
        **v1_cpu("", 150_000),
    },
    total_bytes=4 * GIB,
    available_bytes=2 * GIB,
    num_cpus=1,
    ram_source="/sys/fs/cgroup/memory/memory.limit_in_bytes less usage",
    cpu_source="/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us of 1.5 CPUs",
)
DOCKER_V1_NAMESPACE = Tree(
    "Docker on v1, namespace of its own, mounted before it was made",
    {
        "proc/self/cgroup": "12:memory:/\n4:cpu,cpuacct:/\n",
        "proc/self/mountinfo": v1_mount("memory", "/docker/a1b2") + v1_mount("cpu,cpuacct", "/docker/a1b2"),
        **v1_memory("", 4 * GIB, 1 * GIB),
        **v1_cpu("", 50_000),
    },
    total_bytes=4 * GIB,
    available_bytes=3 * GIB,
    num_cpus=1,
    ram_source="/sys/fs/cgroup/memory/memory.limit_in_bytes",
    cpu_source="cpu.cfs_quota_us of 0.5 CPUs",
)
V1_PARENT_OUT_OF_SIGHT = Tree(
    "v1 container without a limit, below one that it cannot see",
    {
        "proc/self/cgroup": "12:memory:/kubepods/pod7/4f2a\n",
        "proc/self/mountinfo": v1_mount("memory", "/kubepods/pod7/4f2a"),
        **v1_memory("", NO_V1_LIMIT, 1 * GIB, inherited=6 * GIB),
    },
    total_bytes=6 * GIB,
    available_bytes=5 * GIB,
    num_cpus=16,
    ram_source="memory.stat hierarchical_memory_limit less usage",
)
V1_WITHOUT_LIMIT = Tree(
    "v1 with the number that means no limit",
    {
        "proc/self/cgroup": "4:memory:/user\n3:cpu:/\n",
        "proc/self/mountinfo": v1_mount("memory") + v1_mount("cpu"),
        **v1_memory("/user", NO_V1_LIMIT, 20 * GIB),
        **v1_memory("", NO_V1_LIMIT, 30 * GIB),
        **v1_cpu("", -1, controllers="cpu"),
    },
    total_bytes=64 * GIB,
    available_bytes=48 * GIB,
    num_cpus=16,
)
DOCKER_V2 = Tree(
    "Docker on v2",
    {
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": V2_MOUNT,
        **v2_memory("", 4 * GIB, 3 * GIB, cache=2 * GIB, dirty=GIB // 2),
        **v2_cpu("", "150000 100000"),
        "sys/fs/cgroup/cpuset.cpus.effective": "0-15\n",
    },
    total_bytes=4 * GIB,
    available_bytes=5 * GIB // 2,  # dirty page cache has to be written first
    num_cpus=1,
    ram_source="/sys/fs/cgroup/memory.max less usage",
    cpu_source="/sys/fs/cgroup/cpu.max of 1.5 CPUs",
)
DOCKER_V2_HOST_NAMESPACE = Tree(
    "Docker on v2 with the host's namespace: the path does not exist under its own mount",
    {
        "proc/self/cgroup": "0::/system.slice/docker-a1b2.scope\n",
        "proc/self/mountinfo": V2_MOUNT.replace(" / /sys", " /system.slice/docker-a1b2.scope /sys"),
        **v2_memory("", 8 * GIB, 2 * GIB),
        **v2_cpu("", "max 100000"),
    },
    total_bytes=8 * GIB,
    available_bytes=6 * GIB,
    num_cpus=16,
    ram_source="/sys/fs/cgroup/memory.max",
)
STRANGE_PATH = Tree(
    "a path that lies nowhere under the mount",
    {
        "proc/self/cgroup": "0::/../other/scope\n",
        "proc/self/mountinfo": V2_MOUNT,
        **v2_memory("", 8 * GIB, 2 * GIB),
        **v2_cpu("", "400000 100000"),
    },
    total_bytes=8 * GIB,
    available_bytes=6 * GIB,
    num_cpus=4,
    ram_source="/sys/fs/cgroup/memory.max",
    cpu_source="/sys/fs/cgroup/cpu.max",
)
POD_INSIDE = Tree(
    "Kubernetes on v2 from inside",
    {
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": V2_MOUNT,
        **v2_memory("", 3 * GIB, 1 * GIB),
        **v2_cpu("", "50000 100000"),
    },
    total_bytes=3 * GIB,
    available_bytes=2 * GIB,
    num_cpus=1,
    ram_source="/sys/fs/cgroup/memory.max",
    cpu_source="/sys/fs/cgroup/cpu.max of 0.5 CPUs",
)
POD_FROM_HOST = Tree(
    "Kubernetes on v2 from the host: the pod's limits are tighter than the container's",
    {
        "proc/self/cgroup": f"0::/{SCOPE}\n",
        "proc/self/mountinfo": V2_MOUNT,
        **v2_memory(SCOPE, 16 * GIB, 2 * GIB),
        **v2_cpu(SCOPE, "max 100000"),
        **v2_memory(POD, 8 * GIB, 5 * GIB, cache=1 * GIB),
        **v2_cpu(POD, "250000 100000"),
        **v2_memory("kubepods.slice", 60 * GIB, 20 * GIB),
        "sys/fs/cgroup/kubepods.slice/cpuset.cpus.effective": "0-15\n",
        "sys/fs/cgroup/cpu.stat": "usage_usec 1\n",
    },
    total_bytes=8 * GIB,
    available_bytes=4 * GIB,
    num_cpus=2,
    ram_source=f"/sys/fs/cgroup/{POD}/memory.max less usage",
    cpu_source=f"/sys/fs/cgroup/{POD}/cpu.max of 2.5 CPUs",
)
HOST_MOUNT_IN_NAMESPACE = Tree(
    "the host's /sys/fs/cgroup given to a container with a namespace of its own",
    {
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": V2_MOUNT.replace(" / /sys", " /../.. /sys"),
        **v2_memory("system.slice/docker-a1b2.scope", 8 * GIB, 2 * GIB),
        **v2_cpu("system.slice/docker-a1b2.scope", "300000 100000"),
        "sys/fs/cgroup/system.slice/docker-a1b2.scope/cgroup.procs": "17\n4321\n",
        **v2_memory("system.slice/docker-other.scope", 2 * GIB, 1 * GIB),
        "sys/fs/cgroup/system.slice/docker-other.scope/cgroup.procs": "0\n432\n",
        **v2_memory("system.slice", 7 * GIB, 3 * GIB),
    },
    total_bytes=7 * GIB,
    available_bytes=4 * GIB,
    num_cpus=3,
    ram_source="/sys/fs/cgroup/system.slice/memory.max",
    cpu_source="/sys/fs/cgroup/system.slice/docker-a1b2.scope/cpu.max",
)
HYBRID = Tree(
    "hybrid: v1 controllers, v2 without any beside them",
    {
        "proc/self/cgroup": "9:cpuset:/box\n7:memory:/box/inner\n4:cpu,cpuacct:/box\n0::/box\n",
        "proc/self/mountinfo": v1_mount("memory") + v1_mount("cpu,cpuacct") + v1_mount("cpuset")
        + "40 23 0:35 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        **v1_memory("/box/inner", 12 * GIB, 1 * GIB),
        **v1_memory("/box", 10 * GIB, 5 * GIB),
        **v1_memory("", NO_V1_LIMIT, 9 * GIB),
        **v1_cpu("/box", 800_000),
        "sys/fs/cgroup/cpuset/box/cpuset.cpus": "4,6\n",
        "sys/fs/cgroup/cpuset/cpuset.cpus": "0-15\n",
        "sys/fs/cgroup/unified/box/cgroup.procs": "4321\n",
    },
    total_bytes=10 * GIB,
    available_bytes=5 * GIB,
    num_cpus=2,
    ram_source="/sys/fs/cgroup/memory/box/memory.limit_in_bytes",
    cpu_source="/sys/fs/cgroup/cpuset/box/cpuset.cpus",
)  # fmt: skip
MEMORY_HIGH = Tree(
    "v2 with memory.high below memory.max",
    {
        "proc/self/cgroup": "0::/app.slice\n",
        "proc/self/mountinfo": V2_MOUNT,
        **v2_memory("app.slice", 8 * GIB, 1 * GIB, high=6 * GIB),
        "sys/fs/cgroup/app.slice/cpuset.cpus.effective": "2-3\n",
    },
    total_bytes=6 * GIB,
    available_bytes=5 * GIB,
    num_cpus=2,
    ram_source="/sys/fs/cgroup/app.slice/memory.high less usage",
    cpu_source="/sys/fs/cgroup/app.slice/cpuset.cpus.effective",
)
OVER_THE_LIMIT = Tree(
    "usage above a limit that was lowered",
    {
        "proc/self/cgroup": "0::/app.slice\n",
        "proc/self/mountinfo": V2_MOUNT,
        **v2_memory("app.slice", "max", 7 * GIB, high=6 * GIB),
    },
    total_bytes=6 * GIB,
    available_bytes=0,
    num_cpus=16,
    ram_source="memory.high",
)
ODD_NAMES = Tree(
    "a mount point and a group with a blank and a colon in their names, one mount hidden by another",
    {
        "proc/self/cgroup": "0::/my group:1\n",
        "proc/self/mountinfo": V2_MOUNT.replace(" / /sys/fs/cgroup", " /elsewhere /sys/my\\040cgroup")
        + V2_MOUNT.replace("/sys/fs/cgroup", "/sys/my\\040cgroup"),
        "sys/my cgroup/my group:1/memory.max": f"{2 * GIB}\n",
        "sys/my cgroup/my group:1/memory.current": "0\n",
    },
    total_bytes=2 * GIB,
    available_bytes=2 * GIB,
    num_cpus=16,
    ram_source="/sys/my cgroup/my group:1/memory.max",
)
NO_MOUNTINFO = Tree(
    "no mountinfo: the usual places",
    {
        "proc/self/cgroup": "3:memory:/a\n2:cpu:/a\n",
        **v1_memory("/a", 4 * GIB, 1 * GIB),
        **v1_cpu("", 250_000, controllers="cpu"),
    },
    total_bytes=4 * GIB,
    available_bytes=3 * GIB,
    num_cpus=2,
    ram_source="/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
    cpu_source="/sys/fs/cgroup/cpu/cpu.cfs_quota_us",
)
NO_CGROUPS = Tree("no cgroups at all", {}, total_bytes=64 * GIB, available_bytes=48 * GIB, num_cpus=16)
CAPTURED = Tree(
    "a nested v1 group of 3 GiB and 1.5 CPUs, with page cache",
    {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for root in [Path(__file__).parent / "trees" / "v1-nested"]
        for path in root.rglob("*")
        if path.is_file()
    },
    total_bytes=3 * GIB,
    available_bytes=3 * GIB - (209240064 - (191827968 + 10838016 - 102400)),
    num_cpus=1,
    ram_source="/sys/fs/cgroup/memory/process_api/4fab/box/memory.limit_in_bytes less usage",
    cpu_source="/sys/fs/cgroup/cpu/box/cpu.cfs_quota_us of 1.5 CPUs",
    origin="captured (Linux 6.18, 2 CPUs, 24 GB; group names shortened)",
    host_files={},
)
TREES = (
    CAPTURED, DOCKER_V1, DOCKER_V1_NAMESPACE, V1_PARENT_OUT_OF_SIGHT, V1_WITHOUT_LIMIT, DOCKER_V2,
    DOCKER_V2_HOST_NAMESPACE, STRANGE_PATH, POD_INSIDE, POD_FROM_HOST, HOST_MOUNT_IN_NAMESPACE, HYBRID, MEMORY_HIGH,
    OVER_THE_LIMIT, ODD_NAMES, NO_MOUNTINFO, NO_CGROUPS,
)  # fmt: skip
