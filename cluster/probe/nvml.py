"""All that is asked of NVML: what GPUs the driver knows. CUDA_VISIBLE_DEVICES is not known here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pynvml

from twinspark.cluster.probe.reading import Reading

T = TypeVar("T")


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU. In a container, `pid` may be the host's."""

    pid: int
    used_bytes: int | None


@dataclass(frozen=True)
class GpuRecord:
    """A GPU, or a MIG instance of one. What could not be read is None, and `failures` says why.

    `index` is NVML's, in PCI bus order. `mig_path` is an instance's older name: MIG-<its GPU's UUID>/<GPU instance
    id>/<compute instance id>. `instances` are those that this process may use.
    """

    index: int
    uuid: str | None
    name: str | None
    total_bytes: int | None
    free_bytes: int | None
    processes: tuple[GpuProcess, ...] | None
    mig_mode: bool | None = False
    is_instance: bool = False
    mig_path: str | None = None
    instances: tuple[GpuRecord, ...] = ()
    failures: tuple[str, ...] = ()


def read_gpus() -> Reading[tuple[GpuRecord, ...] | None]:
    """Every GPU in the order of its index; None where NVML does not answer, with its reason in the source."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Reading(None, f"NVML: {error}")
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        answers = [_gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        return Reading(None, f"NVML: {error}")
    finally:
        pynvml.nvmlShutdown()
    lost = [answer for answer in answers if isinstance(answer, str)]
    source = ", ".join([f"NVML, driver {driver}", *lost])
    return Reading(tuple(answer for answer in answers if isinstance(answer, GpuRecord)), source)


@dataclass
class _Asked:
    """Answers of one device; a question that fails is answered by None and noted."""

    failures: list[str] = field(default_factory=list)

    def ask(self, what: str, question: Callable[[], T]) -> T | None:
        try:
            return question()
        except pynvml.NVMLError as error:
            self.failures.append(f"{what}: {error}")
            return None


def _gpu(index: int) -> GpuRecord | str:
    """The GPU, or why there is none (one that has fallen off the bus must not hide the others)."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:
        return f"GPU {index}: {error}"
    asked = _Asked()
    mig_mode = asked.ask("MIG mode", lambda: _mig_mode(handle))
    return _record(handle, index, asked, mig_mode=mig_mode)


def _record(handle: Any, index: int, asked: _Asked, *, mig_mode: bool | None, gpu_uuid: str | None = None) -> GpuRecord:
    """`gpu_uuid` is given for a MIG instance: its GPU's."""
    uuid = asked.ask("UUID", lambda: _text(pynvml.nvmlDeviceGetUUID(handle)))
    memory = asked.ask("memory", lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    return GpuRecord(
        index,
        uuid,
        asked.ask("name", lambda: _text(pynvml.nvmlDeviceGetName(handle))),
        None if memory is None else int(memory.total),
        None if memory is None else int(memory.free),
        asked.ask("processes", lambda: _processes(handle)),
        mig_mode=mig_mode,
        is_instance=gpu_uuid is not None,
        mig_path=None if gpu_uuid is None else asked.ask("MIG ids", lambda: _mig_path(handle, gpu_uuid)),
        instances=_instances(handle, index, uuid, asked) if mig_mode and gpu_uuid is None else (),
        failures=tuple(asked.failures),
    )


def _mig_mode(handle: Any) -> bool:
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    except pynvml.NVMLError_NotSupported:
        return False


def _instances(handle: Any, index: int, uuid: str | None, asked: _Asked) -> tuple[GpuRecord, ...]:
    found = []
    for slot in range(asked.ask("MIG instances", lambda: int(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle))) or 0):
        try:
            instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
        except (pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument):
            continue  # an empty slot
        except pynvml.NVMLError as error:
            asked.failures.append(f"MIG instance {slot}: {error}")
            continue
        found.append(_record(instance, index, _Asked(), mig_mode=True, gpu_uuid=uuid or ""))
    return tuple(found)


def _mig_path(instance: Any, gpu_uuid: str) -> str:
    gpu_instance = pynvml.nvmlDeviceGetGpuInstanceId(instance)
    return f"MIG-{gpu_uuid}/{gpu_instance}/{pynvml.nvmlDeviceGetComputeInstanceId(instance)}"


def _processes(handle: Any) -> tuple[GpuProcess, ...]:
    running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return tuple(
        GpuProcess(int(one.pid), None if one.usedGpuMemory is None else int(one.usedGpuMemory)) for one in running
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
