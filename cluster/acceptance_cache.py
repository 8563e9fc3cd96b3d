"""Acceptance as it was measured so far, kept on disk by target, head and dtype: what the planner believes beside the
head's own record. Sums by position, old ones fading; a file that cannot be believed is as if it were not there.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from twinspark.actors.target.request import Report
from twinspark.actors.wire import MAX_BLOCK
from twinspark.cluster.small_files import write_whole

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 64 * 1024
RECORD_WEIGHT = 50.0  # the head's record counts like so many judged drafts at every position
MOST_JUDGED = 2000.0  # what was measured longer ago than so many judged first drafts has faded


class AcceptanceKey(BaseModel):
    """Whose drafts. `target` and `head` are identities (actors/checkpoint/identity)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    target: str
    head: str
    dtype: str
    greedy: bool


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    key: AcceptanceKey
    reached: tuple[float, ...] = Field(max_length=MAX_BLOCK)
    kept: tuple[float, ...] = Field(max_length=MAX_BLOCK)


def believed(directory: Path, key: AcceptanceKey, record: Sequence[float] | None) -> tuple[float, ...] | None:
    """Conditional acceptance by position: what was measured, with the head's `record` as where it starts from."""
    entry = _read(directory, key)
    if entry is None:
        return None if record is None else tuple(record)
    found: list[float] = []
    for k in range(max(len(entry.reached), len(record or ()))):
        prior = record[k] if record is not None and k < len(record) else None
        weight = 0.0 if prior is None else RECORD_WEIGHT
        reached = weight + (entry.reached[k] if k < len(entry.reached) else 0.0)
        kept = weight * (prior or 0.0) + (entry.kept[k] if k < len(entry.kept) else 0.0)
        if reached <= 0:
            break
        found.append(min(1.0, max(0.0, kept / reached)))
    return tuple(found) or None


def remember(directory: Path, key: AcceptanceKey, reports: Iterable[Report]) -> None:
    """Add what these answers tell. A directory that cannot be written is a warning."""
    old = _read(directory, key)
    reached, kept = [0.0] * MAX_BLOCK, [0.0] * MAX_BLOCK
    for report in reports:
        for i, record in enumerate(report.rounds):
            for k in range(record.num_accepted):
                reached[k] += 1
                kept[k] += 1
            # What stood behind a stop or a limit was never judged.
            if record.num_accepted < len(record.draft_tokens) and i < len(report.rounds) - 1:
                reached[record.num_accepted] += 1
    if not any(reached):
        return
    if old is not None:
        fade = min(1.0, MOST_JUDGED / (old.reached[0] + reached[0])) if old.reached else 1.0
        for sums, before in ((reached, old.reached), (kept, old.kept)):
            for k, value in enumerate(before):
                sums[k] += fade * value
    length = max(k + 1 for k, count in enumerate(reached) if count)
    entry = _Entry(key=key, reached=tuple(reached[:length]), kept=tuple(kept[:length]))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(_path(directory, key), entry.model_dump_json())
    except OSError as error:
        log.warning("measured acceptance could not be kept in %s: %s", directory, error)


def _path(directory: Path, key: AcceptanceKey) -> Path:
    return directory / f"acceptance-{hashlib.sha256(key.model_dump_json().encode()).hexdigest()}.json"


def _read(directory: Path, key: AcceptanceKey) -> _Entry | None:
    path = _path(directory, key)
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            entry = _Entry.model_validate_json(file.read(MAX_FILE_BYTES + 1)[:MAX_FILE_BYTES])
    except (OSError, ValidationError) as error:
        log.warning("ignored %s: %s", path, type(error).__name__)
        return None
    sound = len(entry.reached) == len(entry.kept) and all(
        0 <= kept <= reached < float("inf") for kept, reached in zip(entry.kept, entry.reached, strict=False)
    )
    if entry.key != key or not sound:
        log.warning("ignored %s: it is another pair's, or damaged", path)
        return None
    return entry
