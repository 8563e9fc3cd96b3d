"""Which tensors a configuration implies, with their shapes, and whether a source holds them. Reads headers only."""

from __future__ import annotations

from collections.abc import Mapping

from twinspark.actors.checkpoint.configs import DecoderConfig, HeadConfig
from twinspark.actors.checkpoint.source import TensorInfo
from twinspark.actors.errors import CheckpointError

Shapes = dict[str, tuple[int, ...]]

INTEGER_DTYPES = {"d2t": ("I64",), "t2d": ("BOOL",)}  # every other tensor holds real numbers
# Written by some savers and derived from the config, or copies of the target's own used in training.
INERT_ENDINGS = ("rotary_emb.inv_freq", "verifier_lm_head.weight", "verifier_norm.weight")


def target_shapes(config: DecoderConfig) -> tuple[Shapes, Shapes]:
    """Required and optional tensors of a target."""
    vocabulary = (config.vocab_size, config.hidden_size)
    required: Shapes = {"model.embed_tokens.weight": vocabulary}
    for layer in range(config.num_layers):
        required |= _layer_shapes(config, f"model.layers.{layer}.")
    required["model.norm.weight"] = (config.hidden_size,)
    optional: Shapes = {}
    (optional if config.tie_embeddings else required)["lm_head.weight"] = vocabulary
    return required, optional


def head_shapes(config: HeadConfig) -> tuple[Shapes, Shapes]:
    """Required and optional tensors of a head. Embeddings and `lm_head` may be left to the target."""
    decoder, rank = config.decoder, config.markov_rank
    hidden, vocab, draft_vocab = decoder.hidden_size, decoder.vocab_size, config.draft_vocab_size
    required: Shapes = {
        "fc.weight": (hidden, len(config.tap_ids) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for layer in range(decoder.num_layers):
        required |= _layer_shapes(decoder, f"layers.{layer}.")
    if config.markov_kind != "none":
        required["markov_head.markov_w1.weight"] = (vocab, rank)
        required["markov_head.markov_w2.weight"] = (draft_vocab, rank)
    if config.markov_kind == "gated":
        required["markov_head.gate_proj.weight"] = (rank, hidden + rank)
        required["markov_head.gate_proj.bias"] = (rank,)
    if config.markov_kind == "rnn":
        required["markov_head.joint_proj.weight"] = (3 * rank, 2 * rank + hidden)
        required["markov_head.joint_proj.bias"] = (3 * rank,)
    if config.has_confidence:
        required["confidence_head.proj.weight"] = (1, hidden + (rank if config.confidence_uses_markov else 0))
        required["confidence_head.proj.bias"] = (1,)
    optional: Shapes = {"embed_tokens.weight": (vocab, hidden), "t2d": (vocab,)}
    optional["lm_head.weight"] = (draft_vocab, hidden)
    (required if config.reduced_vocab else optional)["d2t"] = (draft_vocab,)
    return required, optional


def check_tensors(infos: Mapping[str, TensorInfo], required: Shapes, optional: Shapes, where: str) -> None:
    """Raises CheckpointError for the first tensor that is missing, misshaped, of a wrong kind, or that nobody reads."""
    for name, shape in (required | optional).items():
        info = infos.get(name)
        if info is None:
            if name in required:
                raise CheckpointError(f"{where} must hold {name} {list(shape)}, as its config implies, and lacks it")
            continue
        if info.shape != shape:
            raise CheckpointError(f"{where}: {name} must have the shape {list(shape)}, got {list(info.shape)}")
        wanted = INTEGER_DTYPES.get(name)
        if wanted is not None and info.dtype not in wanted:
            raise CheckpointError(f"{where}: {name} must be stored as {' or '.join(wanted)}, got {info.dtype}")
        if wanted is None and info.dtype in ("I64", "I32", "BOOL"):
            raise CheckpointError(f"{where}: {name} must hold real numbers, got {info.dtype}")
    for name in infos:
        if name not in required and name not in optional and not name.endswith(INERT_ENDINGS):
            raise CheckpointError(f"{where}: every tensor must be one its config implies, got {name}")


def _layer_shapes(config: DecoderConfig, prefix: str) -> Shapes:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    matrices = {
        "self_attn.q_proj": (queries, hidden, config.qkv_bias),
        "self_attn.k_proj": (keys, hidden, config.qkv_bias),
        "self_attn.v_proj": (keys, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, queries, config.output_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    shapes: Shapes = {prefix + "input_layernorm.weight": (hidden,)}
    for name, (rows, columns, has_bias) in matrices.items():
        shapes[f"{prefix}{name}.weight"] = (rows, columns)
        if has_bias:
            shapes[f"{prefix}{name}.bias"] = (rows,)
    if config.qk_norm:
        shapes[prefix + "self_attn.q_norm.weight"] = (config.head_dim,)
        shapes[prefix + "self_attn.k_norm.weight"] = (config.head_dim,)
    shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
    return shapes
