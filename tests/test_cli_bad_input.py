"""What a person gets for a mistake: one line on stderr, exit code 2, nothing on stdout, and all before Ray starts."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_process import twinspark

from twinspark.deploy.cli import main
from twinspark.deploy.embedded import demo_head_path

# Nobody listens there. Whoever got as far as Ray would say so instead of naming the mistake.
NO_RAY = ("--address", "127.0.0.1:1")
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
    "hidden_act": "silu",
}  # fmt: skip
Told = Callable[..., str]


@pytest.fixture
def told(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, demo_model: Path) -> Told:
    """Runs `generate` with these arguments in this process; returns the one line that it says."""
    for name in [name for name in os.environ if name.startswith("TWINSPARK_")]:
        monkeypatch.delenv(name)

    def run(*arguments: str | Path, command: str = "generate", code: int = 2) -> str:
        with pytest.raises(SystemExit) as left:
            main([command, *map(str, arguments)])
        out, err = capfd.readouterr()
        assert out == ""
        assert left.value.code == code, err
        lines = [line for line in err.splitlines() if not line.startswith("placement: ")]
        assert len(lines) == 1, err
        assert lines[0].startswith("twinspark: ")
        assert "Traceback" not in err
        return lines[0]

    return run


def target_folder(path: Path, weights: bytes | None) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    if weights is not None:
        (path / "model.safetensors").write_bytes(weights)
    return path


def head_folder(path: Path, **changes: object) -> Path:
    """The embedded head with another config."""
    path.mkdir()
    for file in demo_head_path().iterdir():
        if file.name != "config.json":
            (path / file.name).symlink_to(file)
    config = json.loads((demo_head_path() / "config.json").read_text(encoding="utf-8"))
    layers = config["transformer_layer_config"]
    for name, value in changes.items():
        (layers if name in layers else config)[name] = value
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def truncated_safetensors() -> bytes:
    """The header promises more bytes than follow."""
    header = json.dumps({"model.embed_tokens.weight": {"dtype": "F32", "shape": [128, 64], "data_offsets": [0, 32768]}})
    return struct.pack("<Q", len(header)) + header.encode() + bytes(1000)


def test_a_missing_target(told: Told, tmp_path: Path) -> None:
    assert str(tmp_path / "none") in told("--model", tmp_path / "none", *NO_RAY, "hi")


def test_a_truncated_gguf(told: Told, tmp_path: Path, demo_model: Path) -> None:
    path = tmp_path / "cut.gguf"
    with demo_model.open("rb") as whole:
        path.write_bytes(whole.read(40_000_000))
    assert str(path) in told("--model", path, "--dspark-model", "none", *NO_RAY, "hi")


def test_a_truncated_safetensors_file(told: Told, tmp_path: Path) -> None:
    path = target_folder(tmp_path / "cut", truncated_safetensors())
    line = told("--model", path, "--dspark-model", "none", *NO_RAY, "hi")
    assert "model.safetensors" in line


def test_a_pickle_only_target(told: Told, tmp_path: Path) -> None:
    path = target_folder(tmp_path / "pickled", None)
    (path / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")
    assert "safetensors" in told("--model", path, *NO_RAY, "hi")


def test_a_missing_head(told: Told, tmp_path: Path) -> None:
    assert str(tmp_path / "none") in told("--dspark-model", tmp_path / "none", *NO_RAY, "hi")


@pytest.mark.parametrize("place", ["auto", "cpu", "colocated"])
def test_a_head_of_another_model(told: Told, tmp_path: Path, place: str) -> None:
    """Both numbers are named."""
    path = head_folder(tmp_path / "other", vocab_size=32000)
    line = told("--dspark-model", path, "--dspark-place", place, *NO_RAY, "hi")
    assert "49152" in line
    assert "32000" in line


def test_unknown_keys_in_a_heads_config(told: Told, tmp_path: Path) -> None:
    path = head_folder(tmp_path / "new", warp_factor=9)
    assert "warp_factor" in told("--dspark-model", path, *NO_RAY, "hi")


def test_a_prompt_longer_than_the_context(told: Told) -> None:
    line = told("--context", "40", *NO_RAY, "many words " * 40)
    assert "prompt 1 " in line
    assert " 40 " in line
    assert "at most the model's 8192" in told("--context", "8193", *NO_RAY, "hi")


def test_an_empty_prompt(told: Told, tmp_path: Path) -> None:
    assert "empty" in told(*NO_RAY, "")
    empty = tmp_path / "none.jsonl"
    empty.write_text("\n", encoding="utf-8")
    assert "at least one prompt" in told("--file", empty, *NO_RAY)
    assert "readable" in told("--file", tmp_path / "missing.jsonl", *NO_RAY)
    assert "not both" in told("--file", empty, *NO_RAY, "hi")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--temperature", "-0.1"), ("--temperature", "nan"), ("--temperature", "inf"), ("--temperature", "warm"),
        ("--top-p", "0"), ("--top-p", "nan"), ("--min-p", "1.5"), ("--top-k", "-1"), ("--seed", "-1"),
        ("--seed", str(2**63)), ("--max-new-tokens", "0"), ("--dspark-place", "moon"), ("--dspark-verify-len", "-1"),
        ("--dspark-min-confidence", "nan"), ("--numerics", "sloppy"), ("--transport", "pigeon"), ("--dtype", "float16"),
    ],
)  # fmt: skip
def test_a_value_out_of_range(told: Told, option: str, value: str) -> None:
    line = told(option, value, *NO_RAY, "hi")
    assert option in line
    assert value in line


def test_a_stop_string_of_no_length(told: Told) -> None:
    assert "stop string" in told("--stop", "", *NO_RAY, "hi")


def test_a_verify_length_above_the_block(told: Told) -> None:
    line = told("--dspark-verify-len", "8", *NO_RAY, "hi")
    assert "from 1 to 7" in line
    assert "got 8" in line


def test_a_gpu_where_there_is_none(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was looked for is named."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    line = told("--dspark-place", "gpu", "hi")
    assert "needs a GPU" in line
    assert "NVML" in line


def test_a_draft_without_a_head(told: Told) -> None:
    assert "--dspark-model none" in told("--dspark-model", "none", "--dspark-place", "cpu", *NO_RAY, "hi")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("warp = 9", "warp"), ("temperature = -1", "temperature"), ("[temperature]", "temperature"),
        ("seed = 1.5", "1.5"),
        ('seed = "1"', "seed"), ('stop = "one"', "list"), ('ignore-eos = "yes"', "ignore-eos"), ("= broken", "TOML"),
        ('dspark-place = "moon"', "moon"),
    ],
)  # fmt: skip
def test_a_config_file_with_mistakes(told: Told, tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "twinspark.toml"
    path.write_text(text + "\n", encoding="utf-8")
    line = told("--config", path, *NO_RAY, "hi")
    assert str(path) in line
    assert word in line


def test_a_file_that_cannot_be_written(told: Told, tmp_path: Path) -> None:
    """Told before the work, not after it."""
    assert "nowhere" in told("--trace", tmp_path / "nowhere" / "trace.jsonl", *NO_RAY, "hi")
    assert "nowhere" in told("--record", tmp_path / "nowhere" / "bytes", *NO_RAY, "hi")


def test_an_unknown_option_or_command(told: Told) -> None:
    assert "--warp" in told("--warp", "9", "hi")
    assert "beam" in told(command="beam")


def test_a_cluster_that_does_not_answer(told: Told) -> None:
    """Not a mistake in the command, so another code; and soon, not after Ray's minute."""
    assert "127.0.0.1:1" in told(*NO_RAY, "hi", code=1)


def test_the_installed_command_says_the_same(demo_model: Path) -> None:
    ran = twinspark("generate", "--temperature", "-1", "hi")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    ran = twinspark("generate", *NO_RAY, TWINSPARK_DSPARK_PLACE="moon", stdin="hi")
    assert (ran.code, ran.out) == (2, "")
    assert "moon" in ran.err
    ran = twinspark()
    assert (ran.code, ran.out) == (2, "")
    assert "generate" in ran.err
