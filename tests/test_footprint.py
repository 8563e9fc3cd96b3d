"""Footprints worked out by hand, what holds for all of them, and sizes from headers against those from dimensions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_targets import CASES, save_tiny

from twinspark.actors.checkpoint.opening import open_head, open_target
from twinspark.actors.checkpoint.sizes import configured_head_size, configured_model_size, head_size, model_size
from twinspark.actors.draft import drafter
from twinspark.actors.sampling import device
from twinspark.actors.target import engine
from twinspark.deploy.embedded import demo_head_path
from twinspark.planner import footprint as formulas
from twinspark.planner.footprint import (
    CPU_PROCESS_BYTES,
    CpuKernels,
    Footprint,
    colocated_footprint,
    draft_footprint,
    kv_bytes_per_seq,
    target_footprint,
)
from twinspark.planner.sizes import HeadSize, LayerSize, ModelSize

PARTS = ("weights_bytes", "kv_bytes", "workspace_bytes", "overhead_bytes", "host_bytes")
EMBEDDED: dict[str, Any] = {
    "hidden_size": 576,
    "num_layers": 30,
    "intermediate_size": 1536,
    "num_heads": 9,
    "num_kv_heads": 3,
    "vocab_size": 49152,
    "tied": True,
}
SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_layers": 3,
    "intermediate_size": 32,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 8,
    "vocab_size": 100,
}
LAYER = 16 * (16 + 8 + 8) + 16 * 16 + 3 * 16 * 32  # elements of its matrices
ONE: dict[str, Any] = {"kind": "cuda", "dtype": "bfloat16", "context": 64, "num_seqs": 3, "verify_length": 2}


def small_head(**more: Any) -> HeadSize:
    layer = LayerSize.of(hidden_size=16, intermediate_size=32, num_heads=2, num_kv_heads=1, head_dim=8, qk_norm=True)
    common: dict[str, Any] = {
        "layer": layer,
        "num_layers": 2,
        "tap_ids": (-1, 0),
        "markov_rank": 4,
        "block_size": 5,
        "vocab_size": 100,
    }
    return HeadSize.of(**common | more)


# By hand ----------------------------------------------------------------------------------------------------------


def test_a_layer_of_known_size() -> None:
    layer = ModelSize.of(**SMALL).layer
    assert layer.matrix_elements == LAYER == 2304
    assert layer.matrix_rows == 32 + 16 + 2 * 32 + 16
    assert layer.vector_elements == 2 * 16
    biased = ModelSize.of(**SMALL, qkv_bias=True, output_bias=True, mlp_bias=True, qk_norm=True).layer
    assert biased.vector_elements == 2 * 16 + 32 + 16 + 2 * 32 + 16 + 2 * 8


def test_the_embedded_target_has_as_many_parameters_as_its_makers_say() -> None:
    assert ModelSize.of(**EMBEDDED).num_parameters == 134_515_008


def test_weights_and_caches_of_a_target_on_a_gpu() -> None:
    found = target_footprint(ModelSize.of(**SMALL), numerics="fast", **ONE)
    elements = 100 * 16 + 3 * (LAYER + 32) + 100 * 16 + 16 + 2 * 64 * 8  # with the rotary tables
    assert found.weights_bytes == 2 * elements + 8 * 100
    assert found.kv_bytes == (3 + 1) * 2 * 3 * 1 * 8 * 64 * 2
    assert kv_bytes_per_seq(ModelSize.of(**SMALL), dtype="bfloat16", context=64) == found.kv_bytes // 4


def test_a_packed_tied_embedding_is_held_twice_on_a_cpu() -> None:
    model = ModelSize.of(**SMALL, tied=True)
    arguments = ONE | {"kind": "cpu", "dtype": "float32", "numerics": "fast"}
    packed = target_footprint(model, **arguments)
    plain = target_footprint(model, **arguments, kernels=CpuKernels(packs_float32=False))
    assert packed.weights_bytes - plain.weights_bytes == 4 * 100 * 16
    untied = target_footprint(ModelSize.of(**SMALL), **arguments)
    assert untied.weights_bytes == packed.weights_bytes


def test_weights_and_caches_of_a_draft_in_bfloat16() -> None:
    found = draft_footprint(ModelSize.of(**SMALL), small_head(), **ONE)
    trunk = 100 * 16 + LAYER + 32 + 2 * 64 * 8
    head = 2 * (LAYER + 32 + 16) + 2 * 16 * 16 + 2 * 16 + 2 * 100 * 4 + 100 * 16 + 2 * (64 + 5) * 8
    assert found.weights_bytes == 2 * (trunk + head) + 4 * (16 + 4 + 1) + 8 * 100
    assert found.kv_bytes == 2 * (4 * 2 * 8 * 64) + 2 * (3 * 2 * 2 * 8 * (64 + 5))


def test_int8_has_bytes_for_matrices_and_float32_for_the_rest() -> None:
    arguments = ONE | {"kind": "cpu", "dtype": "int8"}
    found = colocated_footprint(ModelSize.of(**SMALL), small_head(), **arguments)
    rows = 2 * (32 + 16 + 64 + 16) + 16 + 100
    matrices = 2 * LAYER + 2 * 16 * 16 + 100 * 4
    reals = 2 * (32 + 16) + 2 * 16 + 100 * 4 + 2 * (64 + 5) * 8 + (16 + 4 + 1)
    lm_head = 100 * 16 + 12 * 100
    assert found.weights_bytes == matrices + 12 * rows + 4 * reals + lm_head + 24 * 100
    assert found.kv_bytes == 4 * (3 * 2 * 2 * 8 * (64 + 5))


def test_int8_falls_back_to_bfloat16_on_a_gpu() -> None:
    found = [draft_footprint(ModelSize.of(**SMALL), small_head(), **ONE | {"dtype": d}) for d in ("int8", "bfloat16")]
    reals = 2 * (32 + 16) + 2 * 16 + 100 * 4 + 2 * (64 + 5) * 8  # norms, w1 and rotary tables stay float32
    assert found[0].weights_bytes - found[1].weights_bytes == 2 * reals


def test_a_head_with_its_own_lm_head_and_embedding() -> None:
    model = ModelSize.of(**SMALL)
    shared = draft_footprint(model, small_head(), **ONE)
    own = draft_footprint(model, small_head(own_embedding=True, own_lm_head=True), **ONE)
    assert own.weights_bytes - shared.weights_bytes == 2 * 100 * 16, "an untied target's lm_head is read again anyway"
    tied = colocated_footprint(ModelSize.of(**SMALL, tied=True), small_head(), **ONE)
    assert tied.weights_bytes == colocated_footprint(model, small_head(), **ONE).weights_bytes - 2 * 100 * 16
    reduced = small_head(draft_vocab_size=50)
    assert reduced.lm_head_elements == 50 * 16
    assert reduced.maps_ids


def test_logits_are_priced_at_the_longest_verify_and_prompts_at_their_chunk() -> None:
    model = ModelSize.of(**SMALL | {"vocab_size": 100_000, "num_layers": 1})
    arguments = ONE | {"kind": "cpu", "dtype": "float32", "num_seqs": 8}
    short, long = (target_footprint(model, numerics="fast", **arguments | {"verify_length": n}) for n in (1, 7))
    assert long.workspace_bytes - short.workspace_bytes >= 8 * 6 * 100_000 * 4
    assert target_footprint(ModelSize.of(**SMALL), numerics="fast", **ONE).workspace_bytes > 256 * 64 * 2 * 2


def test_where_the_overhead_lies() -> None:
    model, head = ModelSize.of(**SMALL), small_head()
    on_cpu = target_footprint(model, numerics="fast", **ONE | {"kind": "cpu"})
    assert on_cpu.host_bytes == 0
    assert on_cpu.overhead_bytes >= CPU_PROCESS_BYTES
    on_gpu = target_footprint(model, numerics="fast", **ONE)
    assert on_gpu.host_bytes > CPU_PROCESS_BYTES
    assert colocated_footprint(model, head, **ONE).overhead_bytes == 0


def test_the_rows_of_a_step_are_those_of_the_engine() -> None:
    assert engine.PREFILL_ROWS_ALONE == formulas.PREFILL_ROWS_ALONE
    assert engine.PREFILL_ROWS_BESIDE == formulas.PREFILL_ROWS_BESIDE
    assert drafter.CATCH_UP_ROWS == formulas.CATCH_UP_ROWS
    assert device._ROWS_AT_ONCE == formulas.DEVICE_DRAW_ROWS


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"context": 0}, "context"), ({"num_seqs": 0}, "num_seqs"), ({"verify_length": -1}, "verify_length")],
)
def test_impossible_numbers_are_refused(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"{message} must be at least"):
        target_footprint(ModelSize.of(**SMALL), numerics="fast", **ONE | wrong)


def test_impossible_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match="num_layers must be at least 1, got 0"):
        ModelSize.of(**SMALL | {"num_layers": 0})
    with pytest.raises(ValueError, match="a multiple of num_kv_heads, got 2 and 3"):
        ModelSize.of(**SMALL | {"num_kv_heads": 3})
    with pytest.raises(ValueError, match="tap_ids"):
        small_head(tap_ids=())
    with pytest.raises(ValueError, match="draft_vocab_size at most 100, got 4 and 101"):
        small_head(draft_vocab_size=101)
    with pytest.raises(ValueError, match="a target must be float32 or bfloat16"):
        target_footprint(ModelSize.of(**SMALL), numerics="fast", **ONE | {"dtype": "int8"})


# For all ----------------------------------------------------------------------------------------------------------

kv_heads = st.sampled_from([1, 2, 3, 8])
layers = st.builds(
    lambda hidden, inner, kv, group, head_dim, qk_norm: LayerSize.of(
        hidden_size=hidden,
        intermediate_size=inner,
        num_heads=kv * group,
        num_kv_heads=kv,
        head_dim=head_dim,
        qk_norm=qk_norm,
    ),
    st.integers(8, 8192),
    st.integers(8, 16384),
    kv_heads,
    st.integers(1, 8),
    st.sampled_from([8, 64, 128]),
    st.booleans(),
)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[ModelSize, HeadSize]:
    layer, vocab, num_layers = draw(layers), draw(st.integers(10, 250_000)), draw(st.integers(2, 80))
    vocabulary = vocab * layer.hidden_size
    tied = draw(st.booleans())
    model = ModelSize(vocab, num_layers, layer, vocabulary, 0 if tied else vocabulary, layer.hidden_size)
    head = HeadSize.of(
        layer=layer,
        num_layers=draw(st.integers(1, 6)),
        tap_ids=draw(st.lists(st.integers(-1, num_layers - 2), min_size=1, max_size=5, unique=True)),
        markov_rank=draw(st.integers(0, 512)),
        block_size=draw(st.integers(1, 16)),
        vocab_size=vocab,
        draft_vocab_size=draw(st.integers(1, vocab)),
        markov_kind=draw(st.sampled_from(["none", "vanilla", "gated", "rnn"])),
        has_confidence=draw(st.booleans()),
        own_embedding=draw(st.booleans()),
        own_lm_head=draw(st.booleans()),
        causal_windows=draw(st.booleans()),
    )
    return model, head


loads = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["cpu", "cuda"]),
        "context": st.integers(1, 200_000),
        "num_seqs": st.integers(1, 64),
        "verify_length": st.integers(0, 16),
        "kernels": st.builds(CpuKernels, st.booleans(), st.booleans(), st.booleans()),
    }
)
dtypes = st.sampled_from(["float32", "bfloat16", "int8"])
numerics = st.sampled_from(["fast", "exact"])


def everything(model: ModelSize, head: HeadSize, load: Any, dtype: Any, exact: Any) -> dict[str, Footprint]:
    of_target: Any = "bfloat16" if dtype == "int8" else dtype
    return {
        "target": target_footprint(model, dtype=of_target, numerics=exact, **load),
        "draft": draft_footprint(model, head, dtype=dtype, **load),
        "colocated": colocated_footprint(model, head, dtype=dtype, **load),
    }


MORE = ["context", "num_seqs", "verify_length", "num_layers"]


@settings(max_examples=2000, deadline=None)
@given(pairs(), loads, dtypes, numerics, st.sampled_from(MORE), st.integers(1, 99))
def test_more_is_never_less(
    pair: tuple[ModelSize, HeadSize], load: dict[str, Any], dtype: str, exact: str, what: str, more: int
) -> None:
    model, head = pair
    before = everything(model, head, load, dtype, exact)
    if what == "num_layers":
        model = replace(model, num_layers=model.num_layers + more)
        head = replace(head, num_layers=head.num_layers + more, num_trunk_layers=head.num_trunk_layers + more)
    else:
        load = load | {what: load[what] + more}
    after = everything(model, head, load, dtype, exact)
    for role, footprint in before.items():
        for part in PARTS:
            assert getattr(after[role], part) >= getattr(footprint, part) >= 0, (role, part)
        assert what == "verify_length" or after[role].kv_bytes > footprint.kv_bytes


@settings(max_examples=2000, deadline=None)
@given(pairs(), loads, dtypes, numerics)
def test_beside_the_target_costs_less_than_an_actor_of_its_own(
    pair: tuple[ModelSize, HeadSize], load: dict[str, Any], dtype: str, exact: str
) -> None:
    found = everything(*pair, load, dtype, exact)
    target, draft, colocated = found["target"], found["draft"], found["colocated"]
    assert colocated.weights_bytes <= draft.weights_bytes
    assert colocated.kv_bytes <= draft.kv_bytes
    assert target.device_bytes + colocated.device_bytes <= target.device_bytes + draft.device_bytes
    assert colocated.host_bytes <= draft.host_bytes
    if dtype == "bfloat16" and load["kernels"] == CpuKernels():
        for role, wide in everything(*pair, load, "float32", exact).items():
            assert found[role].weights_bytes <= wide.weights_bytes
            assert found[role].kv_bytes <= wide.kv_bytes


# Headers ----------------------------------------------------------------------------------------------------------


def test_the_embedded_pair_from_headers_and_from_dimensions(demo_model: Path) -> None:
    target, head = open_target(demo_model), open_head(demo_head_path())
    assert model_size(target) == ModelSize.of(**EMBEDDED, stored_in_blocks=True)
    layer = LayerSize.of(hidden_size=576, intermediate_size=1536, num_heads=9, num_kv_heads=3, qk_norm=True)
    by_dimensions = HeadSize.of(
        layer=layer,
        num_layers=4,
        tap_ids=(-1, 0, 1, 2),
        markov_rank=128,
        block_size=7,
        vocab_size=49152,
        draft_vocab_size=16384,
    )
    assert head_size(head) == by_dimensions == configured_head_size(head.config)


@pytest.mark.parametrize("name", CASES)
def test_tiny_targets_from_headers_and_from_their_config(tmp_path: Path, name: str) -> None:
    model = save_tiny(name, tmp_path)
    target = open_target(tmp_path)
    size = model_size(target)
    assert size == configured_model_size(target.config)
    assert size.num_parameters == sum(p.numel() for p in model.parameters())


def test_reference_heads_from_headers_and_from_their_config(shared: Path) -> None:
    folders = sorted(path.parent for path in shared.glob("golden/*/*/draft/config.json"))
    assert folders
    for folder in folders:
        head = open_head(folder)
        stored = head.tensors.infos()
        found, expected = head_size(head), configured_head_size(head.config)
        if "embed_tokens.weight" in stored:
            assert found.embedding_elements == head.config.decoder.vocab_size * head.config.decoder.hidden_size
        if "lm_head.weight" in stored:
            assert found.lm_head_elements == head.config.draft_vocab_size * head.config.decoder.hidden_size
        assert replace(found, embedding_elements=0, lm_head_elements=0) == replace(
            expected, embedding_elements=0, lm_head_elements=0
        ), folder
