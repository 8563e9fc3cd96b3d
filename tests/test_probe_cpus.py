"""How many CPUs may be used, and what they can do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from container_trees import (
    DOCKER_V2,
    HOST,
    POD_FROM_HOST,
    TREES,
    V2_MOUNT,
    Tree,
    nested_v2,
    v1_cpu,
    v1_mount,
    v2_cpu,
    write,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from twinspark.cluster.probe.cpuinfo import read_cpuinfo
from twinspark.cluster.probe.cpus import count_cpus
from twinspark.cluster.probe.files import Unreadable, cpu_list
from twinspark.cluster.probe.numa import NumaNode, read_numa_nodes
from twinspark.cluster.probe.reading import Reading

SIXTEEN = frozenset(range(16))


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.kind)
def test_cpus_in_a_container(tree: Tree, tmp_path: Path) -> None:
    found = count_cpus(tree.write(tmp_path))
    assert found.value == tree.num_cpus
    assert tree.cpu_source in found.source


@pytest.mark.parametrize(
    ("quota", "num_cpus"),
    [("max 100000", 16), ("50000 100000", 1), ("150000 100000", 1), ("199999 100000", 1), ("200000 100000", 2),
     ("1000 250000", 1), ("400000", 4), ("9999999 100000", 16)],
)  # fmt: skip
def test_a_quota_is_rounded_down_but_never_to_none(quota: str, num_cpus: int, tmp_path: Path) -> None:
    files = {**HOST, "proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2_MOUNT, **v2_cpu("", quota)}
    assert count_cpus(write(tmp_path, files)).value == num_cpus


@pytest.mark.parametrize(("quota", "num_cpus"), [(-1, 16), (0, 16), (50_000, 1), (150_000, 1), (300_000, 3)])
def test_a_v1_quota(quota: int, num_cpus: int, tmp_path: Path) -> None:
    files = {
        **HOST,
        "proc/self/cgroup": "4:cpu,cpuacct:/box\n",
        "proc/self/mountinfo": v1_mount("cpu,cpuacct"),
        **v1_cpu("/box", quota),
    }
    assert count_cpus(write(tmp_path, files)).value == num_cpus


def test_the_affinity_given_goes_before_the_trees(tmp_path: Path) -> None:
    root = POD_FROM_HOST.write(tmp_path)
    assert count_cpus(root, frozenset({5})) == Reading(1, "affinity")
    assert count_cpus(root, SIXTEEN).value == 2
    assert count_cpus(Path("/")).value <= len(os.sched_getaffinity(0))


def test_a_v1_cpuset_that_nobody_has_set_up_says_nothing(tmp_path: Path) -> None:
    files = {
        **HOST,
        "proc/self/cgroup": "4:cpuset:/box\n",
        "proc/self/mountinfo": v1_mount("cpuset"),
        "sys/fs/cgroup/cpuset/box/cpuset.cpus": "\n",
        "sys/fs/cgroup/cpuset/cpuset.cpus": "0-7\n",
    }
    assert count_cpus(write(tmp_path, files)) == Reading(8, "/sys/fs/cgroup/cpuset/cpuset.cpus")


def test_a_quota_that_makes_no_sense_is_told_and_the_rest_counts(tmp_path: Path) -> None:
    files = {**HOST, **DOCKER_V2.files, "sys/fs/cgroup/cpu.max": "plenty\n"}
    found = count_cpus(write(tmp_path, files))
    assert found == Reading(16, "affinity (unknown: /sys/fs/cgroup/cpu.max must hold a number, got 'plenty')")


def test_nothing_known_is_one_cpu(tmp_path: Path) -> None:
    assert count_cpus(tmp_path) == Reading(1, "affinity unknown, 1 taken")


def test_cpu_lists() -> None:
    somewhere = Path("cpuset.cpus")
    assert cpu_list("0-3,8,10-11\n", somewhere) == (0, 1, 2, 3, 8, 10, 11)
    assert cpu_list("\n", somewhere) == ()
    for text in ("a", "1-", "-1", "1;2"):
        with pytest.raises(Unreadable, match=r"cpuset\.cpus must hold a number"):
            cpu_list(text, somewhere)


quotas = st.one_of(
    st.just("max 100000"), st.tuples(st.integers(1, 10**7), st.integers(1000, 10**6)).map(lambda q: f"{q[0]} {q[1]}")
)
cpusets = st.one_of(st.just(""), st.integers(0, 80).map(lambda last: f"0-{last}"))
some_groups = st.lists(st.tuples(quotas, cpusets), min_size=1, max_size=4)


def test_the_count_lies_between_one_and_affinity_and_no_group_raises_it() -> None:
    @settings(max_examples=2000, deadline=None)
    @given(some_groups, st.integers(1, 96))
    def check(groups: list[tuple[str, str]], num_allowed: int) -> None:
        affinity = frozenset(range(num_allowed))
        for depth, (quota, cpuset) in enumerate(groups):
            directory = nested.directory(depth)
            cpus = {f"sys/fs/cgroup/{directory}/cpuset.cpus.effective": cpuset}
            write(nested.root, {**v2_cpu(directory, quota), **cpus})
        found = count_cpus(nested.enter(len(groups)), affinity).value
        assert 1 <= found <= num_allowed
        assert found <= count_cpus(nested.enter(len(groups) - 1), affinity).value

    with nested_v2() as nested:
        check()


@pytest.mark.parametrize(
    ("cpuinfo", "model", "sets"),
    [
        ("model name\t: Xeon\nflags\t\t: fpu avx2 avx512f avx512_vnni avx512_bf16 amx_bf16 amx_tile amx_int8\n", "Xeon",
         ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")),
        ("model name\t: mixed\nflags\t\t: avx2 avx512f\n\nmodel name\t: mixed\nflags\t\t: avx2\n", "mixed", ("avx2",)),
        ("model name\t: old\nflags\t\t: fpu sse2\n", "old", ()),
        ("Features\t: fp asimd sve i8mm bf16\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n",
         "ARM implementer 0x41 part 0xd40", ("asimd", "bf16", "i8mm")),
        ("nothing we know\n", None, None),
        (None, None, None),
    ],
)  # fmt: skip
def test_cpu_model_and_instruction_sets(
    cpuinfo: str | None, model: str | None, sets: tuple[str, ...] | None, tmp_path: Path
) -> None:
    found = read_cpuinfo(write(tmp_path, {} if cpuinfo is None else {"proc/cpuinfo": cpuinfo}))
    assert found.model.value == model
    assert found.instruction_sets.value == sets
    assert found.model.source.startswith("/proc/cpuinfo")
    assert found.instruction_sets.source.startswith("/proc/cpuinfo")


def test_numa_nodes(tmp_path: Path) -> None:
    nodes = "sys/devices/system/node"
    files = {
        f"{nodes}/node0/cpulist": "0-1,4\n",
        f"{nodes}/node0/meminfo": "Node 0 MemTotal:  1024 kB\nNode 0 MemFree:  512 kB\nNode 0 HugePages_Total:  0\n",
        f"{nodes}/node10/cpulist": "\n",
        f"{nodes}/node2/cpulist": "rubbish\n",
        f"{nodes}/possible": "0-15\n",
    }
    assert read_numa_nodes(tmp_path).value is None
    assert read_numa_nodes(write(tmp_path, files)).value == (
        NumaNode(0, (0, 1, 4), 2**20, 2**19),
        NumaNode(2, None, None, None),
        NumaNode(10, (), None, None),
    )
