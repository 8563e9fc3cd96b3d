"""The command line as people and scripts use it: a process with arguments, streams, an exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_process import twinspark
from pairs import expected_greedy

QUESTION = "What is the capital of France and what is it known for?"  # the first of expected_greedy
DOCUMENT = {"text", "token_ids", "prompt_token_count", "finish_reason", "placement", "metrics", "seed"}
PLACEMENT = {"name", "reason", "requested", "device", "node"}
METRICS = {
    "rounds", "draft_tokens", "accepted_tokens", "acceptance_length", "tokens_per_s", "ttft_ms", "draft_ms",
    "verify_ms", "link_ms", "bytes_to_draft", "bytes_to_target",
}  # fmt: skip


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def check_document(document: dict[str, Any], *, place: str) -> None:
    assert set(document) == DOCUMENT
    assert set(document["placement"]) == PLACEMENT | {"target_device", "threads"}
    assert set(document["metrics"]) == METRICS
    assert document["placement"]["name"] == document["placement"]["requested"] == place
    assert document["placement"]["target_device"] == "cpu"
    assert document["placement"]["reason"]
    assert document["finish_reason"] in ("stop", "length")


def test_one_prompt_with_a_draft_in_its_own_actor(demo_model: Path, tmp_path: Path) -> None:
    """The document, the trace and the reference agree."""
    trace = tmp_path / "trace.jsonl"
    settings = ("--temperature", "0", "--max-new-tokens", "96", "--dspark-dtype", "float32", "--dspark-verify-len", "7")
    ran = twinspark("generate", "--json", "--dspark-place", "cpu", "--trace", trace, *settings, QUESTION)
    document, expected = ran.document, expected_greedy()[0]
    check_document(document, place="cpu")
    assert tuple(document["token_ids"]) == expected.greedy_ids
    assert document["prompt_token_count"] == len(expected.prompt_ids)
    assert document["finish_reason"] == "stop"
    assert document["text"].startswith("The capital of France is Paris.")
    assert document["placement"]["device"] == "cpu"
    assert set(document["placement"]["threads"]) == {"target", "draft"}
    assert isinstance(document["seed"], int)
    rounds, metrics = lines_of(trace), document["metrics"]
    assert [r["anchor_position"] for r in rounds] == [r["anchor_position"] for r in expected.rounds]
    assert [r["accepted"] for r in rounds] == [r["accepted"] for r in expected.rounds]
    assert [r["draft_tokens"] for r in rounds] == [r["draft_tokens"] for r in expected.rounds]
    assert metrics["rounds"] == len(rounds)
    assert metrics["draft_tokens"] == sum(len(r["draft_tokens"]) for r in rounds)
    assert metrics["accepted_tokens"] == sum(r["accepted"] for r in rounds)
    assert metrics["acceptance_length"] == pytest.approx((len(document["token_ids"]) - 1) / len(rounds), abs=1e-4)
    assert all(metrics[name] > 0 for name in METRICS)
    assert "placement: cpu" in ran.err
    assert "loaded target" in ran.err
    assert "loaded draft" in ran.err


def test_text_of_a_raw_prompt_on_stdout_and_all_else_on_stderr(demo_model: Path) -> None:
    """A raw prompt has no chat around it, so that the model goes on counting."""
    settings = ("--raw", "--max-new-tokens", "12", "--dspark-place", "off", "--seed", "5")
    ran = twinspark("generate", *settings, stdin="1, 2, 3, 4, 5, 6,\n")
    assert ran.code == 0
    assert ran.out == " 7, 8, 9, 10\n"
    assert "placement: off" in ran.err
    assert "12 tokens (length)" in ran.err
    assert "seed 5" in ran.err


def test_several_prompts_make_a_list_and_a_seed_makes_them_again(demo_model: Path, tmp_path: Path) -> None:
    prompts, trace = tmp_path / "prompts.jsonl", tmp_path / "trace.jsonl"
    forms = [{"prompt": QUESTION}, "Say hello.", {"messages": [{"role": "user", "content": QUESTION}]}]
    prompts.write_text("".join(json.dumps(form) + "\n" for form in forms), encoding="utf-8")
    settings = ("--max-new-tokens", "16", "--temperature", "0.9", "--dspark-place", "colocated")
    first = twinspark("generate", "--json", "--file", prompts, "--trace", trace, *settings).document
    assert [set(d) for d in first] == [DOCUMENT] * 3
    for document in first:
        check_document(document, place="colocated")
        assert set(document["placement"]["threads"]) == {"target"}
        assert document["metrics"]["bytes_to_draft"] == 0
    assert len({d["seed"] for d in first}) == 3  # unset: drawn for each, and told
    assert {line["request"] for line in lines_of(trace)} == {0, 1, 2}
    seed = str(first[0]["seed"])
    again = twinspark("generate", "--json", "--file", prompts, "--seed", seed, *settings).document
    assert [d["seed"] for d in again] == [int(seed)] * 3
    assert again[0]["token_ids"] == first[0]["token_ids"] == again[2]["token_ids"]
    assert again[1]["token_ids"] != first[1]["token_ids"]


def test_a_stop_string_cuts_text_ids_and_counts(demo_model: Path) -> None:
    settings = ("--json", "--dspark-place", "colocated", "--max-new-tokens", "40", "--temperature", "0")
    document = twinspark("generate", *settings, "--stop", " city", "--stop", "never", QUESTION).document
    num_tokens = len(document["token_ids"])
    assert document["text"] == "The capital of France is Paris. It is a"
    assert document["finish_reason"] == "stop"
    assert tuple(document["token_ids"]) == expected_greedy()[0].greedy_ids[:num_tokens]
    assert num_tokens < 14
    assert document["metrics"]["rounds"] + document["metrics"]["accepted_tokens"] + 1 >= num_tokens


def test_probe() -> None:
    document = twinspark("probe", "--json").document
    assert document["num_cpus"]["value"] >= 1
    assert 0 < document["available_ram_bytes"]["value"] <= document["total_ram_bytes"]["value"]
    assert isinstance(document["gpus"], list)
    devices = ["cpu", *(f"cuda:{gpu['index']}" for gpu in document["gpus"])]
    assert list(document["headroom_bytes"]) == devices
    assert document["headroom_bytes"]["cpu"] < document["available_ram_bytes"]["value"]
    text = twinspark("probe")
    assert text.code == 0
    assert f"CPUs  {document['num_cpus']['value']} of" in text.out
    assert all(device in text.out for device in devices)
    assert document["gpu_search"] in text.out


def test_flags_go_before_the_environment_and_that_before_the_file(demo_model: Path, tmp_path: Path) -> None:
    """Read off the seed that is told; nothing starts, because the prompt is too long for the context."""
    config = tmp_path / "twinspark.toml"
    config.write_text('dspark-place = "moon"\n', encoding="utf-8")
    assert "moon" in twinspark("generate", "--config", config, "hi").err

    config.write_text("context = 4\n", encoding="utf-8")
    in_file = twinspark("generate", "--config", config, "hi")
    in_environment = twinspark("generate", "--config", config, "hi", TWINSPARK_CONTEXT="5")
    as_flag = twinspark("generate", "--config", config, "--context", "6", "hi", TWINSPARK_CONTEXT="5")
    assert [run.code for run in (in_file, in_environment, as_flag)] == [2, 2, 2]
    for run, context in ((in_file, 4), (in_environment, 5), (as_flag, 6)):
        assert f"context of {context} tokens" in run.err
