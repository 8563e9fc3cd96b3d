"""The head that learns is the head that runs: against DeepSpec's own vectors, and against the files it is saved in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from golden_pair import CPU, close, golden_pair
from small_engine import golden_target
from torch import Tensor

from twinspark.actors.checkpoint.opening import open_head, open_target, target_ids_of_draft
from twinspark.actors.loading import Progress, load_drafter
from twinspark.actors.nets.rows import Rows, Span
from twinspark.actors.specs import ActorSpec, DraftSettings, DraftSpec
from twinspark.deploy.distill.batch_net import BatchNet
from twinspark.deploy.distill.head_files import head_config_of, most_frequent, write_head
from twinspark.deploy.distill.head_net import HeadNet
from twinspark.deploy.distill.settings import DistillSettings
from twinspark.deploy.distill.teacher import Teacher, draft_lm_head

GOLDEN = [
    *(f"deepspec/{v}" for v in ("vanilla", "gated", "rnn", "nomarkov", "shallow_b4")),
    "speculators/reduced_vocab_anchor",
    "speculators/gated_anchor",
]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("variant", GOLDEN)
def test_it_computes_what_the_reference_does(shared: Path, variant: str) -> None:
    pair, head = golden_pair(shared, variant), open_head(str(shared / "golden" / variant / "draft"))
    target = open_target(str(shared / "golden/deepspec/targets/untied"))
    names = head.tensors.infos()
    size = head.config.block_size

    def weight(mine: str, theirs: str) -> Tensor:
        return head.tensors.load(mine) if mine in names else target.tensors.load(theirs)

    for prompt in pair.prompts():
        vectors = {key.split(".")[1]: value for key, value in pair.vectors.items() if key.startswith(f"{prompt}.")}
        ids = torch.cat([vectors[name][0] for name in ("prompt_ids", "anchor_id", "draft_tokens")])
        net = HeadNet(
            head.config,
            embedding=weight("embed_tokens.weight", "model.embed_tokens.weight"),
            lm_head=weight("lm_head.weight", "lm_head.weight"),
            length=len(ids),
            seed=0,
        )
        net.load_state_dict({name: head.tensors.load(name) for name, _ in net.named_parameters()})
        taps = torch.full((1, len(ids), vectors["taps"].shape[-1]), 7.0)  # what the head must not see
        position = vectors["taps"].shape[1]
        taps[:, :position] = vectors["taps"]
        with torch.no_grad():
            blocks = net(ids[None], taps, torch.tensor([[position]]))
        assert blocks.logits.shape[:3] == (1, 1, size)
        close(blocks.logits[0, 0], vectors["corrected_logits"][0])
        if blocks.confidence is None:
            assert "confidence_logits" not in vectors
        else:
            close(blocks.confidence[0, 0], vectors["confidence_logits"][0])


def test_blocks_do_not_see_each_other(shared: Path) -> None:
    net, teacher, ids = small_head(shared, DistillSettings(steps=1, taps=(-1, 0, 1), layers=2))
    anchors = torch.tensor([[3, 5, 20], [1, 8, 33]])
    taps, _ = teacher.along(ids, net.config.tap_ids, anchors, net.config.block_size)
    with torch.no_grad():
        together = net(ids, taps, anchors)
        alone = [net(ids, taps, anchors[:, i : i + 1]) for i in range(3)]
    assert together.confidence is not None
    for i, one in enumerate(alone):
        assert one.confidence is not None
        torch.testing.assert_close(together.logits[:, i : i + 1], one.logits, atol=1e-5, rtol=0)
        torch.testing.assert_close(together.confidence[:, i : i + 1], one.confidence, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"markov_head": "gated"},
        {"markov_head": "rnn", "confidence": "plain"},
        {"markov_rank": 0, "confidence": "none"},
        {"draft_vocab": 200},
        {"draft_vocab": 200, "markov_head": "rnn", "block_size": 4},
    ],
    ids=str,
)
def test_what_is_saved_drafts_the_same(shared: Path, tmp_path: Path, changes: dict[str, object]) -> None:
    """Out of files, through the loader and the proposer of a draft actor, lm_head rows gathered from the target."""
    settings = DistillSettings.model_validate({"steps": 1, "taps": (-1, 0, 1), "layers": 2, "markov_rank": 8} | changes)
    net, teacher, ids = small_head(shared, settings)
    if net.markov_head is not None:
        torch.nn.init.normal_(net.markov_head.markov_w2.weight, std=0.5)
    kept = most_frequent(ids, net.config.decoder.vocab_size, settings.draft_vocab)
    target_ids = kept if net.config.reduced_vocab else None
    net.lm_head = draft_lm_head(teacher, target_ids)
    weights = {name: value.detach() for name, value in net.named_parameters()}
    write_head(tmp_path, net.config, weights, target_ids, torch.float32, {"conditional_acceptance": [0.5]})
    saved = open_head(str(tmp_path))
    assert "lm_head.weight" not in saved.tensors.infos()
    assert saved.config.tap_ids == settings.taps
    found = target_ids_of_draft(saved)
    assert (found is None) if target_ids is None else torch.equal(found, target_ids)

    position, text = 20, ids[0].tolist()
    size = net.config.block_size
    model = str(shared / "golden/deepspec/targets/untied")
    spec = DraftSpec(ActorSpec(model, "cpu", 64, 2, 1), DraftSettings(str(tmp_path), "float32", size))
    drafter, _ = load_drafter(spec, Progress())
    head, trunk = drafter.proposer.head, drafter.trunk
    with torch.inference_mode():
        _, taps = trunk.forward(Rows([Span(0, 0, position)], text[:position], CPU), settings.taps)
        assert taps is not None
        head.extend([Span(0, 0, position)], taps)
        hidden = head.block([(0, position, text[position])])[0]
        logits = head.lm_head(hidden)
        if head.markov is not None:
            state = head.markov.start(1)
            for k in range(size):
                bias, state = head.markov.step(torch.tensor([text[position + k]]), hidden[k : k + 1], state)
                logits[k] += bias[0]
        anchors = torch.tensor([[position]])
        all_taps, _ = teacher.along(ids[:1], settings.taps, anchors, size)
        blocks = net(ids[:1], all_taps, anchors)
    torch.testing.assert_close(logits, blocks.logits[0, 0], atol=1e-4, rtol=0)


def test_a_batch_of_texts_is_what_the_target_computes(shared: Path) -> None:
    target = golden_target(shared, num_slots=3)
    net, ids = BatchNet(target), torch.randint(0, 500, (3, 40), generator=torch.Generator().manual_seed(3))
    taps = (-1, 1, 4)
    hidden, tapped = net.texts(ids, taps)
    assert tapped is not None
    cache = net.cache(3, 40)
    steps = [net.step(ids[:, i], torch.tensor([i]), cache, 40 if i > 16 else 17) for i in range(40)]
    for slot in range(3):
        expected, expected_taps = target.forward(Rows([Span(slot, 0, 40)], ids[slot].tolist(), CPU), taps)
        assert expected_taps is not None
        torch.testing.assert_close(hidden[slot], expected, atol=1e-4, rtol=0)
        torch.testing.assert_close(tapped[slot], expected_taps, atol=1e-4, rtol=0)
        logits = target.logits(expected)
        torch.testing.assert_close(torch.stack([step[slot] for step in steps]), logits, atol=1e-3, rtol=0)


def test_most_frequent_ids() -> None:
    ids = torch.tensor([[5, 5, 2, 9], [9, 9, 1, 2]])
    assert most_frequent(ids, 12, 3).tolist() == [2, 5, 9]
    assert most_frequent(ids, 12, 5).tolist() == [0, 1, 2, 5, 9], "of equals the lower ids"


def small_head(shared: Path, settings: DistillSettings) -> tuple[HeadNet, Teacher, Tensor]:
    """A random head for the reference target, and two texts."""
    target = open_target(str(shared / "golden/deepspec/targets/untied"))
    teacher = Teacher(target, precision="float32", length=48, device=CPU)
    config = head_config_of(settings, target.config, 511)
    ids = torch.randint(0, 500, (2, 48), generator=torch.Generator().manual_seed(5))
    kept = most_frequent(ids, target.config.vocab_size, settings.draft_vocab) if config.reduced_vocab else None
    lm_head = draft_lm_head(teacher, kept)
    return HeadNet(config, embedding=teacher.embedding, lm_head=lm_head, length=48, seed=4), teacher, ids
