"""Acceptance measured so far, kept on disk; and a head's own record of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from twinspark.actors.checkpoint.head_record import RECORD_NAME, conditional_acceptance
from twinspark.actors.errors import CheckpointError
from twinspark.actors.target.request import Report, RoundRecord
from twinspark.cluster.acceptance_cache import MOST_JUDGED, RECORD_WEIGHT, AcceptanceKey, believed, remember
from twinspark.deploy.embedded import demo_head_path

KEY = AcceptanceKey(target="t", head="h", dtype="int8", greedy=True)


def report(*rounds: tuple[int, int]) -> Report:
    """Rounds of (draft tokens, accepted)."""
    records = tuple(
        RoundRecord(i, i, (1,) * drafts, kept, kept + 1, 0, 0, 0, 0, 0) for i, (drafts, kept) in enumerate(rounds)
    )
    return Report(1, (1,), "length", records, 0, 0)


def test_without_measurements_the_record_stands(tmp_path: Path) -> None:
    assert believed(tmp_path / "none", KEY, (0.5, 0.25)) == (0.5, 0.25)
    assert believed(tmp_path / "none", KEY, None) is None


def test_measurements_outweigh_the_record_as_they_grow(tmp_path: Path) -> None:
    # 3 drafts, none kept, 50 times over; the last round of a report may have been cut, and its refusal is not counted.
    remember(tmp_path, KEY, [report(*[(3, 0)] * 51)])
    found = believed(tmp_path, KEY, (0.5, 0.25))
    assert found == (pytest.approx(0.5 * RECORD_WEIGHT / (RECORD_WEIGHT + 50)), 0.25)
    remember(tmp_path, KEY, [report(*[(3, 0)] * 451)])
    found = believed(tmp_path, KEY, (0.5, 0.25))
    assert found is not None
    assert found[0] == pytest.approx(25 / 550)


def test_positions_count_as_they_were_reached(tmp_path: Path) -> None:
    remember(tmp_path, KEY, [report((3, 3), (3, 1), (2, 2), (3, 0))])
    assert believed(tmp_path, KEY, None) == (1.0, pytest.approx(2 / 3), 1.0)


def test_old_measurements_fade(tmp_path: Path) -> None:
    remember(tmp_path, KEY, [report(*[(1, 1)] * 20000)])
    remember(tmp_path, KEY, [report(*[(1, 0)] * 2001)])
    found = believed(tmp_path, KEY, None)
    assert found is not None
    assert found[0] < 0.5, f"two thousand refusals weigh more than what is older, at most {MOST_JUDGED:g} drafts"


def test_other_pairs_and_damaged_files_are_ignored(tmp_path: Path) -> None:
    remember(tmp_path, KEY, [report((3, 3), (3, 1))])
    for other in ({"head": "other"}, {"greedy": False}, {"dtype": "float32"}):
        assert believed(tmp_path, KEY.model_copy(update=other), None) is None
    [file] = tmp_path.iterdir()
    whole = file.read_text()
    for damaged in (
        "",
        whole[:40],
        whole.replace('"reached":[', '"reached":[-1,'),
        whole.replace("int8", "float32"),
        "x" * 10**6,
    ):
        file.write_text(damaged)
        assert believed(tmp_path, KEY, None) is None
    remember(tmp_path, KEY, [report((3, 3), (3, 1))])
    assert believed(tmp_path, KEY, None) is not None


def test_a_directory_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    remember(blocked, KEY, [report((3, 3), (3, 1))])
    assert "could not be kept" in caplog.text


def test_the_embedded_head_has_a_record() -> None:
    record = conditional_acceptance(str(demo_head_path()))
    assert record is not None
    assert len(record) == 7
    assert all(0.3 < chance < 0.9 for chance in record)


@pytest.mark.parametrize("values", [None, [], [0.5, 2.0], ["0.5"], [True], 0.5, [0.5] * 100])
def test_a_damaged_record_is_told(tmp_path: Path, values: object) -> None:
    assert conditional_acceptance(str(tmp_path)) is None
    (tmp_path / RECORD_NAME).write_text(json.dumps({"conditional_acceptance": values}))
    with pytest.raises(CheckpointError, match="conditional_acceptance must be a list of 1 to 64 numbers from 0 to 1"):
        conditional_acceptance(str(tmp_path))
