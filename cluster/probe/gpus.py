"""Which GPUs a CUDA process started here would see, and in which order, by CUDA_VISIBLE_DEVICES. No CUDA, no NVML here.

The rules are CUDA's (CUDA C++ Programming Guide, "CUDA Environment Variables"), in doubt as torch.cuda.device_count
reads them. An index counts in PCI bus order, which is CUDA's where all GPUs are alike or CUDA_DEVICE_ORDER says so. One
CUDA process can use a single MIG instance; here every instance is a device, because each actor is a process of its own
and is given its device by `key`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from twinspark.cluster.probe.nvml import GpuProcess, GpuRecord
from twinspark.cluster.probe.reading import Reading

VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER, PCI_ORDER = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
UUID_PREFIXES = ("GPU-", "MIG-")


@dataclass(frozen=True)
class GpuReading:
    """A GPU or MIG instance that CUDA may use. `index` counts the visible ones, `key` names it in CUDA_VISIBLE_DEVICES.

    `processes` are those that NVML can see; `mig_gpu_index` is NVML's index of the GPU that a MIG instance is part of.
    """

    index: int
    key: str
    uuid: str | None
    name: str | None
    total_bytes: int | None
    free_bytes: int | None
    processes: tuple[GpuProcess, ...] | None
    mig_mode: bool | None
    mig_gpu_index: int | None
    source: str


def visible_gpus(
    found: Reading[tuple[GpuRecord, ...] | None], environment: Mapping[str, str]
) -> tuple[tuple[GpuReading, ...], str]:
    """The visible ones, and how they were looked for."""
    if found.value is None:
        return (), f"looked for GPUs by {found.source}"
    chosen, note = _chosen(found.value, environment.get(VARIABLE))
    devices = {id(device): device for record in chosen for device in _devices(record)}  # each once
    search = f"looked for GPUs by {found.source}: {len(found.value)} found{note}"
    search += "".join(f"; GPU {one.index} is in MIG mode and has no instance" for one in chosen if not _devices(one))
    if environment.get(ORDER) != PCI_ORDER and len({record.name for record in found.value}) > 1:
        search += f"; their order is that of {ORDER}={PCI_ORDER}"
    return tuple(_reading(index, device) for index, device in enumerate(devices.values())), search


def _devices(record: GpuRecord) -> tuple[GpuRecord, ...]:
    """What of it a process can be given."""
    return record.instances if record.mig_mode and not record.is_instance else (record,)


def _chosen(records: Sequence[GpuRecord], variable: str | None) -> tuple[list[GpuRecord], str]:
    if variable is None:
        return list(records), ""
    chosen: list[GpuRecord] = []
    names = [name.strip() for name in variable.split(",")]
    left = f"left by {VARIABLE}={variable}"
    by_uuid = names[0].startswith(UUID_PREFIXES)
    for name in names if variable.strip() else ():
        match = _by_uuid(records, name) if by_uuid else _by_index(records, name)
        if match is None:
            return chosen, f", {len(chosen)} {left} ({name!r} names no GPU: it and what follows are invisible)"
        if match in chosen:
            return [], f", none {left} ({name!r} names one a second time: CUDA then shows none)"
        chosen.append(match)
    return chosen, f", {len(chosen)} {left}"


def _by_index(records: Sequence[GpuRecord], name: str) -> GpuRecord | None:
    number = re.match(r"\+?(\d+)", name)  # CUDA reads a number as C's strtoul does: what follows it is ignored
    return next((record for record in records if number and record.index == int(number[1])), None)


def _by_uuid(records: Sequence[GpuRecord], name: str) -> GpuRecord | None:
    """The only one whose UUID begins so. A whole MIG-<GPU>/<instance>/<instance> is a name as well."""
    if not name.startswith(UUID_PREFIXES):
        return None
    everything = [*records, *(instance for record in records for instance in record.instances)]
    matches = [one for one in everything if (one.uuid or "").startswith(name) or one.mig_path == name]
    return matches[0] if len(matches) == 1 else None


def _reading(index: int, record: GpuRecord) -> GpuReading:
    return GpuReading(
        index,
        record.uuid or record.mig_path or str(record.index),
        record.uuid,
        record.name,
        record.total_bytes,
        record.free_bytes,
        record.processes,
        record.mig_mode,
        record.index if record.is_instance else None,
        "; ".join(["NVML", *record.failures]),
    )
