"""A llama decoder's sizes out of GGUF metadata. Reads no tensor; the tokenizer's keys are not its business."""

from __future__ import annotations

from pathlib import Path

from twinspark.actors.checkpoint.configs import DecoderConfig, RopeConfig
from twinspark.actors.checkpoint.gguf_source import GgufSource
from twinspark.actors.checkpoint.json_fields import Fields

PREFIX = "llama."
SCALING = "llama.rope.scaling."
# Any other key under "llama." may change what the model computes: it is refused by name.
KNOWN_KEYS = frozenset(
    PREFIX + key
    for key in [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "vocab_size",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.layer_norm_rms_epsilon",
        "attention.key_length",
        "attention.value_length",
        "rope.freq_base",
        "rope.dimension_count",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
        "rope.scaling.finetuned",
        "expert_count",
        "expert_used_count",
        "tensor_data_layout",
    ]
)
EOS_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")


def gguf_config(source: GgufSource | str | Path) -> DecoderConfig:
    """The decoder that a GGUF file of the llama architecture describes.

    Raises CheckpointError for an unknown llama key, an unsupported rope scaling (by name) or an impossible value.
    """
    if not isinstance(source, GgufSource):
        source = GgufSource(source)
    metadata = source.metadata()
    fields = Fields(metadata, str(source.path))
    Fields({key: value for key, value in metadata.items() if key.startswith(PREFIX)}, fields.where).refuse_unknown(
        KNOWN_KEYS
    )
    shapes = {name: info.shape for name, info in source.infos().items()}
    heads, kv_heads, head_dim = _head_sizes(fields)
    max_positions = fields.integer("llama.context_length")
    vocab = fields.integer("llama.vocab_size", shapes.get("model.embed_tokens.weight", (0,))[0] or None, low=2)
    first = "model.layers.0."
    return DecoderConfig(
        family="llama",
        vocab_size=vocab,
        hidden_size=fields.integer("llama.embedding_length"),
        intermediate_size=fields.integer("llama.feed_forward_length"),
        num_layers=fields.integer("llama.block_count", high=10_000),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=fields.number("llama.attention.layer_norm_rms_epsilon"),
        rope=_rope(fields, max_positions),
        max_positions=max_positions,
        tie_embeddings="lm_head.weight" not in shapes,
        qkv_bias=first + "self_attn.q_proj.bias" in shapes,
        output_bias=first + "self_attn.o_proj.bias" in shapes,
        mlp_bias=first + "mlp.up_proj.bias" in shapes,
        eos_token_ids=tuple(
            dict.fromkeys(fields.integer(key, low=0, high=vocab - 1) for key in EOS_KEYS if fields.has(key))
        ),
    )


def _head_sizes(fields: Fields) -> tuple[int, int, int]:
    """Query heads, key/value heads, head dimension."""
    hidden, heads = fields.integer("llama.embedding_length"), fields.integer("llama.attention.head_count")
    kv_heads = fields.integer("llama.attention.head_count_kv", heads)
    if heads % kv_heads:
        raise fields.error("llama.attention.head_count_kv", f"a divisor of the {heads} heads")
    if not fields.has("llama.attention.key_length") and hidden % heads:
        raise fields.error("llama.embedding_length", f"a multiple of the {heads} heads")
    head_dim = fields.integer("llama.attention.key_length", hidden // heads or 1)
    for key in ("llama.attention.value_length", "llama.rope.dimension_count"):
        if fields.integer(key, head_dim) != head_dim:
            raise fields.error(key, f"the head dimension {head_dim}")
    if head_dim % 2:
        raise fields.error("llama.attention.key_length", f"even (rotary embedding; the head dimension is {head_dim})")
    return heads, kv_heads, head_dim


def _rope(fields: Fields, max_positions: int) -> RopeConfig:
    theta = fields.number("llama.rope.freq_base", RopeConfig.theta)
    kind = fields.text(SCALING + "type", "none")
    if kind == "none":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, kind="linear", factor=fields.number(SCALING + "factor"))
    if kind == "yarn":
        return RopeConfig(
            theta=theta,
            kind="yarn",
            factor=fields.number(SCALING + "factor"),
            original_max_positions=fields.integer(SCALING + "original_context_length", max_positions),
        )
    raise fields.error(SCALING + "type", "none, linear or yarn")
