"""A draft that is given the target's own logits is accepted always: at any temperature, with any filter.

Being lossless hides a mistake on the draft's side (a position off by one, a filter missing, noise by the wrong id): it
only costs acceptance. Here it would show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from small_engine import CPU, FILTERS, VOCAB, Propose, answer, ask, engine_of, tiny_target

from twinspark.actors.checkpoint.configs import HeadConfig
from twinspark.actors.draft.proposer import Ask, Proposer
from twinspark.actors.nets.decoder import Decoder
from twinspark.actors.nets.rows import Rows, Span
from twinspark.actors.sampling.draw import draw_one
from twinspark.actors.sampling.noise import Noise
from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.target.engine import Proposed
from twinspark.actors.target.request import Active

BLOCK = 7
NEW = 60
SAMPLINGS = [
    Sampling.of(temperature=temperature, **filters) for temperature in (0.7, 1.0, 1.5) for filters in FILTERS
] + [Sampling()]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


class TableMarkov:
    """A Markov head whose bias is all the logits there are: the target's own, after the previous token."""

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table

    def start(self, num_requests: int) -> torch.Tensor:
        return torch.zeros(num_requests, 1)

    def step(self, prev: torch.Tensor, hidden: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.table[prev], state


class TableHead:
    """As much of a Head as a Proposer uses; a memoryless target's logits are a table."""

    def __init__(self, target: Decoder, columns: torch.Tensor, *, anchor_predicts: bool) -> None:
        block = BLOCK if anchor_predicts else BLOCK + 1
        hidden, _ = target.forward(Rows([Span(0, 0, VOCAB)], list(range(VOCAB)), CPU))
        self.config = HeadConfig(
            format="deepspec",
            decoder=target.config,
            block_size=block,
            anchor_predicts=anchor_predicts,
            tap_ids=(0,),
            mask_token_id=0,
            markov_kind="vanilla",
            markov_rank=1,
            has_confidence=False,
            confidence_uses_markov=False,
            draft_vocab_size=VOCAB,
        )
        self.device = CPU
        self.markov = TableMarkov(target.logits(hidden)[:, columns])

    def block(self, anchors: Sequence[tuple[int, int, int]]) -> torch.Tensor:
        return torch.zeros(len(anchors), self.config.block_size, 1)

    def lm_head(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.zeros(hidden.shape[0], VOCAB)


def asking(proposer: Proposer) -> Propose:
    """Proposals as a colocated or remote draft would ask for them."""

    def propose(decoding: Sequence[Active], context: int) -> Proposed:
        asks = [
            Ask(a.slot, len(a.ids) - 1, a.ids[-1], min(BLOCK, a.cap(context)), a.request.sampling) for a in decoding
        ]
        tokens = proposer.propose(asks)
        return Proposed({a.number: ids for a, ids in zip(decoding, tokens, strict=True)})

    return propose


def all_accepted(target: Decoder, propose: Propose, sampling: Sampling) -> None:
    requests = [ask(n, [n, 2 * n, 5], NEW, Sampling(**(vars(sampling) | {"seed": 70 + n}))) for n in range(3)]
    for report in answer(engine_of(target), requests, propose).values():
        assert len(report.token_ids) == NEW
        assert [len(record.draft_tokens) for record in report.rounds] == [BLOCK] * 7 + [2]
        assert [record.num_accepted for record in report.rounds] == [BLOCK] * 7 + [2]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("anchor_predicts", [True, False])
@pytest.mark.parametrize("renumbered", [False, True])
def test_through_the_proposer(sampling: Sampling, anchor_predicts: bool, renumbered: bool) -> None:
    """`renumbered`: the draft's vocabulary is in another order, as after d2t; the noise goes by the target's ids."""
    target = tiny_target(21, num_slots=3, context=128, memoryless=True)
    order = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(1)) if renumbered else torch.arange(VOCAB)
    head: Any = TableHead(target, order, anchor_predicts=anchor_predicts)
    all_accepted(target, asking(Proposer(head, order if renumbered else None)), sampling)


class TwinDraft:
    """The same network as the target, with a cache of its own, one token at a time."""

    def __init__(self, twin: Decoder) -> None:
        self.twin, self.noise = twin, Noise(VOCAB)
        self.num_done: dict[int, int] = {}

    def __call__(self, decoding: Sequence[Active], context: int) -> Proposed:
        return Proposed({active.number: self._draft(active, min(BLOCK, active.cap(context))) for active in decoding})

    def _draft(self, active: Active, length: int) -> tuple[int, ...]:
        ids = list(active.ids)
        done = self.num_done.get(active.number, 0)
        for _ in range(length):
            span = Span(active.slot, done, len(ids) - done)
            hidden, _taps = self.twin.forward(Rows([span], ids[done:], CPU))
            done = len(ids)
            ids.append(draw_one(self.twin.logits(hidden[-1:])[0], active.request.sampling, done, self.noise))
        self.num_done[active.number] = len(active.ids)
        return tuple(ids[len(active.ids) :])


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_from_the_whole_text_so_far(sampling: Sampling) -> None:
    target, twin = (tiny_target(22, layers=2, num_slots=3, context=128) for _ in range(2))
    all_accepted(target, TwinDraft(twin), sampling)
