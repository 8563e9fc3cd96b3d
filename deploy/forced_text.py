"""Texts sampled from a target, and both sides' logits along such a text: what `acceptance` makes its figures of.

In one process, without Ray: the networks are those the actors run, the taps are read off the target.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

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
    target: Decoder,
    proposer: Proposer,
    texts: Sequence[Sequence[int]],
    prompt_lengths: Sequence[int],
    *,
    num_slots: int,
) -> Iterator[Forced | None]:
    """For each of `texts` in turn the logits along it, every generated token being the anchor that has `num_slots`
    tokens of the text after it; None for a text without such an anchor.

    Overwrites the target's scratch slot and the head's slots. Raises ValueError unless the head drafts `num_slots`
    tokens.
    """
    if not 1 <= num_slots <= proposer.max_length:
        raise ValueError(f"slots must be from 1 to {proposer.max_length} (the head's block), got {num_slots}")
    at_once = proposer.head.cache.num_slots
    for first in range(0, len(texts), at_once):
        part = slice(first, first + at_once)
        yield from _forced_at_once(target, proposer, texts[part], prompt_lengths[part], num_slots)


def _forced_at_once(
    target: Decoder, proposer: Proposer, texts: Sequence[Sequence[int]], prompt_lengths: Sequence[int], num_slots: int
) -> Iterator[Forced | None]:
    head = proposer.head
    passes = [
        target.forward(Rows([Span(target.scratch_slot, 0, len(ids))], ids, target.device), head.config.tap_ids)
        for ids in texts
    ]
    anchors = [range(start, len(ids) - num_slots) for ids, start in zip(texts, prompt_lengths, strict=True)]
    blocks = _blocks(head, texts, anchors, [taps for _, taps in passes if taps is not None])
    lead = 0 if head.config.anchor_predicts else 1  # slots before it predict nothing
    for ids, start, (hidden, _), of_text in zip(texts, prompt_lengths, passes, blocks, strict=True):
        if not of_text:
            yield None
            continue
        draft = _draft_logits(head, ids, start, torch.stack(of_text)[:, : lead + num_slots])[:, lead:]
        yield Forced(
            first_position=start + 1,
            token_ids=tuple(ids[start + 1 :]),
            target_logits=target.logits(hidden[start:-1]),
            draft_logits=draft,
            target_ids=None if proposer.target_ids is None else torch.tensor(proposer.target_ids),
        )


def _blocks(
    head: Head, texts: Sequence[Sequence[int]], anchors: Sequence[range], taps: Sequence[Tensor]
) -> list[list[Tensor]]:
    """For each text the hidden states `[block, hidden]` after each of its anchors. A text is in the slot of its number,
    and all move on together, an anchor a pass.
    """
    if len(taps) != len(texts):
        raise ValueError("a head must have tap ids, got none")
    for slot, places in enumerate(anchors):
        if places:
            head.extend([Span(slot, 0, places.start)], taps[slot][: places.start])
    found: list[list[Tensor]] = [[] for _ in texts]
    for number in range(max(map(len, anchors))):
        here = [(slot, places[number]) for slot, places in enumerate(anchors) if number < len(places)]
        hidden = head.block([(slot, place, texts[slot][place]) for slot, place in here])
        head.extend([Span(slot, place, 1) for slot, place in here], torch.stack([taps[s][place] for s, place in here]))
        for (slot, _), block in zip(here, hidden, strict=True):
            found[slot].append(block)
    return found


def _draft_logits(head: Head, ids: Sequence[int], first: int, hidden: Tensor) -> Tensor:
    """`[anchors, slots, draft V]` of `hidden` [anchors, slots, hidden], the anchors being consecutive from position
    `first` on: the proposer's loop, with the text in place of its draws.
    """
    lead = 0 if head.config.anchor_predicts else 1
    base = head.lm_head(hidden.flatten(0, 1)).float().view(*hidden.shape[:2], -1)
    markov = head.markov
    if markov is not None:
        state = markov.start(len(hidden))
        for slot in range(hidden.shape[1]):
            behind = first + max(0, slot - lead)
            prev = torch.tensor(list(ids[behind : behind + len(hidden)]), device=head.device)
            bias, state = markov.step(prev, hidden[:, slot], state)
            base[:, slot] += bias.float()
    return base
