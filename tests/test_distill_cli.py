"""`twinspark distill` and `eval` as processes: the embedded target makes a small head, which then drafts for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_process import twinspark

from twinspark.actors.checkpoint.head_record import conditional_acceptance
from twinspark.actors.checkpoint.opening import open_head
from twinspark.deploy.cli import main

SMALL = ("--texts", "16", "--length", "48", "--at-once", "8", "--layers", "1", "--markov-rank", "8")
BUDGET = ("--steps", "3", "--texts-per-step", "4", "--anchors", "4", "--block-size", "4", "--device", "cpu")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpus")


def distill(corpus: Path, out: Path, *more: str) -> tuple[str, ...]:
    return ("distill", "--corpus", str(corpus), "--out", str(out), *SMALL, *BUDGET, *more)


@pytest.fixture(scope="module")
def head(demo_model: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("head")
    ran = twinspark(*distill(corpus, out, "--draft-vocab", "2000", "--json"))
    record = ran.document
    assert record["steps"] == 3
    assert "tokens/s" in ran.err
    assert ran.err.count("sample: ") == 3
    assert "step      3" in ran.err
    return out


def test_what_is_there(head: Path) -> None:
    assert {path.name for path in head.iterdir()} == {
        "config.json",
        "model.safetensors",
        "reliability.png",
        "run",
        "training.json",
        "training.png",
    }
    plain = head.parent / "plain"
    plain.touch()
    assert {path.stat().st_mode for path in head.iterdir() if path.is_file()} == {plain.stat().st_mode}
    for picture in head.glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")
    opened = open_head(str(head))
    assert opened.config.draft_vocab_size == 2000
    assert opened.config.tap_ids == (-1, 0, 1, 2)
    record = json.loads((head / "training.json").read_text())
    steps = [row["step"] for row in record["history"]]
    assert steps == sorted(set(steps))
    sampled = record["temperature_1"]
    assert sampled["num_blocks"] > 1
    assert (
        len(sampled["confidence_temperatures"])
        == len(sampled["confidence_shifts"])
        == len(sampled["after"]["ece"])
        == 4
    )
    assert record["greedy"]["num_blocks"] == 0, "the one held-out text is too short for an answer"
    assert conditional_acceptance(str(head)) == tuple(record["conditional_acceptance"])


def test_again_it_has_nothing_left_to_do(head: Path, corpus: Path) -> None:
    before = (head / "model.safetensors").read_bytes()
    ran = twinspark(*distill(corpus, head, "--draft-vocab", "2000", "--json"))
    assert ran.document["steps"] == 3
    assert "going on from step 3" in ran.err
    assert "wrote" not in ran.err
    assert (head / "model.safetensors").read_bytes() == before


def test_the_head_drafts_in_every_placement(head: Path) -> None:
    answers = {
        place: twinspark(
            "generate",
            "--json",
            "--dspark-model",
            head,
            "--dspark-place",
            place,
            "--max-new-tokens",
            "12",
            "--context",
            "256",
            "--max-seqs",
            "1",
            "What is the capital of France?",
        ).document
        for place in ("off", "colocated", "cpu")
    }
    assert len({tuple(answer["token_ids"]) for answer in answers.values()}) == 1
    assert answers["cpu"]["metrics"]["draft_tokens"] > 0


def test_eval(demo_model: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "two.jsonl"
    prompts.write_text('"Name three colours."\n{"turns": ["Count from one to ten."]}\n"not asked"\n')
    rows = twinspark(
        "eval", prompts, "--limit", "2", "--max-new-tokens", "24", "--max-seqs", "2", "--dtype", "float32", "--json"
    ).document
    assert [(row["set"], row["temperature"], row["num_prompts"]) for row in rows] == [("two", 0.0, 2), ("two", 1.0, 2)]
    for row in rows:
        assert 1 <= row["acceptance_length"] <= 8
        assert row["num_tokens"] <= 48
        assert all(0 <= value <= 1 for value in row["conditional_acceptance"])
    assert "optimal_by_position" not in rows[0]
    for measured, optimal in zip(rows[1]["measured_by_position"], rows[1]["optimal_by_position"], strict=True):
        assert measured <= optimal + 0.2, "two short texts: chance may do that much"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--taps", "0,40"), "layers from -1 to 28 of the target, got 40"),
        (("--taps", "0,0"), "distinct layer ids"),
        (("--taps", "a,b"), "numbers with commas between them"),
        (("--markov-rank", "0"), "--markov-rank above 0, got 0"),
        (("--draft-vocab", "60000"), "at most the vocabulary of 49152, got 60000"),
        (("--seconds", "5"), "--steps or --seconds, one of them"),
        (("--length", "50"), "length 50, got 48"),
        (("--texts-per-step", "64"), "--texts-per-step must be at most"),
        (("--learning-rate", "nan"), "--learning-rate"),
        (("--device", "cuda:7"), "--device must be one that is there, got cuda:7"),
        (("--prompts", "nowhere.jsonl"), "must be readable"),
    ],
)
def test_bad_input(
    head: Path,
    corpus: Path,
    tmp_path: Path,
    more: tuple[str, ...],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`head` has written the corpus. In this process: a new one takes seconds to import torch."""
    with pytest.raises(SystemExit) as ended:
        main(distill(corpus, tmp_path / "out", *more))
    assert ended.value.code == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize("option", ["--corpus", "--out"])
def test_a_file_where_a_folder_goes_is_told_before_anything_is_written(
    tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file, corpus = tmp_path / "file", tmp_path / "corpus"
    file.write_text("mine")
    with pytest.raises(SystemExit) as ended:
        main(distill(*((file, tmp_path / "out") if option == "--corpus" else (corpus, file))))
    assert ended.value.code == 2
    assert f"{option} must be a folder, got the file {file}" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == [file]
    assert file.read_text() == "mine"


def test_a_corpus_of_another_tokenizer(
    head: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "corpus"
    other.mkdir()
    about = json.loads((corpus / "corpus.json").read_text()) | {"tokenizer": "0" * 64}
    (other / "corpus.json").write_text(json.dumps(about))
    with pytest.raises(SystemExit) as ended:
        main(distill(other, tmp_path / "out"))
    assert ended.value.code == 2
    assert "tokenizer" in capsys.readouterr().err.splitlines()[-1]
