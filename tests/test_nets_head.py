"""The head's network against the reference vectors of the original code, floats and tokens (golden/README.md)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from golden_pair import CPU, DEEPSPEC, SLOTS, SPECULATORS, GoldenPair, close, golden_pair

from twinspark.actors.nets.rows import Span


def check_first_block(pair: GoldenPair, slot: int, prompt: str) -> None:
    """Prefill, one block, the Markov loop: every float and token of `prompt` in the reference."""
    golden, net, config = pair.vectors, pair.head, pair.head.config
    ids = pair.ids(prompt)
    hidden, taps = pair.run(slot, 0, ids)
    close(taps, golden[f"{prompt}.taps"][0])
    _, position, anchor = pair.prefill(slot, prompt)
    last_logits = pair.target.logits(hidden[-1:])
    assert int(last_logits.argmax()) == anchor
    if f"{prompt}.target_last_logits" in golden:
        close(last_logits, golden[f"{prompt}.target_last_logits"])

    block = net.block([(slot, position, anchor)])
    close(block[0], golden[f"{prompt}.block_hidden"][0])
    base = net.lm_head(block[0])
    close(base, golden[f"{prompt}.base_logits"][0])

    prev = torch.tensor([anchor], device=net.device)
    state = net.markov.start(1) if net.markov else None
    drafts = []
    for k in range(config.block_size):
        corrected = base[k : k + 1]
        if config.has_confidence:
            close(net.confidence(block[0, k : k + 1], prev)[0], golden[f"{prompt}.confidence_logits"][0, k])
        if net.markov is not None and state is not None:
            bias, state = net.markov.step(prev, block[0, k : k + 1], state)
            corrected = corrected + bias
        close(corrected[0], golden[f"{prompt}.corrected_logits"][0, k])
        if k == 0 and not config.anchor_predicts:
            continue
        index = int(corrected.argmax())
        drafts.append(index if pair.target_ids is None else int(pair.target_ids[index]))
        prev = torch.tensor([drafts[-1]], device=net.device)
    assert drafts == golden[f"{prompt}.draft_tokens"][0].tolist()


@pytest.mark.parametrize("variant", [*DEEPSPEC, *SPECULATORS])
def test_first_block_of_every_prompt(shared: Path, variant: str) -> None:
    pair = golden_pair(shared, variant)
    assert len(pair.prompts()) == 7
    for i, prompt in enumerate(pair.prompts()):
        check_first_block(pair, i % SLOTS, prompt)  # slots are reused: what an earlier prompt left must not matter


@pytest.mark.parametrize("variant", ["deepspec/vanilla", "speculators/sliding_causal"])
def test_a_block_leaves_other_slots_alone(shared: Path, variant: str) -> None:
    pair = golden_pair(shared, variant)
    together = [pair.prefill(slot, prompt) for slot, prompt in enumerate(("p3", "p5"))]
    for hidden, prompt in zip(pair.head.block(together), ("p3", "p5"), strict=True):
        close(hidden, pair.vectors[f"{prompt}.block_hidden"][0])


def test_context_in_pieces_and_after_a_block(shared: Path) -> None:
    """The block's own keys lie behind the context until it grows over them."""
    pair = golden_pair(shared, "deepspec/vanilla")
    ids = pair.ids("p5")
    assert len(ids) == 64
    done = 0
    for count in (1, 30, 8, 25):
        part = ids[done : done + count]
        pair.head.block([(1, done, part[0])])  # as when a round was drafted here
        _, taps = pair.run(1, done, part)
        pair.head.extend([Span(1, done, count)], taps)
        done += count
    block = pair.head.block([(1, done, int(pair.vectors["p5.anchor_id"]))])
    close(block[0], pair.vectors["p5.block_hidden"][0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("variant", [*DEEPSPEC, *SPECULATORS])
def test_on_a_gpu(shared: Path, variant: str) -> None:
    """The reference vectors hold on the device too; two requests in one block are as on the CPU."""
    torch.backends.cuda.matmul.allow_tf32 = False
    device = torch.device("cuda")
    pair, on_cpu = golden_pair(shared, variant, device), golden_pair(shared, variant, CPU)
    for i, prompt in enumerate(pair.prompts()):
        check_first_block(pair, i % SLOTS, prompt)
    blocks = [
        each.head.block([each.prefill(slot, prompt) for slot, prompt in enumerate(("p4", "p6"))])
        for each in (pair, on_cpu)
    ]
    assert blocks[0].device.type == "cuda"
    close(*blocks)
