"""A head's configuration from settings, and its files: DeepSpec's layout, or speculators' for a reduced vocabulary.

Embedding and lm_head are the target's and are not stored: the rows of a reduced vocabulary are found through `d2t`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from twinspark.actors.checkpoint.configs import DecoderConfig, HeadConfig, RopeConfig
from twinspark.actors.checkpoint.head_config import DEEPSPEC_ARCHITECTURE
from twinspark.actors.checkpoint.head_record import RECORD_NAME
from twinspark.cluster.small_files import write_whole
from twinspark.deploy.distill.settings import DistillSettings
from twinspark.deploy.distill.tensor_files import save_whole

WEIGHTS_NAME = "model.safetensors"


def head_config_of(settings: DistillSettings, target: DecoderConfig, mask_token_id: int) -> HeadConfig:
    """Raises ValueError for taps that the target does not have, and a draft vocabulary larger than its own."""
    deepest = target.num_layers - 2
    if max(settings.taps) > deepest:
        raise ValueError(f"taps must be layers from -1 to {deepest} of the target, got {max(settings.taps)}")
    if settings.draft_vocab > target.vocab_size:
        raise ValueError(
            f"--draft-vocab must be at most the vocabulary of {target.vocab_size}, got {settings.draft_vocab}"
        )
    decoder = DecoderConfig(
        family="qwen3",
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=settings.intermediate_size or target.intermediate_size,
        num_layers=settings.layers,
        num_heads=target.num_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        rms_norm_eps=target.rms_norm_eps,
        rope=RopeConfig(theta=target.rope.theta),
        max_positions=target.max_positions,
        qk_norm=True,
    )
    reduced = settings.draft_vocab not in (0, target.vocab_size)
    return HeadConfig(
        format="speculators" if reduced else "deepspec",
        decoder=decoder,
        block_size=settings.block_size,
        anchor_predicts=True,
        tap_ids=settings.taps,
        mask_token_id=mask_token_id,
        markov_kind=settings.markov_head if settings.markov_rank else "none",
        markov_rank=settings.markov_rank,
        has_confidence=settings.confidence != "none",
        confidence_uses_markov=settings.confidence == "markov",
        draft_vocab_size=settings.draft_vocab if reduced else target.vocab_size,
        num_target_layers=target.num_layers,
        layer_windows=(None,) * settings.layers,
        windows_are_causal=False,
    )


def most_frequent(ids: Tensor, vocab_size: int, keep: int) -> Tensor:
    """The `keep` most frequent of `ids`, ascending, int64; of equals the lower ids."""
    counts = torch.bincount(ids.flatten().to(torch.int64), minlength=vocab_size)
    order = torch.argsort(counts, descending=True, stable=True)[:keep]
    return order.sort().values


def write_head(
    folder: Path,
    config: HeadConfig,
    weights: Mapping[str, Tensor],
    target_ids: Tensor | None,
    dtype: torch.dtype,
    record: Mapping[str, Any],
) -> None:
    """The weights come last: without them nothing looks like a head. Raises OSError where the disk is full."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / WEIGHTS_NAME).unlink(missing_ok=True)
    written = _speculators(config) if config.reduced_vocab else _deepspec(config)
    write_whole(
        folder / "config.json", json.dumps(written | {"torch_dtype": str(dtype).removeprefix("torch.")}, indent=1)
    )
    write_whole(folder / RECORD_NAME, json.dumps(record, indent=1) + "\n")
    tensors = {name: value.to(dtype) for name, value in weights.items()}
    if target_ids is not None:
        tensors["d2t"] = target_ids - torch.arange(len(target_ids))
        tensors["t2d"] = torch.zeros(config.decoder.vocab_size, dtype=torch.bool).index_fill_(0, target_ids, True)
    save_whole(tensors, folder / WEIGHTS_NAME, {"format": "pt"})


def _decoder(config: DecoderConfig) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope.theta,
        "hidden_act": "silu",
        "attention_bias": False,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_positions,
        "tie_word_embeddings": False,
        "layer_types": ["full_attention"] * config.num_layers,
    }


def _head(config: HeadConfig) -> dict[str, Any]:
    return {
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "markov_rank": config.markov_rank,
        "markov_head_type": config.markov_kind if config.markov_rank else "vanilla",
        "enable_confidence_head": config.has_confidence,
        "confidence_head_with_markov": config.confidence_uses_markov,
    }


def _deepspec(config: HeadConfig) -> dict[str, Any]:
    return {
        "architectures": [DEEPSPEC_ARCHITECTURE],
        **_decoder(config.decoder),
        **_head(config),
        "num_target_layers": config.num_target_layers,
        "target_layer_ids": list(config.tap_ids),
    }


def _speculators(config: HeadConfig) -> dict[str, Any]:
    return {
        "architectures": ["DSparkDraftModel"],
        "speculators_model_type": "dspark",
        "transformer_layer_config": _decoder(config.decoder),
        **_head(config),
        "draft_vocab_size": config.draft_vocab_size,
        "aux_hidden_state_layer_ids": [tap + 1 for tap in config.tap_ids],
        "sample_from_anchor": True,
        "sliding_window_non_causal": True,
        "tie_word_embeddings": False,
    }
