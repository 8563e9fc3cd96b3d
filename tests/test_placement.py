"""The planner's decision, as a table: what there is and what was asked for, where draft and target go."""

from __future__ import annotations

from typing import Any

import pytest

from twinspark.planner.placement import PLACEMENTS, PlacementError, Resources, decide

GIB = 2**30


def node(num_cpus: int = 8, num_gpus: int = 0, ram: int | None = 16 * GIB) -> Resources:
    return Resources(num_cpus, ram, num_gpus, "looked under the table")


@pytest.mark.parametrize(
    ("requested", "num_gpus", "has_head", "placement", "target_device", "draft_device"),
    [
        ("off", 0, True, "off", "cpu", None),
        ("off", 0, False, "off", "cpu", None),
        ("off", 1, True, "off", "cuda", None),
        ("colocated", 0, True, "colocated", "cpu", "cpu"),
        ("colocated", 1, True, "colocated", "cuda", "cuda"),
        ("cpu", 0, True, "cpu", "cpu", "cpu"),
        ("cpu", 1, True, "cpu", "cuda", "cpu"),
        ("gpu", 1, True, "gpu", "cuda", "cuda"),
        ("gpu", 4, True, "gpu", "cuda", "cuda"),
        ("auto", 0, False, "off", "cpu", None),
        ("auto", 1, False, "off", "cuda", None),
        ("auto", 0, True, "colocated", "cpu", "cpu"),
        ("auto", 2, True, "colocated", "cuda", "cuda"),
    ],
)
@pytest.mark.parametrize("num_cpus", [1, 2, 4, 64])
def test_decisions(
    requested: Any,
    num_gpus: int,
    has_head: bool,
    placement: str,
    target_device: str,
    draft_device: str | None,
    num_cpus: int,
) -> None:
    decision = decide(requested, node(num_cpus, num_gpus), has_head=has_head)
    assert (decision.placement, decision.target_device, decision.draft_device) == (
        placement,
        target_device,
        draft_device,
    )
    assert decision.requested == requested
    assert decision.reason
    assert "\n" not in decision.reason


@pytest.mark.parametrize("requested", PLACEMENTS)
def test_an_explicit_placement_says_what_was_found(requested: Any) -> None:
    reason = decide(requested, node(6, 1, 3 * GIB), has_head=True).reason
    assert reason == "asked for; 6 CPUs, 3.0 GiB of RAM available, 1 GPUs"


def test_unknown_memory_is_not_zero() -> None:
    assert "RAM available unknown" in decide("cpu", node(ram=None), has_head=True).reason


def test_the_static_rule_never_chooses_cpu_below_four_cpus() -> None:
    for num_cpus in range(1, 4):
        decision = decide("auto", node(num_cpus), has_head=True)
        assert decision.placement != "cpu"
        assert "fewer than 4 CPUs" in decision.reason


@pytest.mark.parametrize("requested", ["colocated", "cpu", "gpu"])
def test_a_draft_needs_a_head(requested: Any) -> None:
    with pytest.raises(PlacementError, match=f"placement {requested} needs a draft head"):
        decide(requested, node(num_gpus=1), has_head=False)


def test_gpu_without_a_gpu_names_what_was_looked_for() -> None:
    with pytest.raises(PlacementError, match=r"needs a GPU, found none \(looked under the table\)"):
        decide("gpu", node(), has_head=True)
    assert issubclass(PlacementError, ValueError), "a user's mistake: one line and exit code 2"
