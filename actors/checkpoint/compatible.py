"""Whether a head belongs to a target, told from configs, headers and a handful of embedding rows."""

from __future__ import annotations

import torch

from twinspark.actors.checkpoint.source import HeadCheckpoint, TargetCheckpoint
from twinspark.actors.errors import MismatchError

NUM_COMPARED_ROWS = 16
# Largest relative distance of two rows that still are copies: rounding to 16 bits, or to the blocks of a 4-bit GGUF
# (about 0.08 in Q4_0). Rows of two different models lie 1 to 1.4 apart.
FLOAT_TOLERANCE, QUANTISED_TOLERANCE = 1e-2, 0.15
FLOAT_DTYPES = ("F64", "F32", "F16", "BF16")


def check_head_fits(head: HeadCheckpoint, target: TargetCheckpoint) -> None:
    """Raises MismatchError, with both values, unless the head was made for this target's shape and embeddings."""
    mine, theirs = head.config, target.config
    _same("hidden size", mine.decoder.hidden_size, theirs.hidden_size, head, target)
    _same("vocabulary", mine.decoder.vocab_size, theirs.vocab_size, head, target)
    if mine.num_target_layers is not None:
        _same("target layer count", mine.num_target_layers, theirs.num_layers, head, target)
    if max(mine.tap_ids) > theirs.num_layers - 2:
        raise MismatchError(
            f"{head.path}: taps must lie before the target's last layer (ids up to {theirs.num_layers - 2} of "
            f"{theirs.num_layers} layers), got {max(mine.tap_ids)}"
        )
    if mine.mask_token_id >= theirs.vocab_size:
        raise MismatchError(
            f"{head.path}: the mask token must be in the target's vocabulary of {theirs.vocab_size}, "
            f"got {mine.mask_token_id}"
        )
    _same_rows("embed_tokens.weight", "model.embed_tokens.weight", head, target)
    if not mine.reduced_vocab:
        tied = "model.embed_tokens.weight" if theirs.tie_embeddings else "lm_head.weight"
        _same_rows("lm_head.weight", tied, head, target)


def _same(what: str, mine: int, theirs: int, head: HeadCheckpoint, target: TargetCheckpoint) -> None:
    if mine != theirs:
        raise MismatchError(
            f"the {what} of head and target must be the same, got {mine} ({head.path}) and {theirs} ({target.path})"
        )


def _same_rows(mine: str, theirs: str, head: HeadCheckpoint, target: TargetCheckpoint) -> None:
    """Compares a few rows of the head's copy, where it carries one, with the target's."""
    if mine not in head.tensors.infos():
        return
    vocab = target.config.vocab_size
    # The mask token's row is left out: no text holds it, so a head may have one of its own.
    spread = dict.fromkeys(i * (vocab - 1) // (NUM_COMPARED_ROWS - 1) for i in range(NUM_COMPARED_ROWS))
    rows = [row for row in spread if row != head.config.mask_token_id]
    copies = head.tensors.load_rows(mine, rows).to(torch.float32)
    originals = target.tensors.load_rows(theirs, rows).to(torch.float32)
    plain = target.tensors.infos()[theirs].dtype in FLOAT_DTYPES
    size = torch.maximum(copies.norm(dim=1), originals.norm(dim=1))
    distance = (copies - originals).norm(dim=1) / size.clamp_min(torch.finfo(torch.float32).tiny)
    worst = int(distance.argmax())
    limit = FLOAT_TOLERANCE if plain else QUANTISED_TOLERANCE
    if not float(distance[worst]) <= limit:  # written so that a NaN fails too
        raise MismatchError(
            f"{head.path}: {mine} must be a copy of {theirs} of {target.path} (rows within {limit:g} of each other), "
            f"got a relative distance of {float(distance[worst]):.3g} in row {rows[worst]}"
        )
