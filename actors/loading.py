"""Building the networks of a spec: checkpoints opened, checked against each other, read as far as needed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor

from twinspark.actors.checkpoint.compatible import check_head_fits
from twinspark.actors.checkpoint.opening import open_head, open_target, target_ids_of_draft
from twinspark.actors.checkpoint.source import HeadCheckpoint, TargetCheckpoint, TensorSource
from twinspark.actors.draft.drafter import Drafter
from twinspark.actors.draft.proposer import Proposer
from twinspark.actors.nets.decoder import Decoder
from twinspark.actors.nets.head import Head, HeadPrecision
from twinspark.actors.nets.linear import Precision
from twinspark.actors.specs import ActorSpec, DraftSettings, DraftSpec, TargetSpec

Load = Callable[[str], Tensor]


class Progress:
    """Bytes read so far, of how many; written by the compute thread, read by whoever asks."""

    def __init__(self) -> None:
        self.done_bytes = 0
        self.total_bytes = 0

    def counting(self, source: TensorSource, names: set[str]) -> Load:
        """`source.load`, counted; `names` are what will be read."""
        infos = source.infos()
        self.total_bytes += sum(infos[name].stored_bytes for name in names if name in infos)

        def load(name: str) -> Tensor:
            tensor = source.load(name)
            self.done_bytes += infos[name].stored_bytes
            return tensor

        return load


def trunk_names(target: TargetCheckpoint, num_layers: int) -> set[str]:
    """The embedding and the first layers: all that a trunk reads."""
    layers = {f"model.layers.{i}." for i in range(num_layers)}
    return {
        name
        for name in target.tensors.infos()
        if name == "model.embed_tokens.weight" or any(name.startswith(layer) for layer in layers)
    }


def check_settings(settings: DraftSettings, head: HeadCheckpoint) -> None:
    """Raises ValueError where the settings ask for what the head cannot do."""
    most = head.config.num_draft_tokens
    if not 1 <= settings.verify_length <= most:
        raise ValueError(f"verify length must be from 1 to {most} (the head's block), got {settings.verify_length}")
    if settings.min_confidence > 0 and not head.config.has_confidence:
        raise ValueError("a minimum confidence needs a head with a confidence head, got one without")


def load_target(spec: TargetSpec, progress: Progress) -> Decoder:
    """The target network."""
    target = open_target(spec.actor.model_path)
    device = torch.device(spec.actor.device)
    load = progress.counting(target.tensors, set(target.tensors.infos()))
    network = Decoder(
        target.config,
        load,
        precision=spec.dtype,
        numerics=spec.numerics,
        num_slots=spec.actor.max_seqs,
        context=spec.actor.context,
        device=device,
    )
    _give_back_freed_memory()
    return network


def load_colocated(actor: ActorSpec, network: Decoder, settings: DraftSettings, progress: Progress) -> Proposer:
    """A proposer beside a target that is loaded already."""
    target, head = open_target(actor.model_path), open_head(settings.head_path)
    check_head_fits(head, target)
    check_settings(settings, head)
    proposer = _load_proposer(
        target, head, settings, network.embedding, actor.max_seqs, actor.context, network.device, progress
    )
    _give_back_freed_memory()
    return proposer


def load_drafter(spec: DraftSpec, progress: Progress) -> tuple[Drafter, int]:
    """A draft actor's drafter, and the target's vocabulary size."""
    target, head = open_target(spec.actor.model_path), open_head(spec.settings.head_path)
    check_head_fits(head, target)
    check_settings(spec.settings, head)
    device = torch.device(spec.actor.device)
    num_layers = head.config.num_trunk_layers
    trunk = Decoder(
        target.config,
        progress.counting(target.tensors, trunk_names(target, num_layers)),
        num_layers=num_layers,
        head=False,
        precision=_trunk_precision(spec.settings),
        num_slots=spec.actor.max_seqs,
        context=spec.actor.context,
        device=device,
    )
    proposer = _load_proposer(
        target, head, spec.settings, trunk.embedding, spec.actor.max_seqs, spec.actor.context, device, progress
    )
    drafter = Drafter(
        trunk,
        proposer,
        num_slots=spec.actor.max_seqs,
        context=spec.actor.context,
        verify_length=spec.settings.verify_length,
    )
    _give_back_freed_memory()
    return drafter, target.config.vocab_size


def _give_back_freed_memory() -> None:
    """What was read and converted leaves holes in malloc's heaps, tens of megabytes that nobody else can use."""
    with suppress(AttributeError, OSError):  # no glibc
        ctypes.CDLL(None).malloc_trim(0)


def _trunk_precision(settings: DraftSettings) -> Precision:
    return "bfloat16" if settings.dtype == "int8" else settings.dtype


def _load_proposer(
    target: TargetCheckpoint,
    head: HeadCheckpoint,
    settings: DraftSettings,
    target_embedding: Tensor,
    max_seqs: int,
    context: int,
    device: torch.device,
    progress: Progress,
) -> Proposer:
    names = set(head.tensors.infos())
    load = progress.counting(head.tensors, names - {"d2t", "t2d"})
    embedding = target_embedding
    if "embed_tokens.weight" in names:
        embedding = load("embed_tokens.weight").to(device=device, dtype=target_embedding.dtype)
    target_ids = target_ids_of_draft(head)
    if "lm_head.weight" in names:
        lm_head = load("lm_head.weight")
    elif target.config.tie_embeddings:
        lm_head = target_embedding
    else:
        lm_head = progress.counting(target.tensors, {"lm_head.weight"})("lm_head.weight")
    if target_ids is not None and "lm_head.weight" not in names:
        lm_head = lm_head[target_ids.to(lm_head.device)]
    network = Head(
        head.config,
        load,
        embedding=embedding,
        lm_head=lm_head,
        precision=HeadPrecision.uniform(settings.dtype),
        num_slots=max_seqs,
        context=context,
        device=device,
    )
    return Proposer(network, target_ids, min_confidence=settings.min_confidence)
