"""`twinspark plan` on this machine, as a process: the contract, precedence, limits. Nothing is timed (`--static`)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli_process import COMMAND, DEADLINE_S, clean_environment, twinspark
from limited_cgroup import limited

GIB = 2**30
STATIC = ("plan", "--json", "--static")
CANDIDATE = {
    "placement",
    "node",
    "device",
    "feasible",
    "footprint_bytes",
    "headroom_bytes",
    "predicted_tok_per_s",
    "why",
}
SEATS = {"node", "host", "device", "target_node", "target_host", "target_device"}
pytestmark = pytest.mark.usefixtures("demo_model")


def check(document: Any) -> None:
    """What must hold of any plan."""
    assert {"decision", "candidates", "nodes", "measured"} <= set(document)
    decision, candidates = document["decision"], document["candidates"]
    assert {"placement", "reason", "requested"} | SEATS <= set(decision)
    assert "\n" not in decision["reason"]
    assert [one["chosen"] for one in candidates].count(True) == 1
    for one in candidates:
        assert set(one) >= CANDIDATE | SEATS
        assert one["why"]
        draft_has_a_seat = one["placement"] in ("cpu", "gpu")
        assert draft_has_a_seat or (one["node"], one["device"]) == (one["target_node"], one["target_device"])
        if one["feasible"] and one["placement"] != "off":
            assert one["footprint_bytes"] * 1.15 <= one["headroom_bytes"] + 1
    if decision["feasible"]:
        for node in document["nodes"]:
            for device in node["devices"]:
                assert device["taken_bytes"] <= (device["headroom_bytes"] or 0)
    names = {node["node"]: node["host"] for node in document["nodes"]}
    assert names[decision["node"]] == decision["host"]


def test_the_document_and_the_table_tell_the_same() -> None:
    document = twinspark(*STATIC, "--max-seqs", "2").document
    check(document)
    decision = document["decision"]
    assert not document["measured"]
    assert decision["reason"].startswith("not measured")
    assert decision["num_requests"] == document["max_seqs"] == 2
    text = twinspark("plan", "--static", "--max-seqs", "2")
    assert text.code == 0
    marked = [line for line in text.out.splitlines() if line.startswith("*")]
    assert len(marked) == 1
    assert decision["placement"] in marked[0]
    assert f"placement: {decision['placement']}, the target on" in text.out
    assert text.out.count("not measured") == 1
    assert "headroom GiB" in text.out
    assert "  #" in text.out, "a bar shows what the decision takes"


@pytest.mark.parametrize("place", ["off", "colocated", "cpu"])
def test_an_explicit_placement_is_followed(place: str) -> None:
    document = twinspark(*STATIC, "--dspark-place", place, "--max-seqs", "1").document
    check(document)
    assert document["decision"]["placement"] == document["decision"]["requested"] == place
    assert document["decision"]["reason"].startswith("asked for; ")
    assert document["decision"]["fallbacks"] == []


def test_a_flag_goes_before_the_environment_that_before_the_file_and_that_before_the_planner(tmp_path: Path) -> None:
    config = tmp_path / "twinspark.toml"
    config.write_text('dspark-place = "off"\n', encoding="utf-8")
    settings = (*STATIC, "--max-seqs", "1")

    def place(*arguments: str, **environment: str) -> str:
        decision = twinspark(*settings, *arguments, **environment).document["decision"]
        return f"{decision['requested']}: {decision['placement']}"

    assert place().startswith("auto: ")
    assert place("--config", str(config)) == "off: off"
    assert place("--config", str(config), TWINSPARK_DSPARK_PLACE="cpu") == "cpu: cpu"
    both = ("--config", str(config), "--dspark-place", "colocated")
    assert place(*both, TWINSPARK_DSPARK_PLACE="cpu") == "colocated: colocated"


def test_a_fleet_of_this_machine() -> None:
    document = twinspark(*STATIC, "--concurrency", "2", "--max-seqs", "2").document
    fleet = document["fleet"]
    assert (fleet["met"], fleet["num_pairs"], fleet["concurrency"]) == (True, 1, 2)
    assert fleet["predicted_tok_per_s"] is None
    assert not fleet["measured"]
    [layout] = fleet["layouts"]
    assert layout["targets"][0]["first_host"] == document["decision"]["target_host"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--context", "8192", "--max-seqs", "1024"), "the target must fit somewhere with its cache for 1024 requests"),
        (("--dspark-place", "cpu", "--dspark-model", "none"), "placement cpu needs a draft head"),
        (("--context", "100000"), "--context must be at most the model's 8192, got 100000"),
        (("--objective", "cost"), "--objective cost needs --prices FILE, got none"),
        (("--tok-per-s", "100"), "a fleet for tokens/s needs measured speeds"),
    ],
)
def test_what_cannot_be_is_one_line_with_code_2(arguments: tuple[str, ...], told: str) -> None:
    ran = twinspark(*STATIC, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("memory_gib", [3, 6])
def test_inside_a_cgroup_nothing_beyond_its_limit_is_proposed(memory_gib: int) -> None:
    """3 GiB less 2 of reserve hold no target; the error tells what they would."""
    with limited(memory_bytes=memory_gib * GIB, cpus=1.5) as inside:
        ran = subprocess.run(
            [*inside, *COMMAND, *STATIC, "--max-seqs", "1", "--context", "512"],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
            env=clean_environment(),
        )
    if ran.returncode != 0:
        assert memory_gib == 3, ran.stderr
        assert ran.returncode == 2
        assert "the target must fit somewhere" in ran.stderr
        assert "headroom 0." in ran.stderr
        return
    document = json.loads(ran.stdout)
    check(document)
    [node] = document["nodes"]
    assert node["num_cpus"] == 1
    [ram] = node["devices"]
    assert ram["total_bytes"] <= memory_gib * GIB
    assert 0 < ram["taken_bytes"] <= ram["headroom_bytes"] <= memory_gib * GIB - 2 * GIB
    assert document["decision"]["placement"] != "cpu", "one CPU is too few for a draft of its own"
