"""The head's network against the reference vectors of the original code, floats and tokens (golden/README.md)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from twinspark.actors.checkpoint.opening import open_head, open_target, target_ids_of_draft
from twinspark.actors.nets.decoder import Decoder
from twinspark.actors.nets.head import Head, HeadPrecision
from twinspark.actors.nets.rows import Rows, Span

ATOL = 1e-4  # golden/README.md, Tolerances
CPU = torch.device("cpu")
CONTEXT = 256
DEEPSPEC = ("vanilla", "gated", "rnn", "nomarkov", "shallow_b4")
SPECULATORS = ("reduced_vocab_anchor", "full_vocab_dflash", "gated_anchor", "sliding_causal")
VARIANTS = [f"deepspec/{v}" for v in DEEPSPEC] + [f"speculators/{v}" for v in SPECULATORS]


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a.float(), b.float().view_as(a), atol=ATOL, rtol=0)


def build(shared: Path, variant: str) -> tuple[Decoder, Head, dict[str, Tensor], Tensor | None]:
    folder = shared / "golden" / variant
    head = open_head(str(folder / "draft"))
    target = open_target(str(shared / "golden/deepspec/targets/untied"))
    names = head.tensors.infos()

    def own_or_target(name: str, theirs: str) -> Tensor:
        return head.tensors.load(name) if name in names else target.tensors.load(theirs)

    trunk = Decoder(target.config, target.tensors.load, precision="float32", num_slots=2, context=CONTEXT, device=CPU)
    net = Head(
        head.config,
        head.tensors.load,
        embedding=own_or_target("embed_tokens.weight", "model.embed_tokens.weight"),
        lm_head=own_or_target("lm_head.weight", "lm_head.weight"),
        precision=HeadPrecision.uniform("float32"),
        num_slots=2,
        context=CONTEXT,
        device=CPU,
    )
    return trunk, net, load_file(folder / "golden.safetensors"), target_ids_of_draft(head)


@pytest.mark.parametrize("variant", VARIANTS)
def test_first_block_of_every_prompt(shared: Path, variant: str) -> None:
    trunk, net, golden, target_ids = build(shared, variant)
    config = net.config
    first = 0 if config.anchor_predicts else 1
    prompts = sorted({key.split(".")[0] for key in golden if key.startswith("p")})
    assert len(prompts) == 7
    for slot, p in enumerate(prompts):
        slot %= 2  # slots are reused: what an earlier prompt left behind must not matter
        ids = golden[f"{p}.prompt_ids"][0].tolist()
        span = Span(slot, 0, len(ids))
        hidden, taps = trunk.forward(Rows([span], ids, CPU), config.tap_ids)
        assert taps is not None
        close(taps, golden[f"{p}.taps"][0])
        anchor = int(golden[f"{p}.anchor_id"])
        last_logits = trunk.logits(hidden[-1:])
        assert int(last_logits.argmax()) == anchor
        if f"{p}.target_last_logits" in golden:
            close(last_logits, golden[f"{p}.target_last_logits"])

        net.extend([span], taps)
        block = net.block([(slot, len(ids), anchor)])
        close(block[0], golden[f"{p}.block_hidden"][0])
        base = net.lm_head(block[0])
        close(base, golden[f"{p}.base_logits"][0])

        prev = torch.tensor([anchor])
        state = net.markov.start(1) if net.markov else None
        drafts = []
        for k in range(config.block_size):
            corrected = base[k : k + 1]
            if net.markov is not None and state is not None:
                if config.has_confidence:
                    close(net.confidence(block[0, k : k + 1], prev)[0], golden[f"{p}.confidence_logits"][0, k])
                bias, state = net.markov.step(prev, block[0, k : k + 1], state)
                corrected = corrected + bias
            close(corrected[0], golden[f"{p}.corrected_logits"][0, k])
            if k < first:
                continue
            index = int(corrected.argmax())
            drafts.append(index if target_ids is None else int(target_ids[index]))
            prev = torch.tensor([drafts[-1]])
        assert drafts == golden[f"{p}.draft_tokens"][0].tolist()


def test_a_block_leaves_other_slots_alone(shared: Path) -> None:
    trunk, net, golden, _ = build(shared, "deepspec/vanilla")
    together = []
    for slot, p in enumerate(("p3", "p5")):
        ids = golden[f"{p}.prompt_ids"][0].tolist()
        _, taps = trunk.forward(Rows([Span(slot, 0, len(ids))], ids, CPU), net.config.tap_ids)
        assert taps is not None
        net.extend([Span(slot, 0, len(ids))], taps)
        together.append((slot, len(ids), int(golden[f"{p}.anchor_id"])))
    for hidden, p in zip(net.block(together), ("p3", "p5"), strict=True):
        close(hidden, golden[f"{p}.block_hidden"][0])
