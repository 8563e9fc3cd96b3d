"""A DSpark head out of its config.json, in DeepSpec's layout or speculators'. Reads no file and no tensor.

A key that is not known is an error: a head whose setting was dropped runs, and is merely never right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from twinspark.actors.checkpoint.configs import DecoderConfig, HeadConfig, HeadFormat, MarkovKind
from twinspark.actors.checkpoint.hf_config import attention_windows, decoder_config
from twinspark.actors.checkpoint.json_fields import Fields
from twinspark.actors.errors import CheckpointError

MARKOV_KINDS = ("vanilla", "gated", "rnn")
DEEPSPEC_ARCHITECTURE = "Qwen3DSparkModel"

DECODER_KEYS = frozenset(
    [
        "model_type",
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "hidden_act",
        "rms_norm_eps",
        "attention_bias",
        "tie_word_embeddings",
        "max_position_embeddings",
        "rope_theta",
        "rope_parameters",
        "rope_scaling",
        "partial_rotary_factor",
        "original_max_position_embeddings",
        "layer_types",
        "sliding_window",
        "use_sliding_window",
        "max_window_layers",
        "eos_token_id",
        "quantization_config",
    ]
)
# Read by nobody at inference: bookkeeping of transformers, and settings of a training run.
INERT_KEYS = frozenset(
    [
        "architectures",
        "_name_or_path",
        "name_or_path",
        "_attn_implementation",
        "attn_implementation",
        "auto_map",
        "dtype",
        "torch_dtype",
        "transformers_version",
        "attention_dropout",
        "initializer_range",
        "use_cache",
        "bos_token_id",
        "pad_token_id",
        "num_anchors",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "chunk_size_feed_forward",
        "is_encoder_decoder",
        "problem_type",
        "id2label",
        "label2id",
        "ce_loss_alpha",
        "l1_loss_alpha",
        "confidence_head_alpha",
        "loss_decay_gamma",
    ]
)
HEAD_KEYS = frozenset(
    [
        "block_size",
        "mask_token_id",
        "markov_rank",
        "markov_head_type",
        "enable_confidence_head",
        "confidence_head_with_markov",
    ]
)
DEEPSPEC_KEYS = DECODER_KEYS | INERT_KEYS | HEAD_KEYS | {"target_layer_ids", "num_target_layers"}
SPECULATORS_KEYS = (
    INERT_KEYS
    | HEAD_KEYS
    | frozenset(
        [
            "speculators_model_type",
            "speculators_version",
            "speculators_config",
            "transformer_layer_config",
            "draft_vocab_size",
            "aux_hidden_state_layer_ids",
            "sample_from_anchor",
            "sliding_window_non_causal",
            "target_hidden_size",
            "tie_word_embeddings",
            "quantization_config",
            "projector_type",
            "shift_label",
        ]
    )
    # Of the "domino" projector, which is refused, and of a training loss.
    | frozenset(
        ["pure_draft_prefix_len", "emb_dim", "gru_hidden_dim", "lambda_base_start", "lambda_base_decay_ratio", "auf"]
    )
)


def head_config(config: Mapping[str, object], where: str) -> HeadConfig:
    """The head that `config` describes, with tap ids in DeepSpec's convention whatever the format.

    Raises CheckpointError for an unknown key, for a kind of head that is not supported (Gemma's among them, by
    name) and for values that cannot be.
    """
    fields = Fields(config, where)
    architectures = fields.texts("architectures")
    gemma = [name for name in (*architectures, str(config.get("model_type", ""))) if "gemma" in name.lower()]
    if gemma:
        raise CheckpointError(f"{where}: Gemma heads are not supported, got {gemma[0]}")
    if fields.has("speculators_model_type"):
        return _speculators(fields)
    if architectures != (DEEPSPEC_ARCHITECTURE,):
        raise fields.error("architectures", f"{DEEPSPEC_ARCHITECTURE} (or speculators_model_type dspark)")
    return _deepspec(fields)


def _deepspec(fields: Fields) -> HeadConfig:
    fields.refuse_unknown(DEEPSPEC_KEYS)
    decoder, windows = _backbone(fields)
    num_target_layers = fields.integer("num_target_layers") if fields.has("num_target_layers") else None
    return _head(
        fields,
        format="deepspec",
        decoder=decoder,
        anchor_predicts=True,
        tap_ids=_tap_ids(fields, "target_layer_ids", 0, num_target_layers),
        draft_vocab_size=decoder.vocab_size,
        num_target_layers=num_target_layers,
        layer_windows=windows,
        windows_are_causal=False,
    )


def _speculators(fields: Fields) -> HeadConfig:
    if fields.text("speculators_model_type") != "dspark":
        raise fields.error("speculators_model_type", "dspark")
    fields.refuse_unknown(SPECULATORS_KEYS)
    if fields.text("projector_type", "dflash") != "dflash":
        raise fields.error("projector_type", "dflash")
    if fields.boolean("shift_label", False):
        raise fields.error("shift_label", "false")
    layers = fields.object("transformer_layer_config")
    if layers is None:
        raise fields.error("transformer_layer_config", "an object")
    layers.refuse_unknown(DECODER_KEYS | INERT_KEYS)
    if fields.has("quantization_config"):
        raise fields.error("quantization_config", "absent (weights in float32, float16 or bfloat16)")
    decoder, windows = _backbone(layers)
    if fields.integer("target_hidden_size", decoder.hidden_size) != decoder.hidden_size:
        raise fields.error("target_hidden_size", f"the head's own hidden size, {decoder.hidden_size}")
    return _head(
        fields,
        format="speculators",
        decoder=decoder,
        anchor_predicts=fields.boolean("sample_from_anchor"),
        tap_ids=_tap_ids(fields, "aux_hidden_state_layer_ids", 1, None),
        draft_vocab_size=fields.integer("draft_vocab_size", high=decoder.vocab_size),
        num_target_layers=None,
        layer_windows=windows,
        windows_are_causal=not fields.boolean("sliding_window_non_causal", False),
    )


def _head(
    fields: Fields,
    *,
    format: HeadFormat,
    decoder: DecoderConfig,
    anchor_predicts: bool,
    tap_ids: tuple[int, ...],
    draft_vocab_size: int,
    num_target_layers: int | None,
    layer_windows: tuple[int | None, ...],
    windows_are_causal: bool,
) -> HeadConfig:
    """What both formats say alike, added to what they say differently."""
    if fields.boolean("tie_word_embeddings", False):
        raise fields.error("tie_word_embeddings", "false (a head's embeddings are never its lm_head)")
    block_size = fields.integer("block_size", low=1 if anchor_predicts else 2, high=4096)
    rank = fields.integer("markov_rank", low=0)
    kind = fields.text("markov_head_type") if rank else "none"
    if rank and kind not in MARKOV_KINDS:
        raise fields.error("markov_head_type", f"one of {', '.join(MARKOV_KINDS)}")
    has_confidence = fields.boolean("enable_confidence_head")
    with_markov = has_confidence and fields.boolean("confidence_head_with_markov")
    return HeadConfig(
        format=format,
        decoder=decoder,
        block_size=block_size,
        anchor_predicts=anchor_predicts,
        tap_ids=tap_ids,
        mask_token_id=fields.integer("mask_token_id", low=0, high=decoder.vocab_size - 1),
        markov_kind=cast(MarkovKind, kind),
        markov_rank=rank,
        has_confidence=has_confidence,
        # Rank 0 leaves no Markov row to look at, whatever the flag says: the tensor's width then agrees.
        confidence_uses_markov=with_markov and rank > 0,
        draft_vocab_size=draft_vocab_size,
        num_target_layers=num_target_layers,
        layer_windows=layer_windows,
        windows_are_causal=windows_are_causal,
    )


def _backbone(fields: Fields) -> tuple[DecoderConfig, tuple[int | None, ...]]:
    if fields.text("model_type") != "qwen3":
        raise fields.error("model_type", "qwen3 (the layers of every supported head)")
    decoder = decoder_config(fields.values, fields.where, windows_allowed=True)
    return decoder, attention_windows(fields)


def _tap_ids(fields: Fields, key: str, offset: int, num_target_layers: int | None) -> tuple[int, ...]:
    """Tap ids in the order given, less the format's `offset`; -1 is the embedding output."""
    ids = tuple(value - offset for value in fields.integers(key, low=offset - 1))
    if not ids or len(set(ids)) != len(ids):
        raise fields.error(key, "a list of distinct layer ids, at least one")
    if num_target_layers is not None and max(ids) > num_target_layers - 2:
        # The last layer's raw output was never recorded: transformers gives it normed there.
        raise fields.error(key, f"below the last layer of the {num_target_layers} (num_target_layers)")
    return ids
