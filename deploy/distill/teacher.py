"""What training and evaluation ask of the target along texts: its taps, and its logits at some positions."""

from __future__ import annotations

import torch
from torch import Tensor

from twinspark.actors.checkpoint.source import TargetCheckpoint
from twinspark.actors.nets.decoder import Decoder
from twinspark.actors.nets.linear import Precision
from twinspark.deploy.distill.anchors import block_places
from twinspark.deploy.distill.batch_net import BatchNet


class Teacher:
    """The target, frozen. `lm_head` [vocab, hidden] and `embedding` are its own."""

    def __init__(self, target: TargetCheckpoint, *, precision: Precision, length: int, device: torch.device) -> None:
        self.config = target.config
        decoder = Decoder(
            target.config, target.tensors.load, precision=precision, num_slots=0, context=length, device=device
        )
        self.net = BatchNet(decoder)
        self.embedding = decoder.embedding
        self.lm_head = self.embedding
        if not target.config.tie_embeddings:
            self.lm_head = target.tensors.load("lm_head.weight").to(device=device, dtype=decoder.dtype)

    @property
    def device(self) -> torch.device:
        return self.net.device

    @torch.no_grad()
    def along(self, ids: Tensor, taps: tuple[int, ...], anchors: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
        """Taps `[texts, positions, taps * hidden]`, and logits `[texts, anchors, block, vocab]` for the `block_size`
        tokens behind each of `anchors` [texts, anchors].
        """
        hidden, found = self.net.texts(ids, taps)
        if found is None:
            raise ValueError("a head must have tap ids, got none")
        places = block_places(anchors, block_size).flatten(1)
        rows = hidden.gather(1, places[:, :, None].expand(-1, -1, hidden.shape[-1]))
        logits = self.net.decoder.logits(rows.flatten(0, 1))
        return found, logits.view(*anchors.shape, block_size, -1)


def draft_lm_head(teacher: Teacher, target_ids: Tensor | None) -> Tensor:
    """The rows of the target's lm_head that a draft vocabulary uses."""
    return teacher.lm_head if target_ids is None else teacher.lm_head[target_ids.to(teacher.device)]
