"""Sizes of opened checkpoints, counted from their headers (safetensors and GGUF alike). Loads nothing, needs no torch.

A config alone gives the same numbers (`configured_model_size`): for planning before any weights are there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from twinspark.actors.checkpoint.configs import DecoderConfig, HeadConfig
from twinspark.actors.checkpoint.source import HeadCheckpoint, TargetCheckpoint, TensorInfo
from twinspark.planner.sizes import HeadSize, LayerSize, ModelSize


def model_size(target: TargetCheckpoint) -> ModelSize:
    """Of a target, as its header has it. A stored lm_head of a tied model is never read, and not counted."""
    config, infos = target.config, target.tensors.infos()
    lm_head = 0 if config.tie_embeddings else _elements([infos["lm_head.weight"]])
    return ModelSize(
        vocab_size=config.vocab_size,
        num_layers=config.num_layers,
        layer=_layer(config, infos, "model.layers.0."),
        embedding_elements=_elements([infos["model.embed_tokens.weight"]]),
        lm_head_elements=lm_head,
        final_norm_elements=_elements([infos["model.norm.weight"]]),
        stored_in_blocks=any("Q" in info.dtype for info in infos.values()),
    )


def head_size(head: HeadCheckpoint) -> HeadSize:
    """Of a head, as its header has it: what it leaves out is the target's."""
    config, infos = head.config, head.tensors.infos()

    def count(*names: str) -> int:
        return _elements([infos[name] for name in names if name in infos])

    # The rows of a reduced vocabulary are a copy, also where they are the target's.
    gathered = config.draft_vocab_size * config.decoder.hidden_size if config.reduced_vocab else 0
    inner = [f"markov_head.{name}.{part}" for name in ("gate_proj", "joint_proj") for part in ("weight", "bias")]
    return HeadSize(
        vocab_size=config.decoder.vocab_size,
        draft_vocab_size=config.draft_vocab_size,
        num_layers=config.decoder.num_layers,
        layer=_layer(config.decoder, infos, "layers.0."),
        block_size=config.block_size,
        num_taps=len(config.tap_ids),
        num_trunk_layers=config.num_trunk_layers,
        fc_elements=count("fc.weight"),
        norm_elements=count("hidden_norm.weight", "norm.weight"),
        embedding_elements=count("embed_tokens.weight"),
        lm_head_elements=count("lm_head.weight") or gathered,
        markov_rank=config.markov_rank if config.markov_kind != "none" else 0,
        markov_w1_elements=count("markov_head.markov_w1.weight"),
        markov_w2_elements=count("markov_head.markov_w2.weight"),
        markov_inner_elements=count(*inner),
        confidence_elements=count("confidence_head.proj.weight", "confidence_head.proj.bias"),
        maps_ids=config.reduced_vocab,
        causal_windows=_masks_its_block(config),
    )


def configured_model_size(config: DecoderConfig, *, stored_in_blocks: bool = False) -> ModelSize:
    """What a checkpoint of this config must hold."""
    return ModelSize.of(
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        vocab_size=config.vocab_size,
        head_dim=config.head_dim,
        tied=config.tie_embeddings,
        qkv_bias=config.qkv_bias,
        output_bias=config.output_bias,
        mlp_bias=config.mlp_bias,
        qk_norm=config.qk_norm,
        stored_in_blocks=stored_in_blocks,
    )


def configured_head_size(config: HeadConfig) -> HeadSize:
    """What a checkpoint of this config must hold: embedding, and a full lm_head, left to the target."""
    return HeadSize.of(
        layer=configured_model_size(config.decoder).layer,
        num_layers=config.decoder.num_layers,
        tap_ids=config.tap_ids,
        markov_rank=config.markov_rank,
        block_size=config.block_size,
        vocab_size=config.decoder.vocab_size,
        draft_vocab_size=config.draft_vocab_size,
        markov_kind=config.markov_kind,
        has_confidence=config.has_confidence,
        confidence_uses_markov=config.confidence_uses_markov,
        causal_windows=_masks_its_block(config),
    )


def _layer(config: DecoderConfig, infos: dict[str, TensorInfo], prefix: str) -> LayerSize:
    """One layer stands for all: opening has checked that they have the same shapes."""
    found = [info for name, info in infos.items() if name.startswith(prefix) and "rotary" not in name]
    matrices = [info for info in found if len(info.shape) == 2]
    return replace(
        configured_model_size(config).layer,
        matrix_elements=_elements(matrices),
        matrix_rows=sum(info.shape[0] for info in matrices),
        vector_elements=_elements(info for info in found if len(info.shape) == 1),
    )


def _masks_its_block(config: HeadConfig) -> bool:
    return config.windows_are_causal and any(window is not None for window in config.layer_windows)


def _elements(infos: Iterable[TensorInfo]) -> int:
    return sum(math.prod(info.shape) for info in infos)
