"""Timings on disk: what comes back is what was measured for the very key, or nothing."""

from __future__ import annotations

import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from twinspark.actors.checkpoint.identity import checkpoint_identity
from twinspark.actors.checkpoint.opening import open_head, open_target
from twinspark.actors.specs import ActorSpec, DraftSettings, DraftSpec, TargetSpec
from twinspark.cluster.calibrate import CalibrationPlan
from twinspark.cluster.timing_keys import keys_of
from twinspark.cluster.timings_cache import (
    MAX_CELLS,
    MAX_ENTRY_BYTES,
    CacheKeys,
    LinkEntryKey,
    OverheadEntryKey,
    StepEntryKey,
    entry_path,
    joined,
    load,
    store,
)
from twinspark.planner.nodes import Seat
from twinspark.planner.timings import Cell, Grid, StepKey, Timings

VERIFY, DRAFT = StepKey("verify", "EPYC x2"), StepKey("draft", "EPYC x2", beside=True)
VERSIONS = {"torch_version": "2.13.0", "twinspark_version": "0.1.0"}


def step_key(role: Any = "verify", **changes: Any) -> StepEntryKey:
    fields = {
        "role": role,
        "device_class": "EPYC x2",
        "threads": 2,
        "target": "ab" * 32,
        "head": "" if role == "verify" else "cd" * 32,
        "dtype": "float32",
        "numerics": "fast",
        **VERSIONS,
    }
    return StepEntryKey(**(fields | changes))


KEYS = CacheKeys(
    steps={VERIFY: step_key(), DRAFT: step_key("draft", beside_threads=2)},
    links={("n1", "n2"): LinkEntryKey(hosts=("a", "b"), transport="stream", twinspark_version="0.1.0")},
    overheads={"EPYC x2": OverheadEntryKey(device_class="EPYC x2", threads=2, **VERSIONS)},
)
TIMINGS = Timings(
    {VERIFY: Grid((Cell(1, 0, 33.4), Cell(1, 5, 32.1))), DRAFT: Grid((Cell(1, 5, 8.25),))},
    {("n1", "n2"): 0.31},
    {"EPYC x2": 0.0},
)
VERIFY_ONLY = CacheKeys(steps={VERIFY: KEYS.steps[VERIFY]})


def verify_path(directory: Path) -> Path:
    return entry_path(directory, KEYS.steps[VERIFY])


def test_what_was_stored_comes_back(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "timings"
    assert load(directory, KEYS) == Timings()
    store(directory, KEYS, TIMINGS)
    assert load(directory, KEYS) == TIMINGS
    assert len(list(directory.iterdir())) == 4, "nothing temporary is left"


def test_node_names_may_change_where_hosts_do_not(tmp_path: Path) -> None:
    store(tmp_path, KEYS, TIMINGS)
    renamed = CacheKeys(links={("other", "names"): KEYS.links["n1", "n2"]})
    assert load(tmp_path, renamed).link("names", "other") == 0.31


def test_cells_measured_later_are_added_and_count(tmp_path: Path) -> None:
    store(tmp_path, KEYS, TIMINGS)
    store(tmp_path, VERIFY_ONLY, Timings({VERIFY: Grid((Cell(1, 5, 30.0), Cell(16, 5, 90.0)))}))
    grid = load(tmp_path, KEYS).steps[VERIFY]
    assert {(c.num_requests, c.length): c.ms for c in grid.cells} == {(1, 0): 33.4, (1, 5): 30.0, (16, 5): 90.0}


def test_an_entry_does_not_grow_for_ever(tmp_path: Path) -> None:
    for first in range(0, 3 * MAX_CELLS, MAX_CELLS):
        cells = tuple(Cell(n, 0, 1.0 + n) for n in range(first + 1, first + MAX_CELLS + 1))
        store(tmp_path, VERIFY_ONLY, Timings({VERIFY: Grid(cells)}))
    assert load(tmp_path, VERIFY_ONLY).steps[VERIFY].cells == cells
    assert verify_path(tmp_path).stat().st_size < MAX_ENTRY_BYTES


@pytest.mark.parametrize(
    "change",
    [
        {"device_class": "EPYC x4"},
        {"threads": 1},
        {"beside_threads": 1},
        {"target": "ff" * 32},
        {"head": "ff" * 32},
        {"dtype": "bfloat16"},
        {"numerics": "exact"},
        {"torch_version": "2.14.0"},
        {"twinspark_version": "0.2.0"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_key_is_another_entry(tmp_path: Path, change: dict[str, Any]) -> None:
    store(tmp_path, KEYS, TIMINGS)
    other = step_key(**change)
    assert load(tmp_path, CacheKeys(steps={VERIFY: other})) == Timings()
    # Even where the file of one is put in the place of the other.
    os.replace(verify_path(tmp_path), entry_path(tmp_path, other))
    assert load(tmp_path, CacheKeys(steps={VERIFY: other})) == Timings()


def broken(good: bytes) -> dict[str, bytes]:
    entry = json.loads(good)

    def cells(*found: Any, **more: Any) -> bytes:
        return json.dumps(entry | {"cells": list(found)} | more).encode()

    cell = {"num_requests": 1, "length": 0, "ms": 1.0}
    return {
        "empty": b"",
        "truncated": good[: len(good) // 2],
        "no json": b"\x00\xff" * 50,
        "a list": b"[]",
        "deep": b"[" * 100_000,
        "huge": good + b" " * MAX_ENTRY_BYTES,
        "no cells": cells(),
        "a cell twice": cells(cell, cell),
        "too many cells": cells(*({**cell, "num_requests": n} for n in range(1, MAX_CELLS + 2))),
        "an unknown field": cells(cell, surprise=1),
        "an unknown field of a cell": cells({**cell, "surprise": 1}),
        "no key": json.dumps({"cells": [cell]}).encode(),
        "zero": cells({**cell, "ms": 0}),
        "negative": cells({**cell, "ms": -1.0}),
        "nan": cells({**cell, "ms": float("nan")}),
        "infinite": cells({**cell, "ms": float("inf")}),
        "a huge number": cells({**cell, "ms": 1}).replace(b'"ms": 1}', b'"ms": ' + b"9" * 400 + b"}"),
        "a string": cells({**cell, "ms": "1.0"}),
        "a boolean": cells({**cell, "ms": True}),
        "requests in parts": cells({**cell, "num_requests": 1.5}),
        "no requests": cells({**cell, "num_requests": 0}),
        "a negative length": cells({**cell, "length": -1}),
    }


NAMES = sorted(broken(b'{"key": {}, "cells": []}'))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_broken_is_ignored_and_replaced(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    store(tmp_path, KEYS, TIMINGS)
    path = verify_path(tmp_path)
    path.write_bytes(broken(path.read_bytes())[name])
    with caplog.at_level(logging.WARNING):
        found = load(tmp_path, KEYS)
    assert found == replace(TIMINGS, steps={DRAFT: TIMINGS.steps[DRAFT]})
    [record] = caplog.records
    assert str(path) in record.getMessage()
    assert "\n" not in record.getMessage()
    store(tmp_path, KEYS, TIMINGS)
    assert load(tmp_path, KEYS) == TIMINGS


@pytest.mark.parametrize("ms", [-0.1, float("nan"), float("inf"), "1", None, True])
def test_a_broken_link_or_overhead_is_ignored(tmp_path: Path, ms: Any) -> None:
    store(tmp_path, KEYS, TIMINGS)
    for key in (*KEYS.links.values(), *KEYS.overheads.values()):
        path = entry_path(tmp_path, key)
        path.write_text(json.dumps(json.loads(path.read_text()) | {"ms": ms}))
    assert load(tmp_path, KEYS) == Timings(TIMINGS.steps)


def test_a_folder_in_the_place_of_an_entry(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    verify_path(tmp_path).mkdir()
    assert load(tmp_path, VERIFY_ONLY) == Timings()
    store(tmp_path, VERIFY_ONLY, TIMINGS)
    assert "could not be kept" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == [verify_path(tmp_path).name], "nothing temporary is left"


def test_a_directory_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    for directory in (tmp_path / "file", tmp_path / "file" / "timings"):
        store(directory, KEYS, TIMINGS)
        assert load(directory, KEYS) == Timings()
    assert len([r for r in caplog.records if "could not be kept" in r.getMessage()]) == 2


def test_many_writers_and_readers_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A reader finds an entry that somebody wrote, whole; the last writer's cells are there."""
    allowed = {float(n) for n in range(1, 9)}

    def write(ms: float) -> None:
        for _ in range(30):
            store(tmp_path, VERIFY_ONLY, Timings({VERIFY: Grid((Cell(1, 0, ms), Cell(int(ms), 5, ms)))}))
            cells = load(tmp_path, VERIFY_ONLY).steps[VERIFY].cells
            assert {cell.ms for cell in cells} <= allowed
            assert all(cell.length == 0 or cell.ms == cell.num_requests for cell in cells)

    with ThreadPoolExecutor(len(allowed)) as pool:
        list(pool.map(write, allowed))
    assert not caplog.records
    assert list(tmp_path.iterdir()) == [verify_path(tmp_path)]


def test_joined_timings_count_the_last(tmp_path: Path) -> None:
    later = Timings({VERIFY: Grid((Cell(1, 5, 1.0), Cell(2, 0, 2.0)))}, {("n2", "n1"): 5.0}, {"H200": 1.0})
    both = joined([TIMINGS, later])
    assert both.steps[VERIFY].cells == (Cell(1, 0, 33.4), Cell(1, 5, 1.0), Cell(2, 0, 2.0))
    assert both.steps[DRAFT] == TIMINGS.steps[DRAFT]
    assert (both.link("n1", "n2"), both.overhead_ms) == (5.0, {"EPYC x2": 0.0, "H200": 1.0})


# Keys of a real pair --------------------------------------------------------------------------------------------------


def test_an_identity_is_the_checkpoint_s_and_not_its_path_s(shared: Path, tmp_path: Path, demo_model: Path) -> None:
    untied = open_target(shared / "golden/deepspec/targets/untied")
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for file in Path(untied.path).iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert checkpoint_identity(open_target(copy)) == checkpoint_identity(untied)
    heads = [open_head(shared / "golden/deepspec" / v / "draft") for v in ("vanilla", "gated", "shallow_b4")]
    identities = [checkpoint_identity(c) for c in (untied, open_target(demo_model), *heads)]
    assert len(set(identities)) == len(identities)


def test_the_keys_of_a_pair() -> None:
    here, there = Seat("id-1", "cpu"), Seat("id-2", "cpu")
    target = TargetSpec(ActorSpec("t", "cpu", 64, 4, 2), "float32", "fast")
    settings = DraftSettings("h", "int8", 5)
    draft = DraftSpec(ActorSpec("t", "cpu", 64, 4, 1), settings)
    plan = CalibrationPlan(here, "A", 4, 64, 7, colocated=True, draft=here, draft_class="A")
    keys = keys_of(
        plan,
        target=target,
        target_identity="t",
        head_identity="h",
        colocated=settings,
        draft=draft,
        hosts=("b", "a"),
    )
    verify, beside = keys.steps[StepKey("verify", "A")], keys.steps[StepKey("verify", "A", beside=True)]
    assert (verify.threads, verify.beside_threads, beside.beside_threads) == (2, 0, 1)
    drafting = keys.steps[StepKey("draft", "A", beside=True)]
    assert (drafting.threads, drafting.beside_threads, drafting.dtype, drafting.head) == (1, 2, "int8", "h")
    assert keys.links["id-1", "id-1"].hosts == ("a", "b")
    assert len(keys.steps) == 4
    apart = replace(plan, draft=there, draft_class="B", colocated=False)
    keys = keys_of(apart, target=target, target_identity="t", head_identity="h", draft=draft, hosts=("b", "a"))
    assert set(keys.steps) == {StepKey("verify", "A"), StepKey("draft", "B")}
    assert keys.steps[StepKey("draft", "B")].beside_threads == 0
