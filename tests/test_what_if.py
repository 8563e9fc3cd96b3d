"""Plans for described clusters: the documented examples, reckoned twice, and what a file may not hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_process import clean_environment
from footprint_by_hand import GIB, GPU_PROCESS, MIB, QWEN3_4B, headroom
from plan_docs import CONSOLE, MEMORY, PAGE, ROOT, SPEEDS, output, refreshed

from twinspark.deploy import plan_pair
from twinspark.deploy.cli import main
from twinspark.deploy.embedded import demo_head_path
from twinspark.deploy.options import Options
from twinspark.deploy.what_if import read_what_if

FOLDER = ROOT / "docs" / "what-if"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.toml"))
SMALL = """
context = 256
max_seqs = 2
[target]
hidden_size = 64
num_layers = 2
intermediate_size = 128
num_heads = 4
num_kv_heads = 2
vocab_size = 1000
[head]
num_layers = 1
block_size = 5
tap_ids = [-1, 0]
survival = [0.5, 0.5]
[[node]]
name = "a"
count = 3
cpus = 8
cpu_model = "EPYC"
ram_gib = 16
gpus = [{ name = "T4", count = 2, total_gib = 16, free_gib = 15 }]
"""


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TWINSPARK_")]:
        monkeypatch.delenv(name)


def planned(file: Path | str, *more: str) -> Any:
    """The document of a plan."""
    return json.loads(output(" ".join(["plan", "--json", "--what-if", str(file), *more])))


def example(name: str, *more: str) -> Any:
    return planned(FOLDER / f"{name}.toml", *more)


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., Path]:
    """Writes the small file, with replacements and something more at the end."""

    def write(*changes: tuple[str, str], more: str = "") -> Path:
        text = SMALL
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "small.toml"
        path.write_text(text + more, encoding="utf-8")
        return path

    return write


# The documented examples ---------------------------------------------------------------------------------------------


def test_the_page_shows_what_the_commands_print() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert refreshed(page) == page, "run: python tests/plan_docs.py"
    shown = " ".join(CONSOLE.findall(page))
    assert all(f"docs/what-if/{name}.toml" in shown for name in EXAMPLES)


@pytest.mark.parametrize("name", sorted(MEMORY))
def test_footprints_are_those_reckoned_by_hand(name: str) -> None:
    """Every byte, and whether it fits, without the planner's formulas."""
    found = read_what_if(FOLDER / f"{name}.toml", {})
    for line in MEMORY[name]:
        requests = next((int(n) for n in "1248" if f"{n} request" in line.what), found.demand.num_requests)
        drafts = 0 if "no draft" in line.what else 7
        if line.what.startswith("target"):
            planner = found.footprints.target("cuda", requests, drafts)
        elif line.what.startswith("head"):
            planner = found.footprints.colocated("cuda", requests, drafts)
        else:
            planner = found.footprints.draft("cpu", requests, drafts)
        assert (planner.weights_bytes, planner.kv_bytes, planner.workspace_bytes, planner.overhead_bytes) == (
            line.parts.weights, line.parts.kv, line.parts.workspace, line.parts.overhead,
        )  # fmt: skip


@pytest.mark.parametrize("name", sorted(SPEEDS))
def test_speeds_are_those_reckoned_by_hand(name: str) -> None:
    documents = [example(name), example(name, "--max-seqs", "1")]
    found: dict[tuple[str, int, int], list[float | None]] = {}
    for one in [one for document in documents for one in document["candidates"]]:
        key = one["placement"], one["num_requests"], one["verify_length"]
        found.setdefault(key, []).append(one["predicted_tok_per_s"])
    for line in SPEEDS[name]:
        placement = next(word for word in ("off", "colocated", "cpu", "gpu") if word in line.placement.split(", "))
        speeds = [speed for speed in found[placement, line.requests, line.drafts] if speed is not None]
        assert any(speed == pytest.approx(line.tok_per_s, abs=1e-3) for speed in speeds), line


def test_the_card_of_12_gb_by_pocket_calculator() -> None:
    document = example("card-12gb-4b")
    by_place = {
        one["placement"]: one for one in document["candidates"] if one["target_device"] == "cuda:0" and one["feasible"]
    }
    weights = 2 * (151936 * 2560 + 36 * (2560 * (8192 + 2048 + 3 * 9728) + 5376) + 2560 + 256 * 2048) + 8 * 151936
    assert weights == 8_047_200_256 == QWEN3_4B.target_on_gpu(2048, 4, 0).weights
    room = int(11.3 * GIB) - int(0.1 * 12 * GIB)
    assert by_place["off"]["headroom_bytes"] == room == headroom(11.3, 12, 512 * MIB)
    # five slots of 2048 tokens, 147,456 bytes each; 4 x 78 x 151936 to draw from; the process
    target = weights + 5 * 2048 * 147_456 + (4 * 78 * 151936 + 4 * 256 * 2560) + GPU_PROCESS
    assert by_place["off"]["footprint_bytes"] == target
    assert target <= room
    assert by_place["cpu"]["predicted_tok_per_s"] == pytest.approx(4 * 3.599548 / 0.045, abs=0.01)
    assert by_place["colocated"]["num_requests"] == 1
    assert document["decision"]["placement"] == "cpu"
    assert document["measured"]


def test_what_the_examples_are_there_to_show() -> None:
    assert [example(name)["decision"]["placement"] for name in ("h200-8b", "h200-14b")] == ["colocated"] * 2
    here = example("gpu-and-cpu-node")["decision"]
    assert (here["placement"], here["node"], here["target_node"]) == ("cpu", "idle", "gpu")
    alone = example("gpu-and-cpu-node", "--max-seqs", "1")["decision"]
    assert (alone["placement"], alone["node"]) == ("colocated", "gpu")
    cheap = example("gpu-and-cpu-node", "--max-seqs", "1", "--objective", "cost")["decision"]
    assert (cheap["placement"], cheap["node"]) == ("cpu", "idle")
    far = example("gpu-and-cpu-node", "--dspark-threads", "8", "--dspark-verify-len", "3")
    assert far["decision"]["verify_length"] == 3
    fleet = example("cpu-fleet", "--tok-per-s", "1500")["fleet"]
    assert (fleet["met"], fleet["num_pairs"], fleet["free"]["cores"]) == (True, 29, 11 * 16 + 20 * 16)
    assert not example("cpu-fleet", "--tok-per-s", "1e6")["fleet"]["met"]


# Files ---------------------------------------------------------------------------------------------------------------


def test_dimensions_need_neither_a_model_nor_torch(small: Callable[..., Path]) -> None:
    script = (
        "import sys; from twinspark.deploy.cli import main; main(sys.argv[1:]);"
        "sys.exit(bool({'torch', 'ray'} & set(sys.modules)))"
    )
    arguments = ["plan", "--what-if", str(small()), "--concurrency", "4"]
    ran = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        env=clean_environment(HOME="/nowhere", TWINSPARK_STATIC="false"),
    )
    assert ran.returncode == 0, ran.stderr
    assert "fleet: 4 requests at once can be met: 2 pairs" in ran.stdout


def test_equal_nodes_are_one_line_and_their_number(small: Callable[..., Path]) -> None:
    document = planned(small())
    assert [(node["node"], node["last_host"], node["count"]) for node in document["nodes"]] == [("a-1", "a-3", 3)]
    text = output(f"plan --what-if {small()}")
    assert "a-1 .. a-3 (3)" in text
    assert "more like it)" in text


def test_a_path_stands_for_dimensions(small: Callable[..., Path], demo_model: Path) -> None:
    begin, end = SMALL.index("[target]"), SMALL.index("[[node]]")
    paths = f'[target]\npath = "{demo_model}"\n[head]\npath = "{demo_head_path()}"\n'
    document = planned(small((SMALL[begin:end], paths)))
    assert document["decision"]["placement"] == "colocated"
    # its 134.5 M weights in bfloat16
    assert 269e6 < document["decision"]["target_bytes"] - GPU_PROCESS < 400e6


def test_the_command_line_overrides_the_file(small: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = small(("max_seqs = 2", 'max_seqs = 2\ndspark_place = "off"\nobjective = "speed"'))
    plain = planned(path)
    assert (plain["max_seqs"], plain["context"], plain["decision"]["placement"]) == (2, 256, "off")
    changed = planned(path, "--max-seqs", "3", "--context", "512", "--dspark-place", "cpu", "--dspark-verify-len", "2")
    assert (changed["max_seqs"], changed["context"]) == (3, 512)
    assert (changed["decision"]["placement"], changed["decision"]["verify_length"]) == ("cpu", 2)
    assert planned(path, "--dspark-place", "auto", "--dspark-model", "none")["decision"]["placement"] == "off"
    monkeypatch.setenv("TWINSPARK_DSPARK_PLACE", "gpu")
    assert planned(path)["decision"]["placement"] == "gpu"
    assert planned(path, "--dspark-place", "colocated")["decision"]["placement"] == "colocated"
    float32, bfloat16 = (
        planned(path, "--dtype", dtype)["decision"]["target_bytes"] for dtype in ("float32", "bfloat16")
    )
    assert float32 > bfloat16


def test_another_model_is_not_as_fast_as_the_file_says(
    small: Callable[..., Path], demo_model: Path, tmp_path: Path
) -> None:
    steps = ("verify", "draft", "colocated")
    speed = "".join(
        f'[[speed]]\nstep = "{step}"\ndevice = "T4"\ncells = [{{ requests = 1, drafts = 0, ms = 9 }}]\n'
        for step in steps
    )
    begin, end = SMALL.index("[target]"), SMALL.index("[[node]]")
    path = small((SMALL[begin:end], f'[target]\npath = "{demo_model}"\n[head]\npath = "{demo_head_path()}"\n'))
    path.write_text(path.read_text() + speed)

    def timed(**overrides: str) -> set[str]:
        return {key.role for key in read_what_if(path, overrides).timings.steps}

    assert timed() == timed(model=str(demo_model)) == timed(dspark_model="demo") == {"verify", "draft", "colocated"}
    other = tmp_path / "other.gguf"
    other.symlink_to(demo_model)
    assert timed(model=str(other)) == set()
    assert timed(dspark_model=f"{demo_head_path()}/") == {"verify"}


def test_defaults_are_those_of_a_real_plan(small: Callable[..., Path]) -> None:
    found = read_what_if(small(("max_seqs = 2\n", "")), {})
    options = Options()
    assert found.demand.num_requests == options.max_seqs
    assert found.demand.draft_threads == options.dspark_threads
    for kind in ("cpu", "cuda"):
        assert found.footprints.target_dtypes[kind] == plan_pair._target_dtype(options, kind)
        assert found.footprints.draft_dtypes[kind] == plan_pair._draft_dtype(options, kind)


SPEED = '[[speed]]\nstep = "verify"\ndevice = "T4"\ncells = [{ requests = 1, drafts = 0, ms = 5.0 }]\n'


@pytest.mark.parametrize(
    ("changes", "more", "told"),
    [
        ([("context = 256", "context = 0")], "", "context: Input should be greater than or equal to 1, got 0"),
        ([("context = 256", "contxt = 256")], "", "context: Field required"),
        ([("context = 256", 'context = "256"')], "", "context: Input should be a valid integer"),
        ([("max_seqs = 2", "max_seqs = 2\nmoon = 1")], "", "moon: Extra inputs are not permitted, got 1"),
        ([("hidden_size = 64\n", "")], "", "target must have a path or dimensions, got no hidden_size"),
        ([("num_kv_heads = 2", "num_kv_heads = 3")], "", "num_heads must be a multiple of num_kv_heads"),
        ([("num_kv_heads = 2", 'num_kv_heads = 2\npath = "x"')], "", "got a path and hidden_size"),
        ([("tap_ids = [-1, 0]", "tap_ids = [-1, 2]")], "", "head.tap_ids must be below the target's 2 layers"),
        ([("tap_ids = [-1, 0]\n", "")], "", "head must have a path, or num_layers, block_size and tap_ids"),
        ([("survival = [0.5, 0.5]", "survival = [1.5]")], "", "head.survival.0: Input should be less than or equal"),
        ([("survival = [0.5, 0.5]", "survival = [nan]")], "", "head.survival.0"),
        ([("count = 3", "count = 1000000000")], "", "node.0.count: Input should be less than or equal to 100000"),
        ([("ram_gib = 16", "ram_gib = inf")], "", "node.0.ram_gib"),
        ([("ram_gib = 16", "ram_gib = -1")], "", "node.0.ram_gib"),
        ([("free_gib = 15", "free_gib = 17")], "", "free_gib must be at most total_gib, got 17 and 16"),
        ([("ram_gib = 16", "ram_gib = 16\navailable_ram_gib = 20")], "", "available_ram_gib must be at most ram_gib"),
        ([], '[[node]]\nname = "a-1"\ncpus = 1\ncpu_model = "x"\nram_gib = 1\n', "node names must differ, got a-1"),
        ([], SPEED.replace("T4", "H200"), "devices that some node has (EPYC x8, T4), got H200"),
        ([], SPEED + SPEED, "a speed must be told once, got verify on T4 twice"),
        ([], SPEED.replace("verify", "sleep"), "speed.0.step"),
        ([], '[link_ms]\npairs = [{ a = "a", b = "c", ms = 1.0 }]\n', "between two entries of [[node]], got a and c"),
        ([("max_seqs = 2", 'max_seqs = 2\nobjective = "cost"')], "", "the objective cost needs prices, got none"),
        ([("max_seqs = 2", "max_seqs = 2\ndspark_verify_len = 6")], "", "at most the head's 5, got 6"),
        ([("context = 256", "context = ")], "", "must be a readable TOML file"),
        ([("context = 256", "a = " + "[" * 5000)], "", "must be a readable TOML file"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_in_one_line(
    small: Callable[..., Path], changes: list[tuple[str, str]], more: str, told: str
) -> None:
    with pytest.raises(ValueError, match="--what-if: ") as error:
        read_what_if(small(*changes, more=more), {})
    assert told in str(error.value)
    assert "\n" not in str(error.value).split(" (")[0]


def test_a_file_that_is_too_large_or_not_there(tmp_path: Path) -> None:
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (1 << 21))
    with pytest.raises(ValueError, match="at most 1048576 bytes"):
        read_what_if(large, {})
    with pytest.raises(ValueError, match="must be a readable TOML file"):
        read_what_if(tmp_path / "none.toml", {})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--address", "127.0.0.1:1"], "--address is of a cluster that is there"),
        (["--static"], "--static is of a cluster that is there"),
        (["--tok-per-s", "1", "--concurrency", "1"], "give --tok-per-s or --concurrency, not both"),
        (["--tok-per-s", "0"], "above 0 and at most 1e+12, got 0"),
        (["--concurrency", "-3"], "above 0 and at most 1e+12, got -3"),
        (["--tok-per-s", "nan"], "above 0 and at most 1e+12, got nan"),
        (["--tok-per-s", "5"], "needs measured speeds"),
        (["--objective", "cost"], "needs prices"),
        (["--max-seqs", "0"], "--max-seqs"),
        (["--context", "4000000"], "the target must fit somewhere"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(
    small: Callable[..., Path], capfd: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["plan", "--what-if", str(small()), *arguments])
    out, err = capfd.readouterr()
    assert (left.value.code, out) == (2, "")
    assert told in err
    assert err.count("\n") == 1


def test_a_gpu_without_a_price_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Speeds are known; it is the money that is not."""
    prices = tmp_path / "prices.toml"
    prices.write_text("core_hour = 1\n")
    example = Path(__file__).parent.parent / "docs/what-if/gpu-and-cpu-node.toml"
    main(["plan", "--what-if", str(example), "--objective", "cost", "--prices", str(prices)])
    told = capfd.readouterr().out
    assert "a device has no price, so nothing is weighed by money" in told
    assert "reason: not measured" not in told
