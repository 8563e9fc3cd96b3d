"""Which GPUs there are by NVML (a fake one behind the one file that knows it), and which of them CUDA would show."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from twinspark.cluster.probe import nvml, probe_node
from twinspark.cluster.probe.gpus import GpuReading, visible_gpus
from twinspark.cluster.probe.nvml import GpuProcess, GpuRecord
from twinspark.cluster.probe.reading import Reading
from twinspark.planner.nodes import GIB, MIB, Gpu

UUIDS = ("GPU-8932f937-d72c-4106", "GPU-89aaf937-0001-4106", "GPU-11aaf937-0002-4106")
MIG_UUIDS = ("MIG-c7aa-0", "MIG-c7bb-1")


def gpu(index: int, **changes: Any) -> GpuRecord:
    record = GpuRecord(index, UUIDS[index], "NVIDIA H200", 140 * GIB, 100 * GIB, (GpuProcess(7, GIB),))
    return replace(record, **changes)


THREE = (gpu(0), gpu(1), gpu(2))
SLICES = tuple(
    GpuRecord(
        1, uuid, "NVIDIA H200 MIG 1g.18gb", 16 * GIB, 15 * GIB, (),
        mig_mode=True, is_instance=True, mig_path=f"MIG-{UUIDS[1]}/{7 + slot}/0",
    )
    for slot, uuid in enumerate(MIG_UUIDS)
)  # fmt: skip
WITH_MIG = (gpu(0), gpu(1, mig_mode=True, instances=SLICES), gpu(2, mig_mode=True))


def seen(records: tuple[GpuRecord, ...], variable: str | None = None) -> tuple[tuple[GpuReading, ...], str]:
    environment = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    return visible_gpus(Reading(records, "NVML, driver 570"), environment)


@pytest.mark.parametrize(
    ("variable", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        (" ", []),
        ("0", [0]),
        ("2,0", [2, 0]),  # the order of the variable
        (" 1 , 2 ", [1, 2]),
        ("0,3,1", [0]),  # everything from the first invalid one on is invisible
        ("0,-1,1", [0]),
        ("-1", []),
        ("0,,1", [0]),
        ("1gpu2,2", [1, 2]),  # as C's strtoul reads it
        ("+1", [1]),
        ("none", []),
        ("NoDevFiles", []),
        ("1,0,1", []),  # one named twice: none at all
        (UUIDS[2], [2]),
        (f"{UUIDS[2]},{UUIDS[0]}", [2, 0]),
        ("GPU-11,GPU-893", [2, 0]),  # the beginning is enough
        ("GPU-11,GPU-89", [2]),  # unless it is that of two
        ("GPU-11,GPU-ff,GPU-893", [2]),
        ("GPU-11,0", [2]),  # no mixture
        ("0,GPU-11", [0]),
        ("GPU-11,GPU-11aa", []),
        ("gpu-11", []),
    ],
)
def test_cuda_visible_devices(variable: str | None, indices: list[int]) -> None:
    gpus, search = seen(THREE, variable)
    assert [one.uuid for one in gpus] == [UUIDS[index] for index in indices]
    assert [one.index for one in gpus] == list(range(len(indices)))  # as CUDA counts
    assert [one.key for one in gpus] == [UUIDS[index] for index in indices]
    assert "NVML, driver 570: 3 found" in search
    assert (variable is None) == ("CUDA_VISIBLE_DEVICES" not in search)


@pytest.mark.parametrize(
    ("variable", "keys"),
    [
        (None, [UUIDS[0], *MIG_UUIDS]),
        ("1", [*MIG_UUIDS]),
        (MIG_UUIDS[1], [MIG_UUIDS[1]]),
        ("MIG-c7b,MIG-c7a", [MIG_UUIDS[1], MIG_UUIDS[0]]),
        ("MIG-c7", []),
        (f"MIG-{UUIDS[1]}/8/0", [MIG_UUIDS[1]]),
        (f"MIG-{UUIDS[1]}/9/0", []),
        (f"{UUIDS[1]},{MIG_UUIDS[1]}", [*MIG_UUIDS]),  # each once
        ("2", []),  # in MIG mode, and nobody has made an instance
    ],
)
def test_mig_instances_are_devices_of_their_own(variable: str | None, keys: list[str]) -> None:
    gpus, search = seen(WITH_MIG, variable)
    assert [one.key for one in gpus] == keys
    assert [one.index for one in gpus] == list(range(len(keys)))
    for one in gpus:
        instance = one.key in MIG_UUIDS
        assert one.mig_gpu_index == (1 if instance else None)
        assert one.free_bytes == (15 * GIB if instance else 100 * GIB)
    assert ("GPU 2 is in MIG mode and has no instance" in search) == (variable in (None, "2"))


def test_order_is_told_where_cuda_might_have_another() -> None:
    mixed = Reading((gpu(0, name="NVIDIA L4"), gpu(1)), "NVML")
    assert "order is that of CUDA_DEVICE_ORDER=PCI_BUS_ID" in visible_gpus(mixed, {})[1]
    assert "order" not in visible_gpus(mixed, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})[1].lower()
    assert "order" not in seen(THREE)[1].lower()


def test_what_nvml_could_not_read_is_unknown_to_the_planner() -> None:
    failing = gpu(0, total_bytes=None, free_bytes=None, processes=None, failures=("memory: Unknown Error",))
    snapshot = probe_node(environment={}, gpus_by=lambda: Reading((failing, gpu(1)), "NVML"))
    assert pickle.loads(pickle.dumps(snapshot)) == snapshot
    assert snapshot.gpus[0].source == "NVML; memory: Unknown Error"
    node = snapshot.node("n1")
    assert node.gpus == (
        Gpu(0, UUIDS[0], "NVIDIA H200", None, None),
        Gpu(1, UUIDS[1], "NVIDIA H200", 140 * GIB, 100 * GIB),
    )
    assert node.headroom_bytes("cuda:0") is None
    assert node.headroom_bytes("cuda:1") == 86 * GIB


def test_a_gpu_without_uuid_goes_by_its_index() -> None:
    assert [one.key for one in seen((gpu(0), gpu(1, uuid=None)))[0]] == [UUIDS[0], "1"]
    assert seen((gpu(1, uuid=None),), "GPU-1")[0] == ()


@dataclass
class Driver:
    """A pynvml of our own. Handles are dicts; a value that is a number of an NVML error is raised."""

    gpus: list[dict[str, Any]] = field(default_factory=list)
    starts: bool = True
    open: int = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("NVMLError"):
            return getattr(pynvml, name)
        what = name.removeprefix("nvmlDeviceGet")
        return lambda handle: self.answer(handle.get(what, pynvml.NVML_ERROR_NOT_SUPPORTED))

    @staticmethod
    def answer(value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1000:
            raise pynvml.NVMLError(value)
        return value

    def nvmlInit(self) -> None:
        if not self.starts:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"570.1"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        return {**self.gpus[index], **({} if "lost" not in self.gpus[index] else self.answer(self.gpus[index]["lost"]))}

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: dict[str, Any]) -> int:
        return len(handle["slots"])

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: dict[str, Any], slot: int) -> Any:
        return self.answer(handle["slots"][slot])

    def nvmlDeviceGetGpuInstanceId(self, handle: dict[str, Any]) -> int:
        return int(handle["ids"][0])

    def nvmlDeviceGetComputeInstanceId(self, handle: dict[str, Any]) -> int:
        return int(handle["ids"][1])


def handle(uuid: str, free: int, **more: Any) -> dict[str, Any]:
    memory = SimpleNamespace(total=free + MIB, free=free, used=MIB)
    return {"UUID": uuid.encode(), "Name": "NVIDIA H200", "MemoryInfo": memory, "ComputeRunningProcesses": [], **more}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    fake = Driver()
    monkeypatch.setattr(nvml, "pynvml", fake)
    return fake


def test_no_driver(driver: Driver) -> None:
    driver.starts = False
    found = nvml.read_gpus()
    assert found == Reading(None, "NVML: Driver Not Loaded")
    assert visible_gpus(found, {}) == ((), "looked for GPUs by NVML: Driver Not Loaded")


def test_a_driver_without_a_device(driver: Driver) -> None:
    assert nvml.read_gpus() == Reading((), "NVML, driver 570.1")
    assert driver.open == 0
    assert visible_gpus(nvml.read_gpus(), {}) == ((), "looked for GPUs by NVML, driver 570.1: 0 found")


def test_what_a_driver_tells(driver: Driver) -> None:
    running = [SimpleNamespace(pid=7, usedGpuMemory=GIB), SimpleNamespace(pid=8, usedGpuMemory=None)]
    driver.gpus = [
        handle("GPU-a", 5 * GIB, ComputeRunningProcesses=running),
        {"lost": pynvml.NVML_ERROR_GPU_IS_LOST},
        handle("GPU-c", 5 * GIB, MemoryInfo=pynvml.NVML_ERROR_NOT_SUPPORTED, MigMode=[False, False]),
    ]
    found = nvml.read_gpus()
    assert driver.open == 0
    assert found.value == (
        GpuRecord(
            0, "GPU-a", "NVIDIA H200", 5 * GIB + MIB, 5 * GIB, (GpuProcess(7, GIB), GpuProcess(8, None)), mig_mode=False
        ),
        GpuRecord(2, "GPU-c", "NVIDIA H200", None, None, (), mig_mode=False, failures=("memory: Not Supported",)),
    )
    assert found.source == "NVML, driver 570.1, GPU 1: GPU is lost"
    # the lost one keeps its index: as CUDA would, what follows it is not shown
    assert [one.key for one in visible_gpus(found, {"CUDA_VISIBLE_DEVICES": "2,1,0"})[0]] == ["GPU-c"]


def test_a_driver_with_mig(driver: Driver) -> None:
    missing = pynvml.NVML_ERROR_NOT_FOUND
    slots = [
        handle("MIG-x", GIB, ids=(7, 0)),
        missing,
        handle("MIG-y", 2 * GIB, ids=(9, 1), ComputeRunningProcesses=999),
    ]
    driver.gpus = [handle("GPU-a", 5 * GIB, MigMode=[True, True], slots=slots)]
    [record] = nvml.read_gpus().value or ()
    assert record.mig_mode is True
    one, other = record.instances
    assert (one.uuid, one.free_bytes, one.mig_path, one.processes) == ("MIG-x", GIB, "MIG-GPU-a/7/0", ())
    assert (other.uuid, other.free_bytes, other.mig_path) == ("MIG-y", 2 * GIB, "MIG-GPU-a/9/1")
    assert other.processes is None
    assert other.failures[0].startswith("processes: ")


def test_probing_loads_neither_cuda_nor_torch_nor_ray() -> None:
    script = (
        "import sys; from twinspark.cluster.probe import probe_node; probe_node()\n"
        "assert 'torch' not in sys.modules and 'ray' not in sys.modules\n"
        "assert not any('libcuda.so' in line for line in open('/proc/self/maps'))"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


SEEN_BY_CUDA = """
import ctypes, json, uuid
cuda, count, device, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_int(), []
if cuda.cuInit(0) == 0:
    cuda.cuDeviceGetCount(ctypes.byref(count))
for index in range(count.value):
    number = (ctypes.c_byte * 16)()
    assert cuda.cuDeviceGet(ctypes.byref(device), index) == 0
    assert cuda.cuDeviceGetUuid(number, device) == 0
    found.append(f"GPU-{uuid.UUID(bytes=bytes(number))}")
print(json.dumps(found))
"""


@pytest.mark.gpu
def test_cuda_sees_the_same() -> None:
    """Forms of the variable, against CUDA itself in a process of its own."""
    everything = probe_node(environment={})
    if not everything.gpus or any(one.mig_mode for one in everything.gpus):
        pytest.skip(f"needs a GPU that is not in MIG mode: {everything.gpu_search}")
    first, last = everything.gpus[0], len(everything.gpus) - 1
    assert first.total_bytes is not None
    assert first.free_bytes is not None
    assert 0 < first.free_bytes <= first.total_bytes
    backwards = ",".join(map(str, range(last, -1, -1)))
    for variable in ("", "0", "-1", "99,0", f"{last},99,0", "0,0", "0,-1", "0x", backwards, first.key, first.key[:12]):
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": variable}
        command = [sys.executable, "-c", SEEN_BY_CUDA]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=120)
        ours = [one.key for one in probe_node(environment=environment).gpus]
        assert ours == json.loads(done.stdout), variable
