"""Opening a target or a head by path: config read, headers checked against it, no tensor loaded."""

from __future__ import annotations

from pathlib import Path

import torch

from twinspark.actors.checkpoint.expected_tensors import check_tensors, head_shapes, target_shapes
from twinspark.actors.checkpoint.gguf_config import gguf_config
from twinspark.actors.checkpoint.gguf_source import GgufSource
from twinspark.actors.checkpoint.head_config import head_config
from twinspark.actors.checkpoint.hf_config import decoder_config
from twinspark.actors.checkpoint.json_fields import parse_object
from twinspark.actors.checkpoint.safetensors_source import PICKLE_ENDINGS, SafetensorsSource
from twinspark.actors.checkpoint.source import HeadCheckpoint, TargetCheckpoint, TensorSource
from twinspark.actors.errors import CheckpointError


def open_target(path: str | Path) -> TargetCheckpoint:
    """The target at `path`: a Hugging Face directory, or a GGUF file.

    Raises CheckpointError naming what is missing, damaged, not supported, or at odds with the config.
    """
    root = Path(path)
    tensors: TensorSource
    if root.is_dir():
        tensors = SafetensorsSource(root)
        raw = _json_file(root / "config.json")
        if "speculators_model_type" in raw or "DSpark" in str(raw.get("architectures")):
            raise CheckpointError(f"{root} must be a target model, and is a DSpark head")
        generation = _json_file(root / "generation_config.json") if (root / "generation_config.json").exists() else None
        config = decoder_config(raw, str(root / "config.json"), generation=generation)
    else:
        _refuse_pickle(root)
        tensors = GgufSource(root)
        config = gguf_config(tensors)
    required, optional = target_shapes(config)
    check_tensors(tensors.infos(), required, optional, str(root))
    return TargetCheckpoint(path=str(root), config=config, tensors=tensors)


def open_head(path: str | Path) -> HeadCheckpoint:
    """The head in the directory `path`, in DeepSpec's layout or speculators'. Raises as `open_target`."""
    root = Path(path)
    tensors = SafetensorsSource(root)
    config = head_config(_json_file(root / "config.json"), str(root / "config.json"))
    required, optional = head_shapes(config)
    check_tensors(tensors.infos(), required, optional, str(root))
    return HeadCheckpoint(path=str(root), config=config, tensors=tensors)


def target_ids_of_draft(head: HeadCheckpoint) -> torch.Tensor | None:
    """The target's id of every draft id, int64 [draft_vocab_size]; None where both vocabularies are the same.

    Raises CheckpointError where an id falls outside the vocabulary or two draft ids mean the same token.
    """
    config = head.config
    if "d2t" not in head.tensors.infos():
        return None  # `open_head` has made sure that a reduced vocabulary has it
    offsets = head.tensors.load("d2t").to(torch.int64)
    if not config.reduced_vocab:
        if bool(offsets.any()):
            raise CheckpointError(f"{head.path}: d2t must be all zero where the draft vocabulary is the target's")
        return None
    ids = torch.arange(config.draft_vocab_size, dtype=torch.int64) + offsets
    vocab = config.decoder.vocab_size
    outside = ids[(ids < 0) | (ids >= vocab)]
    if outside.numel():
        raise CheckpointError(f"{head.path}: d2t must map into the vocabulary of {vocab}, got id {int(outside[0])}")
    if torch.unique(ids).numel() != ids.numel():
        raise CheckpointError(f"{head.path}: d2t must map every draft id to a token of its own, got one twice")
    return ids


def _json_file(path: Path) -> dict[str, object]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} must be there and readable, got: {error.strerror}") from error
    return parse_object(raw, str(path))


def _refuse_pickle(path: Path) -> None:
    if path.name.endswith(PICKLE_ENDINGS):
        raise CheckpointError(
            f"a target must be a safetensors directory or a GGUF file, got {path}: nothing is unpickled"
        )
    if not path.exists():
        raise CheckpointError(f"a target must be a directory or a GGUF file, got {path}, which is not there")
