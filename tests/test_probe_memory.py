"""RAM that is really there: in containers of each kind, in a real cgroup, and where files are missing or unreadable."""

from __future__ import annotations

import json
import pickle
import subprocess
from pathlib import Path

import pytest
from cli_process import COMMAND, clean_environment
from container_trees import CAPTURED, DOCKER_V1, DOCKER_V2, GIB, HOST, TREES, Tree, nested_v2, v2_memory, write
from hypothesis import given, settings
from hypothesis import strategies as st
from limited_cgroup import limited

from twinspark.cluster.probe import Snapshot, probe_node
from twinspark.cluster.probe.memory import droppable_bytes, read_memory
from twinspark.cluster.probe.numa import NumaNode
from twinspark.cluster.probe.reading import Reading

NO_GPUS = Reading(None, "nowhere")


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.kind)
def test_memory_in_a_container(tree: Tree, tmp_path: Path) -> None:
    found = read_memory(tree.write(tmp_path))
    assert found.total.value == tree.total_bytes
    assert found.available.value == tree.available_bytes
    assert tree.ram_source in found.available.source


def test_the_headroom_of_a_node_is_that_of_its_limits(tmp_path: Path) -> None:
    """The reserve is a share of what the limits allow, not of the machine's memory."""
    snapshot = probe_node(DOCKER_V1.write(tmp_path), gpus_by=lambda: NO_GPUS)
    node = snapshot.node("n1")
    assert (node.name, node.host) == ("n1", "somewhere")
    assert node.headroom_bytes("cpu") == 0  # 2 GiB available, 2 GiB in reserve
    assert (node.total_ram_bytes, node.available_ram_bytes, node.num_cpus) == (4 * GIB, 2 * GIB, 1)


def test_a_snapshot_travels(tmp_path: Path) -> None:
    snapshot = probe_node(CAPTURED.write(tmp_path), gpus_by=lambda: NO_GPUS)
    assert isinstance(snapshot, Snapshot)
    assert pickle.loads(pickle.dumps(snapshot)) == snapshot
    node = NumaNode(0, (0, 1), 8611616 * 1024, 3234688 * 1024)
    assert snapshot.numa_nodes == Reading((node,), "/sys/devices/system/node")
    assert snapshot.cpu_model == Reading("AMD EPYC", "/proc/cpuinfo model name")


@pytest.mark.parametrize("missing", ["memory.current", "memory.max"])
def test_usage_without_a_number_makes_it_unknown_not_zero(missing: str, tmp_path: Path) -> None:
    root = write(tmp_path, {**HOST, **DOCKER_V2.files, f"sys/fs/cgroup/{missing}": "rubbish\n"})
    found = read_memory(root)
    assert found.available.value is None
    assert f"/sys/fs/cgroup/{missing} must" in found.available.source or missing in found.available.source
    assert found.total.value == (None if missing == "memory.max" else 4 * GIB)


def test_a_file_that_cannot_be_read_makes_it_unknown(tmp_path: Path) -> None:
    root = DOCKER_V2.write(tmp_path)
    (root / "sys/fs/cgroup/memory.current").unlink()
    (root / "sys/fs/cgroup/memory.current").mkdir()  # as root, no permission is ever denied
    found = read_memory(root)
    assert found.available == Reading(
        None, "/sys/fs/cgroup/memory.max less usage, which is unknown: memory.current: Is a directory"
    )


def test_a_limit_without_a_usage_is_unknown_unless_it_limits_nothing(tmp_path: Path) -> None:
    root = DOCKER_V1.write(tmp_path)
    usage = root / "sys/fs/cgroup/memory/memory.usage_in_bytes"
    usage.unlink()
    assert read_memory(root).available.value is None
    (usage.parent / "memory.limit_in_bytes").write_text("9223372036854771712")
    (usage.parent / "memory.stat").unlink()
    assert read_memory(root).available == Reading(48 * GIB, "/proc/meminfo MemAvailable")


@pytest.mark.parametrize("meminfo", ["", "MemTotal: 4 kB\n", None])
def test_without_mem_available_it_is_unknown(meminfo: str | None, tmp_path: Path) -> None:
    files = {**HOST, **DOCKER_V2.files, "proc/meminfo": meminfo or ""}
    if meminfo is None:
        del files["proc/meminfo"]
    found = read_memory(write(tmp_path, files))
    assert found.available == Reading(None, "/proc/meminfo has no MemAvailable")


def test_without_memory_stat_all_usage_counts(tmp_path: Path) -> None:
    root = DOCKER_V1.write(tmp_path)
    (root / "sys/fs/cgroup/memory/memory.stat").unlink()
    assert read_memory(root).available.value == 1 * GIB


def test_droppable_is_page_cache_that_needs_no_writing() -> None:
    assert droppable_bytes({"inactive_file": 10, "active_file": 5, "file_dirty": 2, "file_writeback": 1}) == 12
    assert droppable_bytes({"inactive_file": 1, "file_dirty": 5, "shmem": 100, "anon": 100}) == 0
    # v1: with the children's, whatever the group's own
    assert droppable_bytes({"inactive_file": 1, "total_inactive_file": 10, "total_dirty": 3}) == 7


limits = st.one_of(st.just("max"), st.integers(0, 80 * GIB))
Group = tuple[int | str, int | str, int, int]  # max, high, usage, cache
some_groups = st.lists(
    st.tuples(limits, limits, st.integers(0, 40 * GIB), st.integers(0, 50 * GIB)), min_size=1, max_size=4
)


def available_bytes(root: Path) -> int:
    found = read_memory(root).available.value
    assert found is not None
    return found


def test_available_stays_under_every_limit_and_no_group_raises_it() -> None:
    @settings(max_examples=2000, deadline=None)
    @given(some_groups)
    def check(groups: list[Group]) -> None:
        for depth, (most, high, usage, cache) in enumerate(groups):
            write(nested.root, v2_memory(nested.directory(depth), most, usage, high=high, cache=cache))
        available = available_bytes(nested.enter(len(groups)))
        assert 0 <= available <= 48 * GIB
        for *bounds, usage, cache in groups:
            for bound in bounds:
                assert isinstance(bound, str) or available <= max(0, bound - max(0, usage - cache))
        assert available <= available_bytes(nested.enter(len(groups) - 1))

    with nested_v2() as nested:
        check()


def test_probe_inside_a_real_cgroup() -> None:
    """The command itself, in a group of 3 GiB and 1.5 CPUs."""
    with limited(memory_bytes=3 * GIB, cpus=1.5) as inside:
        done = subprocess.run(
            [*inside, *COMMAND, "probe", "--json"],
            capture_output=True, text=True, check=True, timeout=120, env=clean_environment(),
        )  # fmt: skip
    document = json.loads(done.stdout)
    assert document["total_ram_bytes"]["value"] <= 3 * GIB
    # the process itself takes some of it; what it read from disk is cache, and does not count
    assert 2 * GIB < document["available_ram_bytes"]["value"] < 3 * GIB
    assert "twinspark-test-" in document["available_ram_bytes"]["source"]
    assert "less usage" in document["available_ram_bytes"]["source"]
    assert document["num_cpus"]["value"] == 1
    assert document["num_cpus"]["source"].endswith("of 1.5 CPUs")
    assert document["headroom_bytes"]["cpu"] == document["available_ram_bytes"]["value"] - 2 * GIB


def test_page_cache_in_a_real_cgroup_is_not_counted_as_used(tmp_path: Path) -> None:
    size = 300 * 2**20
    script = (
        "import os, pathlib, sys\n"
        "from twinspark.cluster.probe.memory import read_memory\n"
        "before = read_memory(pathlib.Path('/')).available.value\n"
        "with open(sys.argv[1], 'wb') as file:\n"
        f"    file.write(bytes({size})); file.flush(); os.fsync(file.fileno())\n"
        "print(before - read_memory(pathlib.Path('/')).available.value)\n"
    )
    with limited(memory_bytes=2 * GIB) as inside:
        command = [*inside, COMMAND[0], "-c", script, str(tmp_path / "file")]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert abs(int(done.stdout)) < size // 4
