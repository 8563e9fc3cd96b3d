"""Tiny random targets of every family and rope scaling, made and saved by transformers: what our network must equal."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

VOCAB, NUM_LAYERS, MAX_POSITIONS, ORIGINAL_POSITIONS = 97, 3, 128, 32
FAMILIES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


@dataclass(frozen=True)
class TinyCase:
    """A family with settings of its config class that differ from the common ones; `rope` goes into rope_parameters."""

    family: str
    settings: dict[str, object] = field(default_factory=dict)
    rope: dict[str, object] = field(default_factory=dict)


def _yarn(**more: object) -> dict[str, object]:
    return {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL_POSITIONS,
        **more,
    }


CASES = {
    "llama": TinyCase("llama"),
    "llama-tied": TinyCase("llama", {"tie_word_embeddings": True}),
    "llama-biases": TinyCase("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-no-groups": TinyCase("llama", {"num_key_value_heads": 4}),
    "llama-linear": TinyCase("llama", rope={"rope_type": "linear", "factor": 3.0}),
    "llama-llama3": TinyCase(
        "llama",
        rope={
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": ORIGINAL_POSITIONS,
        },
    ),
    "llama-yarn": TinyCase("llama", rope=_yarn()),
    "llama-yarn-attention-factor": TinyCase("llama", rope=_yarn(attention_factor=0.7)),
    "llama-yarn-mscale": TinyCase("llama", rope=_yarn(mscale=1.3, mscale_all_dim=0.6, beta_fast=16.0, beta_slow=2.0)),
    "llama-yarn-untruncated": TinyCase("llama", rope=_yarn(truncate=False)),
    "qwen2": TinyCase("qwen2"),
    "qwen2-yarn": TinyCase("qwen2", rope=_yarn()),
    "qwen3": TinyCase("qwen3"),
    "qwen3-tied": TinyCase("qwen3", {"tie_word_embeddings": True}),
    "qwen3-biases": TinyCase("qwen3", {"attention_bias": True}),
}


def save_tiny(name: str, folder: Path) -> Any:
    """Make the model of `CASES[name]` and save it in `folder`; returns the transformers model (float32, eval).

    Every parameter is random, biases and norm gains too: one that was ignored or taken twice would show.
    """
    case = CASES[name]
    config_class, model_class = FAMILIES[case.family]
    settings: dict[str, object] = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,  # times 4 heads is not the hidden size
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, **case.rope},
        "tie_word_embeddings": False,
    }
    model = model_class(config_class(**settings | case.settings)).eval()
    random = torch.Generator().manual_seed(20)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            spread = 0.1 if parameter.ndim == 1 else 1.5 * parameter.shape[-1] ** -0.5
            centre = 1.0 if parameter_name.endswith("norm.weight") else 0.0
            parameter.copy_(centre + spread * torch.randn(parameter.shape, generator=random))
    model.save_pretrained(folder)
    return model
