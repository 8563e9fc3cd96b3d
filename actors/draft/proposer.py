"""From anchors to draft tokens: the head's block pass, the Markov loop, the draw under the shared noise.

Knows the head and slots. Where a slot's context comes from (recomputed by a trunk, or read beside the target) is the
caller's business; so are sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twinspark.actors.draft.stopwatch import Stopwatch
from twinspark.actors.nets.head import Head
from twinspark.actors.sampling.draw import draw
from twinspark.actors.sampling.noise import Noise
from twinspark.actors.sampling.settings import Sampling


@dataclass(frozen=True)
class Ask:
    """Draft up to `length` tokens after `anchor`, the token at `position`, for the request in `slot`."""

    slot: int
    position: int
    anchor: int
    length: int
    sampling: Sampling


class Proposer:
    """`target_ids` maps a reduced draft vocabulary to the target's ids (None: they are the same)."""

    def __init__(self, head: Head, target_ids: Tensor | None, *, min_confidence: float = 0.0) -> None:
        self.head = head
        self.target_ids = None if target_ids is None else target_ids.tolist()
        noise_ids = head.config.draft_vocab_size if target_ids is None else target_ids
        self.noise = Noise(noise_ids, head.device)
        self.min_confidence = min_confidence if head.config.has_confidence else 0.0
        self.watch = Stopwatch()

    @property
    def max_length(self) -> int:
        return self.head.config.num_draft_tokens

    def propose(self, asks: Sequence[Ask]) -> list[tuple[int, ...]]:
        """Draft tokens (target ids) for each of `asks`, at most its `length` of them."""
        if not asks:
            return []
        longest = min(self.max_length, max(ask.length for ask in asks))
        if longest == 0:
            return [() for _ in asks]
        with self.watch("backbone"):
            hidden = self.head.block([(ask.slot, ask.position, ask.anchor) for ask in asks])
        with self.watch("lm_head"):
            first = 0 if self.head.config.anchor_predicts else 1
            slots = hidden[:, : first + longest]
            base = self.head.lm_head(slots.reshape(-1, slots.shape[-1])).float().view(*slots.shape[:2], -1)
        with self.watch("markov"):
            return self._markov_loop(asks, slots, base, first)

    def _markov_loop(self, asks: Sequence[Ask], hidden: Tensor, base: Tensor, first: int) -> list[tuple[int, ...]]:
        """Slot by slot: bias by the previous token, draw, go on. Slots before `first` predict nothing."""
        markov = self.head.markov
        prev = torch.tensor([ask.anchor for ask in asks], device=self.head.device)
        state = markov.start(len(asks)) if markov is not None else None
        drafts: list[list[int]] = [[] for _ in asks]
        open_ = [ask.length > 0 for ask in asks]
        for k in range(base.shape[1]):
            logits, slot = base[:, k], hidden[:, k]
            if markov is not None and state is not None:
                bias, state = markov.step(prev, slot, state)
                logits = logits + bias.float()
            if k < first:
                continue
            if self.min_confidence > 0:
                # As DeepSpec does: a slot's own confidence, not the product; the first one below it ends the proposal.
                sure = torch.sigmoid(self.head.confidence(slot, prev)) >= self.min_confidence
                open_ = [was and bool(now) for was, now in zip(open_, sure.tolist(), strict=True)]
            step = k - first
            open_ = [was and step < ask.length for was, ask in zip(open_, asks, strict=True)]
            if not any(open_):
                break
            positions = [ask.position + 1 + step for ask in asks]
            indices = draw(logits.contiguous(), [ask.sampling for ask in asks], positions, self.noise)
            ids = indices if self.target_ids is None else [self.target_ids[i] for i in indices]
            for tokens, token, wanted in zip(drafts, ids, open_, strict=True):
                if wanted:
                    tokens.append(token)
            prev = torch.tensor(ids, device=self.head.device)
        return [tuple(tokens) for tokens in drafts]
