"""Tokens drawn through the engine follow the target's exact distribution, with and without a draft, for every filter.

The target is memoryless: the distribution of a token depends on the token before it and on nothing else, so each text
is a Markov chain with known transitions, and every draw counts. Seeds are fixed: the verdict is always the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from distribution import chi_square_p, counts_of, exact_probs
from scipy.stats import chi2
from small_engine import (
    CPU,
    FILTERS,
    VOCAB,
    Propose,
    answer,
    ask,
    engine_of,
    no_proposals,
    tiny_target,
    tokens_of,
)

from twinspark.actors.nets.decoder import Decoder
from twinspark.actors.nets.rows import Rows, Span
from twinspark.actors.sampling.draw import draw_one
from twinspark.actors.sampling.noise import Noise
from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.target.engine import Proposed
from twinspark.actors.target.request import Active

NUM_SEQS = 256
DRAWS = 50_000
LENGTH = 1 + -(-DRAWS // NUM_SEQS)  # the first token starts the chain
START = 3
CASES = [
    {"temperature": temperature, **filters}
    for temperature, filters in zip((0.7, 1.0, 1.5, 1.0, 0.7), FILTERS, strict=True)
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


def table_of(target: Decoder) -> torch.Tensor:
    """Logits after each token, [VOCAB, VOCAB], of a memoryless target."""
    hidden, _ = target.forward(Rows([Span(0, 0, VOCAB)], list(range(VOCAB)), CPU))
    return target.logits(hidden)


class TableDraft:
    """Draws from a table of its own, under the shared noise, as a draft does; or proposes `constant` for ever."""

    def __init__(self, table: torch.Tensor, length: int, constant: int | None = None) -> None:
        self.table, self.length, self.constant = list(table), length, constant
        self.noise = Noise(VOCAB)

    def __call__(self, decoding: Sequence[Active], context: int) -> Proposed:
        return Proposed({active.number: self._draft(active, context) for active in decoding})

    def _draft(self, active: Active, context: int) -> tuple[int, ...]:
        length = min(self.length, active.cap(context))
        if self.constant is not None:
            return (self.constant,) * length
        ids = [active.ids[-1]]
        for i in range(length):
            ids.append(draw_one(self.table[ids[-1]], active.request.sampling, len(active.ids) + i, self.noise))
        return tuple(ids[1:])


@pytest.fixture(scope="module")
def target() -> Decoder:
    return tiny_target(11, num_slots=NUM_SEQS, context=256, memoryless=True)


@pytest.fixture(scope="module")
def table(target: Decoder) -> torch.Tensor:
    return table_of(target)


@pytest.fixture(scope="module")
def near(table: torch.Tensor) -> TableDraft:
    """A draft that is right more often than not."""
    return TableDraft(table + 0.5 * torch.randn(table.shape, generator=torch.Generator().manual_seed(1)), 3)


def texts(target: Decoder, draft: Propose, case: dict[str, Any], length: int = LENGTH) -> npt.NDArray[np.int64]:
    """[NUM_SEQS, length] tokens; each row has a seed of its own."""
    requests = [ask(seed, [START], length, Sampling.of(seed=seed, **case)) for seed in range(NUM_SEQS)]
    made = tokens_of(answer(engine_of(target), requests, draft))
    return np.array([made[seed] for seed in range(NUM_SEQS)])


def transitions_p(tokens: npt.NDArray[np.int64], table: torch.Tensor, case: dict[str, Any]) -> float:
    """How often honest chains would fit the transition probabilities worse: each row's chi-square, summed."""
    before, after = tokens[:, :-1].ravel(), tokens[:, 1:].ravel()
    statistic, freedom = 0.0, 0
    for token in range(VOCAB):
        probs = exact_probs(table[token].numpy(), **case)
        counts = counts_of(after[before == token], VOCAB)
        if counts[probs == 0].any():
            return 0.0
        expected = probs * counts.sum()
        cells = np.where(expected >= 5, np.arange(VOCAB), VOCAB)  # cells of few expected draws are pooled
        observed, wanted = (np.bincount(cells, weights=w, minlength=VOCAB + 1) for w in (counts, expected))
        used = wanted >= 1
        statistic += float(((observed - wanted)[used] ** 2 / wanted[used]).sum())
        freedom += max(0, int(used.sum()) - 1)
    return float(chi2.sf(statistic, freedom))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_token_follows_the_target_given_the_one_before(
    target: Decoder, table: torch.Tensor, near: TableDraft, case: dict[str, Any]
) -> None:
    alone = texts(target, no_proposals, case)
    assert alone[:, 1:].size >= DRAWS
    assert transitions_p(alone, table, case) > 0.001
    drafted = texts(target, near, case)
    assert transitions_p(drafted, table, case) > 0.001
    assert np.array_equal(alone, drafted)
    wrong = case | {"temperature": case["temperature"] * 1.1}
    assert transitions_p(drafted, table, wrong) < 1e-6, "the test must be able to fail"


@pytest.mark.parametrize("hostile", ["constant", "another model", "unlikely"])
def test_a_hostile_draft_does_not_bend_the_distribution(target: Decoder, table: torch.Tensor, hostile: str) -> None:
    case = {"temperature": 1.0}
    draft = {
        "constant": TableDraft(table, 2, constant=START),
        "another model": TableDraft(table_of(tiny_target(12, num_slots=1, memoryless=True)), 2),
        "unlikely": TableDraft(-table, 1),
    }[hostile]
    assert transitions_p(texts(target, draft, case, length=80), table, case) > 0.001


def test_neighbouring_seeds_are_independent(target: Decoder, table: torch.Tensor) -> None:
    case = CASES[0]
    requests = [ask(seed, [START], 1, Sampling.of(seed=seed, **case)) for seed in range(DRAWS)]
    made = tokens_of(answer(engine_of(target), requests))
    tokens = np.array([made[seed][0] for seed in range(DRAWS)])
    probs = exact_probs(table[START].numpy(), **case)
    assert chi_square_p(counts_of(tokens, VOCAB), probs) > 0.001
    pairs = tokens[::2] * VOCAB + tokens[1::2]
    assert chi_square_p(counts_of(pairs, VOCAB**2), np.outer(probs, probs)) > 0.001
