"""A dense decoder out of a Hugging Face config.json: llama, qwen2 and qwen3. Reads no file and no tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from twinspark.actors.checkpoint.configs import DecoderConfig, Family
from twinspark.actors.checkpoint.hf_rope import rope_config
from twinspark.actors.checkpoint.json_fields import Fields
from twinspark.actors.errors import CheckpointError

FAMILIES = ("llama", "qwen2", "qwen3")
DEFAULT_EPS = 1e-6  # these three are the defaults of the config classes in transformers
DEFAULT_MAX_POSITIONS = {"llama": 2048, "qwen2": 32768, "qwen3": 32768}
QWEN3_HEAD_DIM = 128
MOE_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_intermediate_size")


def decoder_config(
    config: Mapping[str, object],
    where: str,
    *,
    generation: Mapping[str, object] | None = None,
    windows_allowed: bool = False,
) -> DecoderConfig:
    """The decoder that `config` describes. `generation` is generation_config.json: its end tokens replace the config's.

    Raises CheckpointError, naming it, for a family, activation, quantisation or (unless `windows_allowed`) sliding
    window that is not supported, and for values that cannot be. Keys it does not know pass.
    """
    fields = Fields(config, where)
    family = _family(fields)
    _refuse_quantised(fields)
    activation = fields.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise fields.error("hidden_act", "silu")
    if not windows_allowed and any(attention_windows(fields)):
        raise CheckpointError(f"{where}: a target must use full attention in every layer, got sliding-window attention")
    hidden, heads, kv_heads, head_dim = _head_sizes(fields, family)
    max_positions = fields.integer("max_position_embeddings", DEFAULT_MAX_POSITIONS[family])
    vocab = fields.integer("vocab_size", low=2)
    attention_bias = family != "qwen2" and fields.boolean("attention_bias", False)
    return DecoderConfig(
        family=family,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers", high=10_000),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=fields.number("rms_norm_eps", DEFAULT_EPS),
        rope=rope_config(fields, max_positions),
        max_positions=max_positions,
        tie_embeddings=fields.boolean("tie_word_embeddings", False),
        qkv_bias=family == "qwen2" or attention_bias,
        output_bias=attention_bias,
        mlp_bias=family == "llama" and fields.boolean("mlp_bias", False),
        qk_norm=family == "qwen3",
        eos_token_ids=_eos_ids(fields, generation, vocab),
    )


def attention_windows(fields: Fields) -> tuple[int | None, ...]:
    """Per layer: the sliding window in use, or None for full attention."""
    num_layers = fields.integer("num_hidden_layers", high=10_000)
    types = fields.texts("layer_types")
    # Where the switch is absent (llama has none) the list of layer types alone decides.
    switched_off = fields.has("use_sliding_window") and not fields.boolean("use_sliding_window")
    if not types:
        if switched_off or not fields.has("use_sliding_window") or not fields.has("sliding_window"):
            return (None,) * num_layers
        first = fields.integer("max_window_layers", 28, low=0)
        return tuple(fields.integer("sliding_window") if i >= first else None for i in range(num_layers))
    if len(types) != num_layers:
        raise fields.error("layer_types", f"{num_layers} long (num_hidden_layers)")
    foreign = sorted(set(types) - {"full_attention", "sliding_attention"})
    if foreign:
        raise CheckpointError(
            f"{fields.where}: layer_types must be full_attention or sliding_attention, got {', '.join(foreign)}"
        )
    if switched_off:
        return (None,) * num_layers
    return tuple(fields.integer("sliding_window") if kind == "sliding_attention" else None for kind in types)


def _family(fields: Fields) -> Family:
    kind = fields.text("model_type")
    if "gemma" in kind:
        raise CheckpointError(f"{fields.where}: Gemma models are not supported, got model_type {kind!r}")
    experts = [key for key in MOE_KEYS if fields.values.get(key)]
    if "moe" in kind or kind == "mixtral" or (kind in FAMILIES and experts):
        shown = ", ".join([repr(kind), *experts])
        raise CheckpointError(f"{fields.where}: mixture-of-experts models are not supported, got model_type {shown}")
    if kind not in FAMILIES:
        raise fields.error("model_type", f"one of {', '.join(FAMILIES)}")
    return cast(Family, kind)


def _refuse_quantised(fields: Fields) -> None:
    for key in ("quantization_config", "quantization", "compression_config"):
        if fields.has(key):
            value = fields.values[key]
            method = value.get("quant_method", "unnamed") if isinstance(value, dict) else value
            raise CheckpointError(
                f"{fields.where}: weights must be float32, float16 or bfloat16, got {key} ({method}); "
                "quantised targets are read from GGUF files only"
            )


def _head_sizes(fields: Fields, family: Family) -> tuple[int, int, int, int]:
    """Hidden size, query heads, key/value heads, head dimension."""
    hidden = fields.integer("hidden_size")
    heads = fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.error("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    if fields.has("head_dim"):
        head_dim = fields.integer("head_dim")
    elif family == "qwen3":
        head_dim = QWEN3_HEAD_DIM
    elif hidden % heads:
        raise fields.error("hidden_size", f"a multiple of num_attention_heads ({heads}) where head_dim is absent")
    else:
        head_dim = hidden // heads
    if head_dim % 2:
        raise CheckpointError(f"{fields.where}: head_dim must be even (rotary embedding), got {head_dim}")
    return hidden, heads, kv_heads, head_dim


def _eos_ids(fields: Fields, generation: Mapping[str, object] | None, vocab: int) -> tuple[int, ...]:
    source = fields
    if generation is not None and generation.get("eos_token_id") is not None:
        source = Fields(generation, f"{fields.where} (generation_config.json)")
    value = source.values.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab:
            raise source.error("eos_token_id", f"token ids below vocab_size ({vocab})")
    return tuple(dict.fromkeys(ids))
