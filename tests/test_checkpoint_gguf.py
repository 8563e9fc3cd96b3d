"""The GGUF reader, on small files written by the gguf library."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
from gguf.quants import dequantize, quantize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twinspark.actors.checkpoint.configs import RopeConfig
from twinspark.actors.checkpoint.gguf_config import gguf_config
from twinspark.actors.checkpoint.gguf_source import GgufSource
from twinspark.actors.checkpoint.opening import open_target
from twinspark.actors.errors import CheckpointError

Array = npt.NDArray[np.float32]
HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INNER, LAYERS, VOCAB = 4, 2, 16, 64, 96, 2, 40
TOKENS = [f"t{i}" for i in range(VOCAB - 2)] + ["Ġé", "日本"]
LAYER_MATRICES = {
    "self_attn.q_proj": ("attn_q", HEADS * HEAD_DIM, HIDDEN),
    "self_attn.k_proj": ("attn_k", KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.v_proj": ("attn_v", KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.o_proj": ("attn_output", HIDDEN, HEADS * HEAD_DIM),
    "mlp.gate_proj": ("ffn_gate", INNER, HIDDEN),
    "mlp.up_proj": ("ffn_up", INNER, HIDDEN),
    "mlp.down_proj": ("ffn_down", HIDDEN, INNER),
}


def interleaved(weight: Array, heads: int) -> Array:
    """Rows as llama.cpp's converter stores them: the halves of each head zipped."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def hugging_face_weights(*, tied: bool, biases: bool) -> dict[str, tuple[str, Array]]:
    """By Hugging Face name: the GGUF name, and the weight as Hugging Face has it."""
    random = np.random.default_rng(0)

    def draw(*shape: int) -> Array:
        return random.standard_normal(shape, dtype=np.float32)

    weights = {
        "model.embed_tokens.weight": ("token_embd.weight", draw(VOCAB, HIDDEN)),
        "model.norm.weight": ("output_norm.weight", draw(HIDDEN)),
    }
    if not tied:
        weights["lm_head.weight"] = ("output.weight", draw(VOCAB, HIDDEN))
    for i in range(LAYERS):
        for name, (short, rows, columns) in LAYER_MATRICES.items():
            weights[f"model.layers.{i}.{name}.weight"] = (f"blk.{i}.{short}.weight", draw(rows, columns))
            if biases and "self_attn" in name:
                weights[f"model.layers.{i}.{name}.bias"] = (f"blk.{i}.{short}.bias", draw(rows))
        weights[f"model.layers.{i}.input_layernorm.weight"] = (f"blk.{i}.attn_norm.weight", draw(HIDDEN))
        weights[f"model.layers.{i}.post_attention_layernorm.weight"] = (f"blk.{i}.ffn_norm.weight", draw(HIDDEN))
    return weights


def writer(path: Path, architecture: str = "llama") -> gguf.GGUFWriter:
    made = gguf.GGUFWriter(path, architecture)
    made.add_block_count(LAYERS)
    made.add_context_length(128)
    made.add_embedding_length(HIDDEN)
    made.add_feed_forward_length(INNER)
    made.add_head_count(HEADS)
    made.add_head_count_kv(KV_HEADS)
    made.add_layer_norm_rms_eps(1e-5)
    made.add_rope_freq_base(50000.0)
    made.add_vocab_size(VOCAB)
    made.add_tokenizer_model("gpt2")
    made.add_tokenizer_pre("smollm")
    made.add_token_list(TOKENS)
    made.add_token_types([3, *[1] * (VOCAB - 1)])
    made.add_token_merges(["a b", "Ġ t"])
    made.add_eos_token_id(2)
    made.add_add_bos_token(False)
    made.add_chat_template("{{ messages }}")
    return made


def finish(made: gguf.GGUFWriter) -> None:
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()


def write_llama(path: Path, quant: str = "F32", *, tied: bool = False, biases: bool = False) -> dict[str, Array]:
    """Writes a llama; returns what its reader must give, by Hugging Face name."""
    made = writer(path)
    kind = gguf.GGMLQuantizationType[quant]
    expected = {}
    for name, (short, weight) in hugging_face_weights(tied=tied, biases=biases).items():
        heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(short.split(".")[-2])
        stored = interleaved(weight, heads) if heads else weight
        if weight.ndim == 1:
            made.add_tensor(short, stored)
            expected[name] = weight
        else:
            made.add_tensor(short, quantize(stored, kind), raw_dtype=kind)
            expected[name] = dequantize(quantize(weight, kind), kind)  # blocks lie in rows: order does not matter
    finish(made)
    return expected


@pytest.mark.parametrize("quant", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_every_weight_comes_back_under_its_name_with_rows_in_order(tmp_path: Path, quant: str) -> None:
    expected = write_llama(tmp_path / "m.gguf", quant, biases=True)
    source = GgufSource(tmp_path / "m.gguf")
    assert set(source.infos()) == set(expected)
    plain = {"F16": torch.float16, "BF16": torch.bfloat16}.get(quant, torch.float32)
    for name, weight in expected.items():
        loaded = source.load(name)
        assert loaded.dtype == (plain if weight.ndim == 2 else torch.float32)
        assert source.infos()[name].shape == weight.shape == tuple(loaded.shape)
        assert np.array_equal(loaded.float().numpy(), weight), name
        rows = [weight.shape[0] - 1, 0, 5]
        assert np.array_equal(source.load_rows(name, rows).float().numpy(), weight[rows]), name


def test_loaded_tensors_are_writable_copies(tmp_path: Path) -> None:
    write_llama(tmp_path / "m.gguf")
    source = GgufSource(tmp_path / "m.gguf")
    source.load("model.norm.weight").zero_()
    assert bool(source.load("model.norm.weight").any())


def test_stored_bytes_are_those_of_the_file(tmp_path: Path) -> None:
    write_llama(tmp_path / "m.gguf", "Q4_0")
    info = GgufSource(tmp_path / "m.gguf").infos()["model.embed_tokens.weight"]
    assert (info.dtype, info.stored_bytes) == ("Q4_0", VOCAB * HIDDEN // 32 * 18)


@pytest.mark.parametrize("tied", [True, False])
def test_the_target_opens_with_the_sizes_of_the_metadata(tmp_path: Path, tied: bool) -> None:
    write_llama(tmp_path / "m.gguf", tied=tied, biases=True)
    config = open_target(tmp_path / "m.gguf").config
    assert (config.family, config.vocab_size, config.hidden_size, config.intermediate_size) == ("llama", 40, 64, 96)
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (2, 4, 2, 16)
    assert config.rms_norm_eps == pytest.approx(1e-5)
    assert config.rope == RopeConfig(theta=50000.0)
    assert (config.max_positions, config.eos_token_ids) == (128, (2,))
    assert (config.tie_embeddings, config.qkv_bias, config.output_bias, config.mlp_bias) == (tied, True, True, False)


def test_metadata_are_plain_values(tmp_path: Path) -> None:
    write_llama(tmp_path / "m.gguf")
    metadata = GgufSource(tmp_path / "m.gguf").metadata()
    assert metadata["tokenizer.ggml.tokens"] == TOKENS
    assert metadata["tokenizer.ggml.merges"] == ["a b", "Ġ t"]
    assert metadata["tokenizer.ggml.token_type"] == [3, *[1] * (VOCAB - 1)]
    assert metadata["tokenizer.ggml.pre"] == "smollm"
    assert metadata["tokenizer.ggml.add_bos_token"] is False
    assert metadata["tokenizer.chat_template"] == "{{ messages }}"
    assert type(metadata["tokenizer.ggml.eos_token_id"]) is int


def test_rope_scaling_is_read_and_an_unknown_one_named(tmp_path: Path) -> None:
    for kind, expected in {
        gguf.RopeScalingType.LINEAR: RopeConfig(theta=50000.0, kind="linear", factor=4.0),
        gguf.RopeScalingType.YARN: RopeConfig(theta=50000.0, kind="yarn", factor=4.0, original_max_positions=32),
        gguf.RopeScalingType.LONGROPE: None,
    }.items():
        made = writer(tmp_path / "m.gguf")
        made.add_rope_scaling_type(kind)
        made.add_rope_scaling_factor(4.0)
        made.add_rope_scaling_orig_ctx_len(32)
        finish(made)
        if expected is None:
            with pytest.raises(CheckpointError, match="got 'longrope'"):
                gguf_config(tmp_path / "m.gguf")
        else:
            assert gguf_config(tmp_path / "m.gguf").rope == expected


def test_other_architectures_and_experts_are_refused_by_name(tmp_path: Path) -> None:
    made = writer(tmp_path / "m.gguf", "gemma3")
    finish(made)
    with pytest.raises(CheckpointError, match="gemma3"):
        GgufSource(tmp_path / "m.gguf")
    made = writer(tmp_path / "m.gguf")
    made.add_expert_count(8)
    finish(made)
    with pytest.raises(CheckpointError, match="mixture-of-experts"):
        GgufSource(tmp_path / "m.gguf")


def test_an_unknown_llama_key_tensor_or_quantisation_is_refused_by_name(tmp_path: Path) -> None:
    made = writer(tmp_path / "m.gguf")
    made.add_float32("llama.logit_scale", 8.0)
    finish(made)
    with pytest.raises(CheckpointError, match=r"llama\.logit_scale"):
        gguf_config(tmp_path / "m.gguf")
    made = writer(tmp_path / "m.gguf")
    made.add_tensor("rope_freqs.weight", np.ones(8, dtype=np.float32))
    finish(made)
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight"):
        GgufSource(tmp_path / "m.gguf")
    made = writer(tmp_path / "m.gguf")
    made.add_tensor("token_embd.weight", np.zeros((4, 210), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q6_K)
    finish(made)
    with pytest.raises(CheckpointError, match="got Q6_K"):
        GgufSource(tmp_path / "m.gguf")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    finish(writer(tmp_path / "m.gguf"))
    with pytest.raises(CheckpointError, match=r"must hold model\.embed_tokens\.weight \[40, 64\]"):
        open_target(tmp_path / "m.gguf")
    with pytest.raises(CheckpointError, match="lacks"):
        GgufSource(tmp_path / "m.gguf").load("model.embed_tokens.weight")


def test_files_that_are_no_whole_gguf_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with pytest.raises(CheckpointError, match="not there"):
        open_target(path)
    write_llama(path)
    whole = path.read_bytes()
    for damaged in (
        b"",
        b"GGU",
        b"PK\x03\x04" + whole[4:],
        whole[:4],
        whole[:3000],
        whole[:-1],
        whole[:4] + struct.pack("<I", 1) + whole[8:],
        whole[:4] + struct.pack(">I", 3) + whole[8:],  # big-endian
        whole[:8] + struct.pack("<QQ", 2**62, 2**62) + whole[24:],  # counts beyond the file
    ):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"m\.gguf"):
            open_target(path)


def test_a_file_cut_after_opening_is_an_error_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_llama(path)
    source = GgufSource(path)
    path.write_bytes(path.read_bytes()[:4000])
    with pytest.raises(CheckpointError, match="must still hold"):
        source.load("model.layers.1.mlp.down_proj.weight")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 4500), byte=st.sampled_from([0, 1, 9, 127, 255]), width=st.integers(1, 8))
def test_whatever_the_damage_the_error_is_ours_and_comes_soon(
    tmp_path: Path, position: int, byte: int, width: int
) -> None:
    path = tmp_path / "m.gguf"
    if not path.exists():
        write_llama(path, "Q8_0")
    raw = bytearray(path.read_bytes())
    raw[position : position + width] = bytes([byte]) * width
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(raw)
    try:
        target = open_target(damaged)
        for name in target.tensors.infos():
            target.tensors.load(name)
    except CheckpointError:
        pass
