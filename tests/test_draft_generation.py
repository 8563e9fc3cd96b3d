"""DeepSpec's generate loop, round by round, run with our parts: blocks, thresholds, acceptance, stops (golden.json).

Once with the taps read beside the target, once with a draft that recomputes them from token ids alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from golden_pair import CONTEXT, DEEPSPEC, SLOTS, SPECULATORS, GoldenPair, close, golden_pair, golden_trunk
from torch import Tensor

from twinspark.actors.draft.drafter import Drafter, Wish
from twinspark.actors.draft.proposer import Ask, Proposer
from twinspark.actors.nets.rows import Span
from twinspark.actors.sampling.settings import Sampling

GREEDY = Sampling()
NEW_TOKENS = 48
Told = dict[str, Any]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield


def generate(pair: GoldenPair, slot: int, told: Told, draft: Beside | Apart) -> tuple[list[int], list[Told]]:
    """The loop of golden/README.md; `draft.verified` is told which positions became final."""
    prompt: list[int] = pair.ids(f"p{told['prompt']}")
    stops = set(told["stop_token_ids"] or ())
    hidden, taps = pair.run(slot, 0, prompt)
    draft.verified(0, len(prompt), taps)
    ids = [*prompt, int(pair.target.logits(hidden[-1:]).argmax())]
    rounds: list[Told] = []
    while len(ids) - 1 < len(prompt) + NEW_TOKENS and not stops & {*ids[len(prompt) :]}:
        start, anchor = len(ids) - 1, ids[-1]
        drafts = draft.propose(ids)
        hidden, taps = pair.run(slot, start, [anchor, *drafts])
        own = pair.target.logits(hidden).argmax(dim=-1).tolist()
        accepted = next((i for i, token in enumerate(drafts) if token != own[i]), len(drafts))
        stop = next((i for i in range(accepted) if drafts[i] in stops), None)
        if stop is not None:
            accepted = stop + 1
        rounds.append(
            {
                "start": start,
                "anchor": anchor,
                "proposed": len(drafts),
                "verify_ids": [anchor, *drafts],
                "accepted": accepted,
                "next_token": own[accepted],
                "effective_proposal_length": len(drafts) if stop is None else accepted,
                "terminated_by_stop_token": stop is not None,
            }
        )
        draft.verified(start, accepted + 1, taps)
        ids += [*drafts[:accepted], own[accepted]]
    new = ids[len(prompt) :][:NEW_TOKENS]
    end = next((i + 1 for i, token in enumerate(new) if token in stops), len(new))
    return new[:end], rounds


def check(told: Told, new: Sequence[int], rounds: Sequence[Told]) -> None:
    expected = [{key: each[key] for key in got} for each, got in zip(told["rounds"], rounds, strict=True)]
    assert rounds == expected
    assert new == told["new_tokens"]
    assert [each["accepted"] for each in rounds] == told["accepted_draft_lengths"]


class Beside:
    """A draft beside the target: the taps of what became final are its context. Keeps what the reference told."""

    def __init__(self, pair: GoldenPair, slot: int, threshold: float) -> None:
        self.head, self.slot = pair.head, slot
        self.whole = Proposer(pair.head, pair.target_ids)
        self.cut = Proposer(pair.head, pair.target_ids, min_confidence=threshold)
        self.blocks: list[list[int]] = []
        self.hidden: list[Tensor] = []
        self.confidences: list[Tensor] = []

    def propose(self, ids: list[int]) -> tuple[int, ...]:
        ask = Ask(self.slot, len(ids) - 1, ids[-1], self.head.config.block_size, GREEDY)
        (block,) = self.whole.propose([ask])
        self.blocks.append([*block])
        self.hidden.append(self.head.block([(ask.slot, ask.position, ask.anchor)])[0])
        if self.head.config.has_confidence:
            previous = torch.tensor([ask.anchor, *block[:-1]])
            self.confidences.append(self.head.confidence(self.hidden[-1], previous))
        (drafts,) = self.cut.propose([ask])
        return drafts

    def verified(self, start: int, count: int, taps: Tensor) -> None:
        self.head.extend([Span(self.slot, start, count)], taps[:count])


class Apart:
    """A draft that is told committed ids and nothing else."""

    def __init__(self, drafter: Drafter, prompt: Sequence[int]) -> None:
        self.drafter, self.num_known = drafter, len(prompt)
        drafter.open(7, prompt, GREEDY, CONTEXT)

    def propose(self, ids: list[int]) -> tuple[int, ...]:
        news, self.num_known = tuple(ids[self.num_known :]), len(ids)
        proposals, behind = self.drafter.step([Wish(7, news, 99)])
        assert behind == 0
        return proposals[7]

    def verified(self, start: int, count: int, taps: Tensor) -> None:
        return None


@pytest.mark.parametrize("variant", DEEPSPEC)
def test_every_generation_with_taps_read(shared: Path, variant: str) -> None:
    pair = golden_pair(shared, variant)
    generations = pair.told["generations"]
    assert len(generations) == 16
    assert {told["confidence_threshold"] for told in generations} == {0.0, 0.5}
    for told in generations:
        slot = told["index"] % SLOTS  # slots are reused
        draft = Beside(pair, slot, told["confidence_threshold"])
        check(told, *generate(pair, slot, told, draft))
        assert draft.blocks == [each["block_tokens"] for each in told["rounds"]]
        name = f"g{told['index']}.round_"
        if draft.confidences:
            close(torch.stack(draft.confidences), pair.vectors[name + "confidence_logits"])
        if told["confidence_threshold"] == 0:
            close(torch.stack(draft.hidden), pair.vectors[name + "block_hidden"])


@pytest.mark.parametrize("variant", DEEPSPEC)
def test_every_generation_with_taps_recomputed(shared: Path, variant: str) -> None:
    pair = golden_pair(shared, variant)
    trunk = golden_trunk(shared, pair.head.config.num_trunk_layers)
    for told in pair.told["generations"]:
        proposer = Proposer(pair.head, pair.target_ids, min_confidence=told["confidence_threshold"])
        drafter = Drafter(trunk, proposer, num_slots=SLOTS, context=CONTEXT, verify_length=proposer.max_length)
        draft = Apart(drafter, pair.ids(f"p{told['prompt']}"))
        check(told, *generate(pair, told["index"] % SLOTS, told, draft))


@pytest.mark.parametrize("variant", SPECULATORS)
def test_first_proposals_of_speculators_heads(shared: Path, variant: str) -> None:
    """Target ids come out of a reduced vocabulary; a block whose anchor predicts nothing yields one draft less."""
    pair = golden_pair(shared, variant)
    proposer = Proposer(pair.head, pair.target_ids)
    config, told = pair.head.config, pair.told
    assert config.anchor_predicts is told["sample_from_anchor"]
    assert proposer.max_length == told["num_draft_tokens"] == config.block_size - (not config.anchor_predicts)
    for told_prompt in told["prompts"]:
        slot, position, anchor = pair.prefill(told_prompt["index"] % SLOTS, f"p{told_prompt['index']}")
        (drafts,) = proposer.propose([Ask(slot, position, anchor, 99, GREEDY)])
        assert list(drafts) == told_prompt["draft_tokens"]
        for length in (0, 1, 3):  # a shorter proposal is a prefix
            (shorter,) = proposer.propose([Ask(slot, position, anchor, length, GREEDY)])
            assert shorter == drafts[:length]


@pytest.mark.parametrize("variant", [*DEEPSPEC, *SPECULATORS])
def test_requests_of_different_lengths_in_one_proposal(shared: Path, variant: str) -> None:
    pair = golden_pair(shared, variant)
    proposer = Proposer(pair.head, pair.target_ids)
    (a, position_a, anchor_a), (b, position_b, anchor_b) = pair.prefill(0, "p3"), pair.prefill(1, "p5")
    whole = {p: pair.vectors[f"{p}.draft_tokens"][0].tolist() for p in ("p3", "p5")}
    for wanted_a, wanted_b in ((2, 99), (99, 0), (0, 1), (0, 0)):
        got = proposer.propose(
            [Ask(a, position_a, anchor_a, wanted_a, GREEDY), Ask(b, position_b, anchor_b, wanted_b, GREEDY)]
        )
        assert [list(ids) for ids in got] == [whole["p3"][:wanted_a], whole["p5"][:wanted_b]]


def test_a_threshold_ends_each_proposal_for_good(shared: Path) -> None:
    """p6 is sure of slots 0, 1, 5 and 6, p5 of slots 0 to 5: p6 must not go on where p5 keeps the loop alive."""
    pair = golden_pair(shared, "deepspec/vanilla")
    proposer = Proposer(pair.head, pair.target_ids, min_confidence=0.5)
    told = {f"p{prompt['index']}": prompt for prompt in pair.told["prompts"]}
    sure = {p: [logit >= 0 for logit in told[p]["confidence"]] for p in ("p6", "p5")}
    assert sure == {"p6": [True, True, False, False, False, True, True], "p5": [True] * 6 + [False]}
    asks = [Ask(*pair.prefill(slot, p), 99, GREEDY) for slot, p in enumerate(sure)]
    assert [list(ids) for ids in proposer.propose(asks)] == [
        told["p6"]["draft_tokens"][:2],
        told["p5"]["draft_tokens"][:6],
    ]


def test_reduced_vocabulary_really_is_reduced(shared: Path) -> None:
    pair = golden_pair(shared, "speculators/reduced_vocab_anchor")
    assert pair.target_ids is not None
    assert len(pair.target_ids) == 128
    assert pair.head.config.draft_vocab_size == 128
    told = pair.told["prompts"]
    assert any(t["draft_tokens"] != t["draft_tokens_draft_vocab"] for t in told)
    for t in told:
        assert pair.target_ids[t["draft_tokens_draft_vocab"]].tolist() == t["draft_tokens"]
