"""What kind of CPU it is: its model, and the instruction sets that decide how fast a draft runs on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from twinspark.cluster.probe.files import Unreadable, text_of
from twinspark.cluster.probe.reading import Reading

# As Linux calls them (x86 `flags`, ARM `Features`): vectors first, then 16-bit floats, 8-bit integers, tiles.
INSTRUCTION_SETS = (
    "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8",
    "asimd", "bf16", "i8mm",
)  # fmt: skip
MODEL_FIELDS = ("model name", "cpu model", "cpu")  # x86 and some ARM, MIPS, POWER


@dataclass(frozen=True)
class CpuInfo:
    """`instruction_sets`: those of INSTRUCTION_SETS that every processor has."""

    model: Reading[str | None]
    instruction_sets: Reading[tuple[str, ...] | None]


def read_cpuinfo(root: Path) -> CpuInfo:
    """From /proc/cpuinfo under `root`."""
    try:
        text = text_of(root / "proc/cpuinfo") or ""
    except Unreadable as error:
        unknown = Reading(None, f"/proc/{error}")
        return CpuInfo(unknown, unknown)
    fields: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), []).append(value.strip())
    return CpuInfo(_model(fields), _instruction_sets(fields))


def _model(fields: dict[str, list[str]]) -> Reading[str | None]:
    for name in MODEL_FIELDS:
        if name in fields:
            return Reading(fields[name][0], f"/proc/cpuinfo {name}")
    if "CPU implementer" in fields and "CPU part" in fields:  # ARM gives numbers only
        numbers = f"{fields['CPU implementer'][0]} part {fields['CPU part'][0]}"
        return Reading(f"ARM implementer {numbers}", "/proc/cpuinfo CPU implementer, CPU part")
    return Reading(None, "/proc/cpuinfo names no model")


def _instruction_sets(fields: dict[str, list[str]]) -> Reading[tuple[str, ...] | None]:
    for name in ("flags", "Features"):
        if name in fields:
            common = set.intersection(*(set(value.split()) for value in fields[name]))
            return Reading(tuple(s for s in INSTRUCTION_SETS if s in common), f"/proc/cpuinfo {name}")
    return Reading(None, "/proc/cpuinfo has no flags or Features")
