"""Opening whole checkpoints, and telling whether a head and a target belong together."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from twinspark.actors.checkpoint.compatible import check_head_fits
from twinspark.actors.checkpoint.configs import RopeConfig
from twinspark.actors.checkpoint.opening import open_head, open_target, target_ids_of_draft
from twinspark.actors.checkpoint.source import TensorInfo, TensorSource
from twinspark.actors.errors import CheckpointError, MismatchError

SIZES: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def tiny(kind: str, **changes: Any) -> Any:
    """A random transformers model of the family `kind`."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config, model = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    }[kind]
    return model(config(**(SIZES | changes)))


@pytest.mark.parametrize(
    ("kind", "changes", "rope"),
    [
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 3e4}}, RopeConfig(theta=3e4)),
        ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 16}, RopeConfig()),
        (
            "llama",
            {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}},
            RopeConfig(theta=5e5, kind="llama3", factor=8.0, original_max_positions=64),
        ),
        (
            "llama",
            {"rope_parameters": YARN | {"rope_theta": 5e5}, "tie_word_embeddings": True},
            RopeConfig(theta=5e5, kind="yarn", factor=4.0, original_max_positions=64),
        ),
        ("qwen2", {}, RopeConfig()),
        ("qwen2", {"tie_word_embeddings": True}, RopeConfig()),
        ("qwen3", {"head_dim": 16}, RopeConfig()),
        ("qwen3", {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}, RopeConfig()),
    ],
)
@pytest.mark.parametrize("shard_size", ["1GB", "20KB"])
def test_what_transformers_saves_opens_with_its_weights(
    tmp_path: Path, kind: str, changes: dict[str, Any], rope: RopeConfig, shard_size: str
) -> None:
    model = tiny(kind, **changes)
    model.save_pretrained(tmp_path, max_shard_size=shard_size)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard_size == "20KB")
    target = open_target(tmp_path)
    assert target.config.rope == rope
    assert target.config.tie_embeddings == changes.get("tie_word_embeddings", False)
    assert (target.config.family, target.config.num_layers, target.config.head_dim) == (
        kind,
        3,
        changes.get("head_dim", 8),
    )
    weights = model.state_dict()
    if target.config.tie_embeddings:
        del weights["lm_head.weight"]
    assert set(target.tensors.infos()) == set(weights)
    for name, weight in weights.items():
        assert torch.equal(target.tensors.load(name), weight), name


@pytest.mark.parametrize("scaling", [LLAMA3, YARN])
def test_the_old_rope_layout_means_the_same(tmp_path: Path, scaling: dict[str, Any]) -> None:
    tiny("llama", rope_parameters=scaling | {"rope_theta": 5e5}).save_pretrained(tmp_path)
    new = open_target(tmp_path).config
    config = json.loads((tmp_path / "config.json").read_text())
    del config["rope_parameters"]
    old_scaling = {("type" if key == "rope_type" else key): value for key, value in scaling.items()}
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_theta": 5e5, "rope_scaling": old_scaling}))
    assert open_target(tmp_path).config == new


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_as_stored(tmp_path: Path, dtype: torch.dtype) -> None:
    tiny("llama").to(dtype).save_pretrained(tmp_path)
    assert open_target(tmp_path).tensors.load("lm_head.weight").dtype == dtype


def change_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


@pytest.fixture
def target_dir(tmp_path: Path) -> Path:
    tiny("llama").save_pretrained(tmp_path / "target")
    return tmp_path / "target"


def test_a_target_without_a_valid_config_is_refused(target_dir: Path) -> None:
    for text in ("{", "[]", "\xff"):
        (target_dir / "config.json").write_text(text, encoding="latin-1")
        with pytest.raises(CheckpointError, match=r"config\.json"):
            open_target(target_dir)
    (target_dir / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json must be there"):
        open_target(target_dir)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("lm_head.weight"), r"must hold lm_head\.weight \[60, 32\]"),
        (lambda t: t.pop("model.layers.2.mlp.up_proj.weight"), r"must hold model\.layers\.2\.mlp\.up_proj\.weight"),
        (lambda t: t.update({"model.norm.weight": torch.ones(33)}), r"model\.norm\.weight must have the shape \[32\]"),
        (lambda t: t.update({"model.norm.weight": torch.ones(32).long()}), r"model\.norm\.weight must hold real"),
        (lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(32)}), r"got model\.layers\.0.*bias"),
        (lambda t: t.update({"model.layers.3.mlp.up_proj.weight": torch.ones(48, 32)}), r"got model\.layers\.3"),
    ],
)
def test_tensors_at_odds_with_the_config_are_named(
    target_dir: Path, change: Callable[[dict[str, torch.Tensor]], Any], words: str
) -> None:
    change_tensors(target_dir, change)
    with pytest.raises(CheckpointError, match=words):
        open_target(target_dir)


def test_stored_rotary_frequencies_are_passed_over(target_dir: Path) -> None:
    change_tensors(target_dir, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    assert open_target(target_dir).config.num_layers == 3


def test_end_tokens_come_from_the_generation_config(target_dir: Path) -> None:
    change_config(target_dir, eos_token_id=3)
    (target_dir / "generation_config.json").write_text('{"eos_token_id": [4, 3]}')
    assert open_target(target_dir).config.eos_token_ids == (4, 3)
    (target_dir / "generation_config.json").unlink()
    assert open_target(target_dir).config.eos_token_ids == (3,)


# Against the reference data.


def drafts(shared: Path) -> list[Path]:
    return sorted(shared.glob("golden/*/*/draft"))


def test_every_golden_head_opens_and_fits_every_golden_target(shared: Path) -> None:
    targets = [open_target(path) for path in sorted(shared.glob("golden/deepspec/targets/*"))]
    assert [len(target.tensors.infos()) for target in targets] == [69, 69]
    for name in targets[0].tensors.infos():
        assert torch.equal(targets[0].tensors.load(name), targets[1].tensors.load(name))
    assert len(drafts(shared)) == 9
    for path in drafts(shared):
        for target in targets:
            check_head_fits(open_head(path), target)


def test_the_embedded_head_opens_without_embeddings_of_its_own() -> None:
    head = open_head(Path(__file__).parent.parent / "deploy/heads/smollm2-135m-dspark")
    assert {"embed_tokens.weight", "lm_head.weight"}.isdisjoint(head.tensors.infos())
    ids = target_ids_of_draft(head)
    assert ids is not None
    assert len(ids) == head.config.draft_vocab_size == 16384


def test_draft_ids_of_a_reduced_vocabulary_are_the_kept_target_ids(shared: Path) -> None:
    head = open_head(shared / "golden/speculators/reduced_vocab_anchor/draft")
    ids = target_ids_of_draft(head)
    assert ids is not None
    assert ids.dtype == torch.int64
    assert torch.equal(ids, head.tensors.load("t2d").nonzero().flatten())
    assert target_ids_of_draft(open_head(shared / "golden/speculators/gated_anchor/draft")) is None


@pytest.fixture
def head_copy(shared: Path, tmp_path: Path) -> Callable[[str], Path]:
    def copy(variant: str) -> Path:
        made = tmp_path / variant.replace("/", "_")
        made.mkdir()
        for file in (shared / "golden" / variant / "draft").iterdir():
            shutil.copyfile(file, made / file.name)
        return made

    return copy


def test_a_target_is_no_head_and_a_head_no_target(shared: Path) -> None:
    for variant in ("deepspec/vanilla", "speculators/gated_anchor"):
        with pytest.raises(CheckpointError, match="is a DSpark head"):
            open_target(shared / "golden" / variant / "draft")
    with pytest.raises(CheckpointError, match="Qwen3ForCausalLM"):
        open_head(shared / "golden/deepspec/targets/untied")


@pytest.mark.parametrize(
    ("variant", "change", "words"),
    [
        ("deepspec/vanilla", lambda t: t.pop("fc.weight"), r"must hold fc\.weight \[64, 192\]"),
        ("deepspec/vanilla", lambda t: t.pop("markov_head.markov_w2.weight"), r"markov_w2\.weight \[512, 16\]"),
        ("deepspec/gated", lambda t: t.pop("markov_head.gate_proj.bias"), r"gate_proj\.bias \[16\]"),
        ("deepspec/rnn", lambda t: t.pop("markov_head.joint_proj.weight"), r"joint_proj\.weight \[48, 96\]"),
        ("deepspec/rnn", lambda t: t.pop("confidence_head.proj.weight"), r"confidence_head\.proj\.weight \[1, 80\]"),
        ("deepspec/vanilla", lambda t: t.update({"extra.weight": torch.ones(1)}), r"got extra\.weight"),
        ("speculators/reduced_vocab_anchor", lambda t: t.pop("d2t"), r"must hold d2t \[128\]"),
        ("speculators/reduced_vocab_anchor", lambda t: t.update({"d2t": t["d2t"].int()}), "d2t must be stored as I64"),
    ],
)
def test_a_head_at_odds_with_its_config_is_named(
    head_copy: Callable[[str], Path], variant: str, change: Callable[[dict[str, torch.Tensor]], Any], words: str
) -> None:
    path = head_copy(variant)
    change_tensors(path, change)
    with pytest.raises(CheckpointError, match=words):
        open_head(path)


@pytest.mark.parametrize(
    ("index", "value", "words"), [(127, 400, "got id 527"), (0, -1, "got id -1"), (1, 0, "one twice")]
)
def test_a_bad_draft_vocabulary_is_refused(
    head_copy: Callable[[str], Path], index: int, value: int, words: str
) -> None:
    path = head_copy("speculators/reduced_vocab_anchor")

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["d2t"][index] = value
        if words == "one twice":
            tensors["d2t"][0] = 1

    change_tensors(path, change)
    with pytest.raises(CheckpointError, match=words):
        target_ids_of_draft(open_head(path))


def test_a_full_vocabulary_may_carry_an_idle_map_only(head_copy: Callable[[str], Path]) -> None:
    path = head_copy("speculators/gated_anchor")
    change_tensors(path, lambda t: t.update({"d2t": torch.zeros(512, dtype=torch.int64)}))
    assert target_ids_of_draft(open_head(path)) is None
    change_tensors(path, lambda t: t["d2t"].__setitem__(3, 1))
    with pytest.raises(CheckpointError, match="all zero"):
        target_ids_of_draft(open_head(path))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("hidden_size", 128, "hidden size.*got 64 .* and 128"),
        ("vocab_size", 600, "vocabulary.*got 512 .* and 600"),
        ("num_layers", 7, "target layer count.*got 6 .* and 7"),
    ],
)
def test_a_head_for_another_target_is_refused_with_both_numbers(
    shared: Path, field: str, value: int, words: str
) -> None:
    head = open_head(shared / "golden/deepspec/vanilla/draft")
    target = open_target(shared / "golden/deepspec/targets/untied")
    changes: dict[str, Any] = {field: value}
    other = replace(target, config=replace(target.config, **changes))
    with pytest.raises(MismatchError, match=words):
        check_head_fits(head, other)


def test_taps_on_the_last_layer_are_refused_where_only_the_target_tells_its_layers(
    head_copy: Callable[[str], Path], shared: Path
) -> None:
    target = open_target(shared / "golden/deepspec/targets/untied")
    path = head_copy("speculators/gated_anchor")
    change_config(path, aux_hidden_state_layer_ids=[2, 3, 6])
    with pytest.raises(MismatchError, match=r"ids up to 4 of 6 layers.*got 5"):
        check_head_fits(open_head(path), target)


@pytest.mark.parametrize("name", ["embed_tokens.weight", "lm_head.weight"])
def test_embeddings_of_another_model_are_noticed_and_rounding_is_not(
    head_copy: Callable[[str], Path], shared: Path, name: str
) -> None:
    target = open_target(shared / "golden/deepspec/targets/untied")
    path = head_copy("deepspec/vanilla")
    change_tensors(path, lambda t: t.update({name: t[name].to(torch.bfloat16)}))
    check_head_fits(open_head(path), target)
    change_tensors(path, lambda t: t[name][511].zero_())  # the mask token's row may be the head's own
    check_head_fits(open_head(path), target)
    change_tensors(path, lambda t: t.update({name: t[name].roll(1, dims=0)}))
    with pytest.raises(MismatchError, match=name.replace(".", r"\.")):
        check_head_fits(open_head(path), target)
    change_tensors(path, lambda t: t.update({name: torch.full_like(t[name], float("nan"))}))
    with pytest.raises(MismatchError, match="nan"):
        check_head_fits(open_head(path), target)


class FourBit:
    """A target's tensors as a 4-bit GGUF would give them."""

    def __init__(self, inner: TensorSource) -> None:
        self.inner = inner

    def infos(self) -> dict[str, TensorInfo]:
        return {name: replace(info, dtype="Q4_0") for name, info in self.inner.infos().items()}

    def load(self, name: str) -> torch.Tensor:
        kind = gguf.GGMLQuantizationType.Q4_0
        return torch.from_numpy(dequantize(quantize(self.inner.load(name).numpy(), kind), kind))

    def load_rows(self, name: str, rows: Sequence[int]) -> torch.Tensor:
        return self.load(name)[list(rows)]


def test_copies_in_full_precision_fit_a_quantised_target(head_copy: Callable[[str], Path], shared: Path) -> None:
    target = open_target(shared / "golden/deepspec/targets/untied")
    quantised = replace(target, tensors=FourBit(target.tensors))
    path = head_copy("deepspec/vanilla")
    check_head_fits(open_head(path), quantised)
    change_tensors(path, lambda t: t.update({"lm_head.weight": t["lm_head.weight"].roll(1, dims=0)}))
    with pytest.raises(MismatchError, match=r"lm_head\.weight"):
        check_head_fits(open_head(path), quantised)
