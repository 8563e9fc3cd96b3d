"""Texts sampled from a target, and both sides' logits along such a text: what `acceptance` makes its figures of.

In one process, without Ray: the networks are those the actors run, the taps are read off the target.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from twinspark.actors.draft.proposer import Proposer
from twinspark.actors.nets.decoder import Decoder
from twinspark.actors.nets.head import Head
from twinspark.actors.nets.rows import Rows, Span
from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.target.engine import NOTHING, Engine
from twinspark.actors.target.request import Request
from twinspark.deploy.acceptance import Forced


def sample_texts(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    samplings: Sequence[Sampling],
    *,
    num_tokens: int,
    stop_ids: tuple[int, ...],
) -> list[tuple[int, ...]]:
    """Prompt and answer of at most `num_tokens` for each of `prompts`, plainly decoded. The engine must be idle."""
    requests = [
        Request(number, tuple(prompt), sampling, num_tokens, stop_ids)
        for number, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True))
    ]
    for request in requests:
        engine.check(request)
        engine.add(request, time.monotonic())
    texts: dict[int, tuple[int, ...]] = {}
    while not engine.idle:
        engine.admit()
        for commit in engine.step(NOTHING).commits:
            if commit.finish_reason is not None:
                texts[commit.number] = tuple(engine.active[commit.number].ids)
                engine.remove(commit.number)
    return [texts[request.number] for request in requests]


def forced_logits(
    target: Decoder, proposer: Proposer, ids: Sequence[int], *, prompt_length: int, num_slots: int
) -> Forced | None:
    """Logits along `ids` with every generated token as the anchor that has `num_slots` tokens of the text after it.

    None if there is no such anchor. Overwrites the target's scratch slot and the head's slot 0.
    Raises ValueError unless the head drafts `num_slots` tokens.
    """
    head = proposer.head
    if not 1 <= num_slots <= proposer.max_length:
        raise ValueError(f"slots must be from 1 to {proposer.max_length} (the head's block), got {num_slots}")
    anchors = range(prompt_length, len(ids) - num_slots)
    if not anchors:
        return None
    hidden, taps = target.forward(
        Rows([Span(target.scratch_slot, 0, len(ids))], ids, target.device), head.config.tap_ids
    )
    if taps is None:
        raise ValueError("a head must have tap ids, got none")
    return Forced(
        first_position=prompt_length + 1,
        token_ids=tuple(ids[prompt_length + 1 :]),
        target_logits=target.logits(hidden[prompt_length:-1]),
        draft_logits=_draft_logits(head, ids, anchors, taps, num_slots),
        target_ids=None if proposer.target_ids is None else torch.tensor(proposer.target_ids),
    )


def _draft_logits(head: Head, ids: Sequence[int], anchors: range, taps: Tensor, num_slots: int) -> Tensor:
    """`[anchors, num_slots, draft V]`: the proposer's loop, with the text in place of its draws."""
    lead = 0 if head.config.anchor_predicts else 1  # slots before it predict nothing
    head.extend([Span(0, 0, anchors.start)], taps[: anchors.start])
    blocks = []
    for anchor in anchors:
        blocks.append(head.block([(0, anchor, ids[anchor])])[0, : lead + num_slots])
        head.extend([Span(0, anchor, 1)], taps[anchor : anchor + 1])
    hidden = torch.stack(blocks)
    base = head.lm_head(hidden.flatten(0, 1)).float().view(*hidden.shape[:2], -1)
    markov = head.markov
    if markov is not None:
        state = markov.start(len(anchors))
        for slot in range(lead + num_slots):
            prev = torch.tensor([ids[anchor + max(0, slot - lead)] for anchor in anchors], device=head.device)
            bias, state = markov.step(prev, hidden[:, slot], state)
            base[:, slot] += bias.float()
    return base[:, lead:]
