"""Decoder configs out of Hugging Face dictionaries: what is read, what is refused, by name."""

from __future__ import annotations

from typing import Any

import pytest

from twinspark.actors.checkpoint.configs import RopeConfig
from twinspark.actors.checkpoint.hf_config import decoder_config
from twinspark.actors.errors import CheckpointError

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5e5,
    "eos_token_id": 2,
}
QWEN2 = LLAMA | {"model_type": "qwen2"}
QWEN3 = LLAMA | {"model_type": "qwen3", "head_dim": 32}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def read(config: dict[str, Any], **options: Any) -> Any:
    return decoder_config(config, "config.json", **options)


def test_the_sizes_of_a_llama() -> None:
    config = read(LLAMA)
    assert (config.family, config.vocab_size, config.hidden_size, config.intermediate_size) == ("llama", 100, 64, 96)
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (2, 4, 2, 16)
    assert (config.rms_norm_eps, config.max_positions, config.tie_embeddings) == (1e-5, 256, False)
    assert config.rope == RopeConfig(theta=5e5)
    assert read(LLAMA | {"num_key_value_heads": None}).num_kv_heads == 4
    assert read(LLAMA | {"head_dim": 24, "tie_word_embeddings": True}).head_dim == 24


@pytest.mark.parametrize(
    ("config", "qkv", "output", "mlp", "norm"),
    [
        (LLAMA, False, False, False, False),
        (LLAMA | {"attention_bias": True, "mlp_bias": True}, True, True, True, False),
        (QWEN2 | {"attention_bias": False}, True, False, False, False),
        (QWEN3, False, False, False, True),
        (QWEN3 | {"attention_bias": True}, True, True, False, True),
    ],
)
def test_biases_and_norms_of_each_family(
    config: dict[str, Any], qkv: bool, output: bool, mlp: bool, norm: bool
) -> None:
    made = read(config)
    assert (made.qkv_bias, made.output_bias, made.mlp_bias, made.qk_norm) == (qkv, output, mlp, norm)


def test_qwen3_without_a_head_dim_has_that_of_its_class() -> None:
    assert read({key: value for key, value in QWEN3.items() if key != "head_dim"}).head_dim == 128


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"rope_theta": None}, RopeConfig()),
        ({"rope_scaling": None}, RopeConfig(theta=5e5)),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, RopeConfig(theta=5e5, kind="linear", factor=2.0)),
        (
            {"rope_scaling": LLAMA3_ROPE},
            RopeConfig(theta=5e5, kind="llama3", factor=8.0, original_max_positions=64),
        ),
        (
            {"rope_theta": None, "rope_parameters": LLAMA3_ROPE | {"rope_theta": 7e5}},
            RopeConfig(theta=7e5, kind="llama3", factor=8.0, original_max_positions=64),
        ),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
            RopeConfig(theta=5e5, kind="yarn", factor=4.0, original_max_positions=64),
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 64, "truncate": False}},
            RopeConfig(theta=5e5, kind="yarn", factor=4.0, original_max_positions=64, truncate=False),
        ),
        (
            {
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 4.0,
                    "attention_factor": 1.5,
                    "beta_fast": 16,
                    "beta_slow": 2,
                    "mscale": 0.5,
                    "mscale_all_dim": 0.7,
                }
            },
            RopeConfig(
                theta=5e5,
                kind="yarn",
                factor=4.0,
                original_max_positions=256,
                attention_factor=1.5,
                beta_fast=16.0,
                beta_slow=2.0,
                mscale=0.5,
                mscale_all_dim=0.7,
            ),
        ),
    ],
)
def test_rope_in_both_layouts(change: dict[str, Any], expected: RopeConfig) -> None:
    assert read(LLAMA | change).rope == expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "'dynamic'"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "'longrope'"),
        ({"rope_scaling": {"type": "linear"}}, "factor must be"),
        ({"rope_scaling": {"type": "linear", "factor": -1}}, "factor must be"),
        ({"rope_scaling": {"type": "default", "mrope_section": [1]}}, "mrope_section"),
        ({"rope_scaling": LLAMA3_ROPE | {"high_freq_factor": 1.0}}, "high_freq_factor must be above"),
        ({"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": LLAMA3_ROPE}, "must not both"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "full_attention"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1"),
    ],
)
def test_other_ropes_are_refused_by_name(change: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read(LLAMA | change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "mistral"}, "one of llama, qwen2, qwen3, got 'mistral'"),
        ({"model_type": None}, "model_type must be"),
        ({"model_type": "gemma3_text"}, "Gemma models are not supported.*gemma3_text"),
        ({"model_type": "qwen3_moe"}, "mixture-of-experts.*qwen3_moe"),
        ({"model_type": "mixtral"}, "mixture-of-experts.*mixtral"),
        ({"num_experts": 8}, "mixture-of-experts.*num_experts"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"hidden_act": "gelu"}, "hidden_act must be silu, got 'gelu'"),
        ({"num_attention_heads": 3, "head_dim": 16}, "divisor of num_attention_heads"),
        ({"num_attention_heads": 6}, "hidden_size must be a multiple"),
        ({"head_dim": 15}, "even"),
        ({"vocab_size": 0}, "vocab_size must be an integer"),
        ({"vocab_size": True}, "vocab_size must be an integer"),
        ({"hidden_size": None}, "hidden_size must be an integer"),
        ({"hidden_size": "64"}, "hidden_size must be an integer"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"eos_token_id": 100}, "eos_token_id must be token ids below vocab_size"),
        ({"eos_token_id": [1, "2"]}, "eos_token_id must be"),
        ({"layer_types": ["full_attention"]}, "layer_types must be 2 long"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "got linear_attention"),
    ],
)
def test_what_is_not_supported_or_cannot_be_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read(LLAMA | change)


SLIDING = {"use_sliding_window": True, "sliding_window": 32, "layer_types": ["full_attention", "sliding_attention"]}


def test_a_sliding_window_in_use_is_refused_and_one_switched_off_is_not() -> None:
    with pytest.raises(CheckpointError, match="sliding-window"):
        read(QWEN3 | SLIDING)
    with pytest.raises(CheckpointError, match="sliding-window"):
        read(QWEN2 | {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1})
    assert read(QWEN2 | {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 28})
    assert read(QWEN3 | SLIDING | {"use_sliding_window": False})
    assert read(QWEN2 | {"use_sliding_window": False, "sliding_window": 32, "max_window_layers": 0})
    assert read(QWEN3 | SLIDING, windows_allowed=True)


def test_end_tokens_of_the_generation_config_come_first() -> None:
    assert read(LLAMA).eos_token_ids == (2,)
    assert read(LLAMA | {"eos_token_id": [3, 2, 3]}).eos_token_ids == (3, 2)
    assert read(LLAMA | {"eos_token_id": None}).eos_token_ids == ()
    assert read(LLAMA, generation={"eos_token_id": [5, 2]}).eos_token_ids == (5, 2)
    assert read(LLAMA, generation={"temperature": 0.6}).eos_token_ids == (2,)
    with pytest.raises(CheckpointError, match=r"generation_config\.json"):
        read(LLAMA, generation={"eos_token_id": -1})


def test_keys_a_target_may_have_besides_pass() -> None:
    assert read(LLAMA | {"pretraining_tp": 1, "anything": {}}) == read(LLAMA)
