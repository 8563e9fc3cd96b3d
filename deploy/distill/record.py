"""What `training.json` tells of a head: acceptance by position on held-out text, and how honest its confidences are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from twinspark.deploy.distill.anchors import first_run, random_anchors
from twinspark.deploy.distill.calibration import Floats, Scaling, fit_scaling, prefix_survival, reliability
from twinspark.deploy.distill.head_net import HeadNet
from twinspark.deploy.distill.judge import Judged, judge, rounds_of
from twinspark.deploy.distill.teacher import Teacher
from twinspark.deploy.distill.trainer import Data

JUDGED_TEXTS = 1024  # an error of calibration of 1% is seen among tens of thousands of blocks
JUDGED_ANCHORS = 48
DECODED_TEXTS, DECODED_ANCHORS = 256, 64


def judged_record(
    net: HeadNet, teacher: Teacher, data: Data, target_ids: Tensor | None
) -> tuple[dict[str, Any], dict[str, tuple[Judged, Floats]]]:
    """For `training.json`, and by name what was judged beside the survival that is told after scaling, [blocks, slots].
    The scaling is fitted to all texts; how honest it is, each half tells of the other half's. `conditional_acceptance`
    is over the rounds of decoding; without a greedy answer long enough it is over all places.
    """
    ids = data.held_out[:JUDGED_TEXTS]
    random = torch.Generator().manual_seed(7)
    anchors = random_anchors(data.turns.answers(ids), JUDGED_ANCHORS, net.config.block_size, random)
    ids_of_draft = None if target_ids is None else target_ids.to(teacher.device)
    found = judge(net, teacher, ids, anchors, ids_of_draft)
    greedy, sampled = (
        Judged(found.told[found.written], found.greedy[found.written]),
        Judged(found.told, found.sampled),
    )
    decoded = _decoded(net, teacher, data, ids_of_draft)
    best = next((judged for judged in (decoded, greedy) if len(judged.kept)), sampled)
    record: dict[str, Any] = {
        "conditional_acceptance": _rounded(best.conditional),
        "decoded": _acceptance(decoded),
    }
    told: dict[str, tuple[Judged, Floats]] = {}
    for name, judged in (("greedy", greedy), ("temperature 1", sampled)):
        key = name.replace(" ", "_")
        record[key] = _acceptance(judged)
        if not len(judged.kept):
            continue  # no held-out text was written greedily
        scaling = Scaling.none(judged.told.shape[1])
        if net.config.has_confidence and len(judged.told) > 1:
            unscaled, scaling = scaling, fit_scaling(judged.told, judged.survived)
            record[key] |= {
                "confidence_temperatures": _rounded(scaling.temperatures.tolist()),
                "confidence_shifts": _rounded(scaling.shifts.tolist()),
                "before": _honesty(prefix_survival(judged.told, unscaled), judged.survived),
                "after": _honesty(_by_other_half(judged), judged.survived),
            }
        told[name] = judged, prefix_survival(judged.told, scaling)
    return record, told


def _decoded(net: HeadNet, teacher: Teacher, data: Data, ids_of_draft: Tensor | None) -> Judged:
    """The rounds of greedy decoding along the first answers of held-out texts."""
    texts = data.held_out[data.held_out_is_greedy]
    long_enough, anchors = first_run(data.turns.answers(texts), DECODED_ANCHORS, net.config.block_size)
    taken = slice(DECODED_TEXTS)
    if not len(long_enough):
        return Judged(np.zeros((0, net.config.block_size)), np.zeros((0, net.config.block_size)))
    found = judge(net, teacher, texts[long_enough[taken]], anchors[taken], ids_of_draft)
    rounds = rounds_of(found.greedy.reshape(*anchors[taken].shape, -1))
    return Judged(found.told[rounds], found.greedy[rounds])


def _acceptance(judged: Judged) -> dict[str, Any]:
    if not len(judged.kept):
        return {"num_blocks": 0}
    return {
        "num_blocks": len(judged.kept),
        "acceptance_length": round(judged.acceptance_length, 4),
        "conditional_acceptance": _rounded(judged.conditional),
    }


def _by_other_half(judged: Judged) -> Floats:
    """Survival as told by the scaling that the other half of the blocks (of other texts) fits: no block is judged by
    what it was fitted to, and all are judged.
    """
    half = len(judged.told) // 2
    first, second = slice(half), slice(half, None)
    parts = ((first, second), (second, first))
    return np.concatenate(
        [prefix_survival(judged.told[own], fit_scaling(judged.told[o], judged.survived[o])) for own, o in parts]
    )


def _honesty(survival: Floats, survived: Floats) -> dict[str, Any]:
    found = reliability(survival, survived)
    return {
        "mean_ece": round(float(np.mean([r.expected_error for r in found])), 5),
        "ece": _rounded([r.expected_error for r in found], 5),
        "brier": _rounded([r.brier for r in found], 5),
        "base_rate_brier": _rounded([r.base_brier for r in found], 5),
    }


def _rounded(values: list[float], digits: int = 4) -> list[float]:
    return [round(value, digits) for value in values]
