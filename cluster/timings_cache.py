"""Step times kept on disk from one run to the next: a JSON file for each key, in a directory that the caller names.

A file is believed only if it is small, well formed and about the very key that was asked for; anything else is as if it
were not there. Writing is atomic, and nothing depends on it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from twinspark.cluster.small_files import write_whole
from twinspark.planner.timings import Cell, Grid, StepKey, Timings

log = logging.getLogger(__name__)

NEWEST_COUNTS = 0.5  # what was timed last, against what was believed before it
MAX_ENTRY_BYTES = 256 * 1024
MAX_CELLS = 1024
MAX_MS = 1e7  # hours: no step takes that long
Ms = Annotated[float, Field(gt=0, le=MAX_MS, allow_inf_nan=False)]
# Between processes of one host a round trip can be too short for the clock.
LinkMs = Annotated[float, Field(ge=0, le=MAX_MS, allow_inf_nan=False)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class StepEntryKey(_Model):
    """What a step's time depends on. `target` and `head` are identities (`checkpoint_identity`), "" where it has no
    part; `dtype` is that of the side that computes. `beside_threads`: the other actor's, where it shares the device.
    """

    role: Literal["verify", "draft", "colocated"]
    device_class: str
    threads: int = Field(ge=1)
    beside_threads: int = Field(0, ge=0)
    target: str
    head: str
    dtype: str
    numerics: str
    torch_version: str
    twinspark_version: str


class LinkEntryKey(_Model):
    """A round trip between two hosts, in the order of their names."""

    role: Literal["link"] = "link"
    hosts: tuple[str, str]
    transport: str
    twinspark_version: str


class OverheadEntryKey(_Model):
    """What a round takes on a target's device beside its steps."""

    role: Literal["overhead"] = "overhead"
    device_class: str
    threads: int = Field(ge=1)
    torch_version: str
    twinspark_version: str


EntryKey = StepEntryKey | LinkEntryKey | OverheadEntryKey


class _CellEntry(_Model):
    num_requests: int = Field(ge=1, le=1 << 20)
    length: int = Field(ge=0, le=1 << 20)
    ms: Ms


class _StepEntry(_Model):
    key: StepEntryKey
    cells: tuple[_CellEntry, ...] = Field(min_length=1, max_length=MAX_CELLS)

    @model_validator(mode="after")
    def _each_cell_once(self) -> _StepEntry:
        if len({(cell.num_requests, cell.length) for cell in self.cells}) < len(self.cells):
            raise ValueError("a cell must be there once")
        return self


class _ScalarEntry(_Model):
    key: LinkEntryKey | OverheadEntryKey = Field(discriminator="role")
    ms: LinkMs


@dataclass(frozen=True)
class CacheKeys:
    """For everything that a planner's Timings name, the entry in which it is kept."""

    steps: Mapping[StepKey, StepEntryKey] = field(default_factory=dict)
    links: Mapping[tuple[str, str], LinkEntryKey] = field(default_factory=dict)
    overheads: Mapping[str, OverheadEntryKey] = field(default_factory=dict)


def load(directory: Path, keys: CacheKeys) -> Timings:
    """What of `keys` is there. Never raises for what the directory holds."""
    steps = {name: _read(directory, key, _StepEntry) for name, key in keys.steps.items()}
    links = {name: _read(directory, key, _ScalarEntry) for name, key in keys.links.items()}
    overheads = {name: _read(directory, key, _ScalarEntry) for name, key in keys.overheads.items()}
    return Timings(
        steps={name: _grid(entry.cells) for name, entry in steps.items() if entry is not None},
        link_ms={name: entry.ms for name, entry in links.items() if entry is not None},
        overhead_ms={name: entry.ms for name, entry in overheads.items() if entry is not None},
    )


def store(directory: Path, keys: CacheKeys, timings: Timings) -> None:
    """Keep `timings` as far as `keys` name them; cells are added to those an entry holds, the new ones counting.

    A directory that cannot be written is a warning. Of two writers at once one entry stands, whole.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, step_key in keys.steps.items():
            grid = timings.steps.get(name)
            if grid is not None:
                _write(directory, step_key, _merged(_read(directory, step_key, _StepEntry), step_key, grid))
        for ends, link_key in keys.links.items():
            ms = timings.link(*ends)
            if ms is not None:
                _write(directory, link_key, _ScalarEntry(key=link_key, ms=ms))
        for device_class, overhead_key in keys.overheads.items():
            if device_class in timings.overhead_ms:
                ms = timings.overhead_ms[device_class]
                _write(directory, overhead_key, _ScalarEntry(key=overhead_key, ms=ms))
    except OSError as error:
        log.warning("timings could not be kept in %s: %s", directory, error)


def entry_path(directory: Path, key: EntryKey) -> Path:
    """The file of `key`."""
    return directory / f"{hashlib.sha256(key.model_dump_json().encode()).hexdigest()}.json"


def joined(parts: Iterable[Timings]) -> Timings:
    """All of `parts` in one; where several timed the same cell, the last counts."""
    steps: dict[StepKey, dict[tuple[int, int], Cell]] = {}
    link_ms: dict[tuple[str, str], float] = {}
    overhead_ms: dict[str, float] = {}
    for part in parts:
        for key, grid in part.steps.items():
            steps.setdefault(key, {}).update({(cell.num_requests, cell.length): cell for cell in grid.cells})
        for (a, b), ms in part.link_ms.items():
            link_ms.pop((b, a), None)
            link_ms[a, b] = ms
        overhead_ms |= part.overhead_ms
    grids = {key: Grid(tuple(cells[at] for at in sorted(cells))) for key, cells in steps.items()}
    return Timings(grids, link_ms, overhead_ms)


E = TypeVar("E", _StepEntry, _ScalarEntry)


def _read(directory: Path, key: EntryKey, kind: type[E]) -> E | None:
    path = entry_path(directory, key)
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            data = file.read(MAX_ENTRY_BYTES + 1)
        if len(data) > MAX_ENTRY_BYTES:
            log.warning("ignored timings in %s: more than %d bytes", path, MAX_ENTRY_BYTES)
            return None
        entry = kind.model_validate_json(data)
    except OSError as error:
        log.warning("ignored timings in %s: %s", path, error)
        return None
    except ValidationError as error:
        log.warning("ignored timings in %s: %s", path, error.errors(include_url=False)[0]["msg"])
        return None
    if entry.key != key:
        log.warning("ignored timings in %s: they are another machine's or checkpoint's", path)
        return None
    return entry


def _write(directory: Path, key: EntryKey, entry: _StepEntry | _ScalarEntry) -> None:
    write_whole(entry_path(directory, key), entry.model_dump_json())


def _merged(old: _StepEntry | None, key: StepEntryKey, grid: Grid) -> _StepEntry:
    """The newest MAX_CELLS, those of `grid` last."""
    cells = {(cell.num_requests, cell.length): cell.ms for cell in (old.cells if old is not None else ())}
    for cell in grid.cells:
        cells.pop((cell.num_requests, cell.length), None)
        cells[cell.num_requests, cell.length] = cell.ms
    newest = list(cells.items())[-MAX_CELLS:]
    return _StepEntry(key=key, cells=tuple(_CellEntry(num_requests=n, length=k, ms=ms) for (n, k), ms in newest))


def _grid(cells: Iterable[_CellEntry]) -> Grid:
    return Grid(tuple(Cell(cell.num_requests, cell.length, cell.ms) for cell in cells))
