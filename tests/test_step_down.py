"""Memory that is taken away between planning and loading: the draft steps down with its reason, and nothing is killed.

A real process holds real memory, inside a cgroup, so that the rest of the machine does not notice.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from limited_cgroup import limited

from twinspark.planner.nodes import GIB

DRIVER = Path(__file__).with_name("step_down_driver.py")


def drive(place: str, mood: str) -> dict[str, Any]:
    with limited(memory_bytes=10 * GIB, cpus=2) as inside:
        done = subprocess.run(
            [*inside, sys.executable, str(DRIVER), place, mood], capture_output=True, text=True, timeout=300
        )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.fixture(scope="module")
def undisturbed(demo_model: Path) -> dict[str, Any]:
    return drive("auto", "modest")


def test_with_the_memory_there_the_plan_is_kept(undisturbed: dict[str, Any]) -> None:
    assert (undisturbed["planned"], undisturbed["placement"], undisturbed["moves"]) == ("cpu", "cpu", 0)
    assert undisturbed["drafted"] > 0


def test_the_draft_steps_down_when_its_memory_is_gone(undisturbed: dict[str, Any]) -> None:
    answer = drive("auto", "hungry")
    assert (answer["planned"], answer["placement"], answer["moves"]) == ("cpu", "off", 1)
    assert "cpu (cpu) -> off: the draft needs" in answer["reason"]
    assert "just before loading" in answer["reason"]
    assert answer["token_ids"] == undisturbed["token_ids"]
    assert answer["drafted"] == 0


def test_a_placement_that_was_asked_for_fails_with_the_numbers() -> None:
    answer = drive("cpu", "hungry")
    assert "the draft needs" in answer["error"]
    assert "found" in answer["error"]
