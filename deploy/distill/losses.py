"""The loss of a block, slot by slot: cross entropy on the text, total variation to the target, the confidence's own.

DSpark paper (arXiv 2607.05147), section 3.3. The total variation is what acceptance is made of: an optimal rule keeps a
draft token with the chance 1 - TV, and that chance is what the confidence learns to tell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from twinspark.deploy.distill.head_net import Blocks


@dataclass(frozen=True)
class Weights:
    """`decay`: slot k (from 0) counts exp(-k / decay)."""

    cross_entropy: float = 0.1
    total_variation: float = 0.9
    confidence: float = 1.0
    decay: float = 4.0

    def of_slots(self, num_slots: int, device: torch.device) -> Tensor:
        """They add up to 1."""
        slots = torch.tensor([math.exp(-k / self.decay) for k in range(num_slots)], device=device)
        return slots / slots.sum()


@dataclass(frozen=True)
class Losses:
    """`total` to go down; `kept` [block] is the mean chance 1 - TV of every slot, without gradient."""

    total: Tensor
    kept: Tensor


def losses(
    blocks: Blocks, labels: Tensor, target_logits: Tensor, target_ids: Tensor | None, weights: Weights
) -> Losses:
    """`labels` [texts, anchors, block] are the text's ids, `target_logits` [texts, anchors, block, vocab] the
    target's for them. `target_ids` [draft_vocab] where the vocabulary is reduced: what lies outside is never drafted.
    """
    log_draft = torch.log_softmax(blocks.logits.float(), dim=-1)
    log_total = torch.logsumexp(target_logits.float(), dim=-1, keepdim=True)
    if target_ids is not None:
        index = torch.full((target_logits.shape[-1],), -1, dtype=torch.int64, device=labels.device)
        index[target_ids] = torch.arange(len(target_ids), device=labels.device)
        target_logits, labels = target_logits[..., target_ids], index[labels]
    target = (target_logits.float() - log_total).exp()
    known = labels >= 0
    entropy = -log_draft.gather(-1, labels.clamp(min=0)[..., None])[..., 0] * known
    # Both sum to 1 over the whole vocabulary; what the draft cannot say is all the target's.
    variation = 0.5 * ((log_draft.exp() - target).abs().sum(dim=-1) + (1 - target.sum(dim=-1)).clamp(min=0))
    kept = (1 - variation).detach()
    slots = weights.of_slots(labels.shape[-1], labels.device)
    per_slot = weights.cross_entropy * entropy + weights.total_variation * 2 * variation
    if blocks.confidence is not None:
        told = functional.binary_cross_entropy_with_logits(blocks.confidence.float(), kept, reduction="none")
        per_slot = per_slot + weights.confidence * told
    return Losses((per_slot.mean(dim=(0, 1)) * slots).sum(), kept.mean(dim=(0, 1)))
