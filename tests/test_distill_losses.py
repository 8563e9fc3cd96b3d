"""Losses and calibration against numbers worked out another way."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from twinspark.deploy.acceptance import chances
from twinspark.deploy.distill.calibration import Scaling, curve, fit_scaling, prefix_survival, reliability
from twinspark.deploy.distill.head_net import Blocks
from twinspark.deploy.distill.losses import Weights, losses


def test_by_hand() -> None:
    """Two slots of one block over three tokens."""
    draft = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]).log()[None, None]
    target = torch.tensor([[0.25, 0.5, 0.25], [0.2, 0.6, 0.2]]).log()[None, None]
    confidence = torch.tensor([[[0.0, 2.0]]])
    found = losses(Blocks(draft, confidence), torch.tensor([[[1, 1]]]), target, None, Weights(0.3, 0.7, 0.5, 2.0))
    assert found.kept.tolist() == pytest.approx([0.75, 0.8])

    def told(logit: float, chance: float) -> float:
        p = 1 / (1 + math.exp(-logit))
        return -chance * math.log(p) - (1 - chance) * math.log(1 - p)

    slots = [
        0.3 * -math.log(0.25) + 0.7 * 2 * 0.25 + 0.5 * told(0.0, 0.75),
        0.3 * -math.log(0.8) + 0.7 * 2 * 0.2 + 0.5 * told(2.0, 0.8),
    ]
    second = math.exp(-0.5)
    assert float(found.total) == pytest.approx((slots[0] + second * slots[1]) / (1 + second), rel=1e-5)


@pytest.mark.parametrize("temperature", [1.0])
def test_kept_is_the_most_that_any_rule_could_keep(temperature: float) -> None:
    random = torch.Generator().manual_seed(1)
    draft, target = (torch.randn(1, 6, 1, 40, generator=random) * 2 for _ in range(2))
    labels = torch.zeros(1, 6, 1, dtype=torch.int64)
    found = losses(Blocks(draft, None), labels, target, None, Weights())
    expected = chances(target.flatten(0, 2), draft.flatten(0, 2), temperature).optimal.mean()
    assert float(found.kept) == pytest.approx(float(expected), abs=1e-5)


ON_GPU = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_GPU)])
@pytest.mark.parametrize("num_kept", [90, 300])
def test_the_compiled_loss_is_the_plain_one(device: str, num_kept: int) -> None:
    """Traced as one graph; on a GPU compiled as in training. Values and gradients."""
    random = torch.Generator().manual_seed(4)
    kept = torch.randperm(300, generator=random)[:num_kept].sort().values.to(device)
    draft = torch.randn(3, 4, 7, num_kept, generator=random).to(device).requires_grad_()
    confidence = torch.randn(3, 4, 7, generator=random).to(device).requires_grad_()
    target = torch.randn(3, 4, 7, 300, generator=random).to(device)
    labels = torch.randint(0, 300, (3, 4, 7), generator=random).to(device)
    target_ids = None if num_kept == 300 else kept
    compiled = torch.compile(losses, dynamic=False, backend="aot_eager" if device == "cpu" else "inductor")
    found = []
    for loss in (losses, compiled):
        one = loss(Blocks(draft, confidence), labels, target, target_ids, Weights())
        found.append([one.total.detach(), one.kept, *torch.autograd.grad(one.total, (draft, confidence))])
    for plain, other in zip(*found, strict=True):
        torch.testing.assert_close(other, plain, rtol=1e-4, atol=1e-6)


def test_a_reduced_vocabulary_is_one_that_gives_the_rest_no_chance() -> None:
    random = torch.Generator().manual_seed(2)
    kept = torch.tensor([1, 4, 5, 9])
    draft, target = torch.randn(2, 3, 2, 4, generator=random), torch.randn(2, 3, 2, 12, generator=random)
    whole = torch.full((2, 3, 2, 12), -1e9)
    whole[..., kept] = draft
    labels = kept[torch.randint(0, 4, (2, 3, 2), generator=random)]
    confidence = torch.randn(2, 3, 2, generator=random)
    reduced = losses(Blocks(draft, confidence), labels, target, kept, Weights())
    full = losses(Blocks(whole, confidence), labels, target, None, Weights())
    assert float(reduced.total) == pytest.approx(float(full.total), rel=1e-5)
    assert reduced.kept.tolist() == pytest.approx(full.kept.tolist(), abs=1e-6)
    outside = losses(Blocks(draft, confidence), torch.zeros_like(labels), target, kept, Weights())
    assert math.isfinite(float(outside.total)), "a token the draft cannot say has no cross entropy"


def test_the_confidence_teaches_nothing_to_the_drafts() -> None:
    logits = torch.randn(1, 1, 2, 5, requires_grad=True)
    confidence = torch.zeros(1, 1, 2, requires_grad=True)
    labels = torch.zeros(1, 1, 2, dtype=torch.int64)
    found = losses(Blocks(logits, confidence), labels, torch.randn(1, 1, 2, 5), None, Weights(0.0, 0.0, 1.0))
    found.total.backward()  # type: ignore[no-untyped-call]
    assert logits.grad is None or not logits.grad.any()
    assert confidence.grad is not None
    assert confidence.grad.any()


def test_the_scaling_that_was_put_in_is_found() -> None:
    random = np.random.default_rng(3)
    truth = Scaling(np.array([0.5, 2.0, 1.0]), np.array([1.0, -0.5, 0.0]))
    logits = random.normal(0.5, 2.0, (40_000, 3))
    chances = 1 / (1 + np.exp(-(logits / truth.temperatures + truth.shifts)))
    survived = np.cumprod(random.random((40_000, 3)) < chances, axis=1).astype(np.float64)
    found = fit_scaling(logits, survived)
    assert found.temperatures == pytest.approx(truth.temperatures, rel=0.15)
    assert found.shifts == pytest.approx(truth.shifts, abs=0.1)
    before = reliability(prefix_survival(logits, Scaling.none(3)), survived)
    after = reliability(prefix_survival(logits, found), survived)
    assert max(r.expected_error for r in after) < 0.015 < before[0].expected_error
    assert all(a.brier < min(b.brier, a.base_brier) for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize("came", [0.0, 1.0])
def test_a_scaling_is_finite_where_all_came_alike(came: float) -> None:
    logits = np.random.default_rng(0).normal(size=(50, 2))
    found = fit_scaling(logits, np.full((50, 2), came))
    assert np.isfinite(found.temperatures).all()
    assert np.isfinite(found.shifts).all()
    assert prefix_survival(logits, found)[:, 0] == pytest.approx(np.full(50, came), abs=0.05)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 400), st.integers(0, 2**32 - 1))
def test_reliability_holds_together(count: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    told, came = random.random(count), (random.random(count) < 0.5).astype(np.float64)
    points = curve(told, came)
    assert sum(share for _, _, share in points) == pytest.approx(1.0)
    assert sum(share * mean for mean, _, share in points) == pytest.approx(told.mean())
    [one] = reliability(told[:, None], came[:, None])
    assert 0 <= one.expected_error <= 1
    assert one.expected_error >= abs(told.mean() - came.mean()) - 1e-12
    assert one.base_brier == pytest.approx(came.mean() * (1 - came.mean()))
