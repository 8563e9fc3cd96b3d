"""Rotary settings out of a Hugging Face config, in the old layout and the new one. Computes no frequency."""

from __future__ import annotations

from twinspark.actors.checkpoint.configs import RopeConfig
from twinspark.actors.checkpoint.json_fields import Fields
from twinspark.actors.errors import CheckpointError

DEFAULT_THETA = 10000.0  # what transformers takes for these families when a config names none
KINDS = ("default", "linear", "llama3", "yarn")
KNOWN_KEYS = frozenset(
    [
        "rope_type",
        "type",
        "rope_theta",
        "partial_rotary_factor",
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "attention_factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
        "finetuned",
    ]
)


def rope_config(config: Fields, max_positions: int) -> RopeConfig:
    """From `rope_parameters` (theta inside), or `rope_scaling` with `rope_theta` beside it.

    Raises CheckpointError for a scaling that is not supported, by name.
    """
    scaling = _scaling(config)
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind not in KINDS:
        raise CheckpointError(f"{scaling.where}: the rope type must be one of {', '.join(KINDS)}, got {kind!r}")
    scaling.refuse_unknown(KNOWN_KEYS)
    for fields in (config, scaling):
        if fields.has("partial_rotary_factor") and fields.number("partial_rotary_factor") != 1.0:
            raise fields.error("partial_rotary_factor", "1 (all of a head is rotated)")
    theta = scaling.number("rope_theta", config.number("rope_theta", DEFAULT_THETA))
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, kind="linear", factor=scaling.number("factor"))
    original = _original_positions(config, scaling, max_positions)
    if kind == "llama3":
        low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
        if high <= low:
            raise scaling.error("high_freq_factor", f"above low_freq_factor ({low:g})")
        return RopeConfig(
            theta=theta,
            kind="llama3",
            factor=scaling.number("factor"),
            low_freq_factor=low,
            high_freq_factor=high,
            original_max_positions=original,
        )
    return _yarn(scaling, theta, original, max_positions)


def _yarn(scaling: Fields, theta: float, original: int, max_positions: int) -> RopeConfig:
    return RopeConfig(
        theta=theta,
        kind="yarn",
        factor=scaling.number("factor", max_positions / original),
        original_max_positions=original,
        beta_fast=scaling.number("beta_fast", RopeConfig.beta_fast),
        beta_slow=scaling.number("beta_slow", RopeConfig.beta_slow),
        attention_factor=_optional_number(scaling, "attention_factor"),
        mscale=_optional_number(scaling, "mscale"),
        mscale_all_dim=_optional_number(scaling, "mscale_all_dim"),
        truncate=scaling.boolean("truncate", True),
    )


def _scaling(config: Fields) -> Fields:
    old, new = config.object("rope_scaling"), config.object("rope_parameters")
    if old and new and old.values and new.values and dict(old.values) != dict(new.values):
        raise CheckpointError(f"{config.where}: rope_scaling and rope_parameters must not both be set and differ")
    chosen = old if old and old.values else new
    return chosen if chosen is not None else Fields({}, config.where)


def _original_positions(config: Fields, scaling: Fields, max_positions: int) -> int:
    # The same key at the top wins, as in transformers; without either, the model's own maximum is meant.
    inner = scaling.integer("original_max_position_embeddings", max_positions)
    return config.integer("original_max_position_embeddings", inner)


def _optional_number(fields: Fields, key: str) -> float | None:
    # A 0 here means "unset": that is how the formula in transformers reads it.
    return fields.number(key) if fields.has(key) and fields.values[key] != 0 else None
