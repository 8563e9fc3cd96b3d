"""What `training.json` tells of a head: acceptance by position on held-out text, and how honest its confidences are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from twinspark.deploy.distill.anchors import random_anchors
from twinspark.deploy.distill.calibration import Floats, Scaling, fit_scaling, prefix_survival, reliability
from twinspark.deploy.distill.head_net import HeadNet
from twinspark.deploy.distill.judge import Judged, judge
from twinspark.deploy.distill.teacher import Teacher
from twinspark.deploy.distill.trainer import Data

JUDGED_TEXTS = 1024  # an error of calibration of 1% is seen among tens of thousands of blocks
JUDGED_ANCHORS = 48


def judged_record(
    net: HeadNet, teacher: Teacher, data: Data, target_ids: Tensor | None
) -> tuple[dict[str, Any], dict[str, tuple[Judged, Floats]]]:
    """For `training.json`, and by name what was judged beside the survival that is told after scaling, [blocks, slots].
    Half of the texts fit the scaling, the others tell how honest they are.
    """
    ids = data.held_out[:JUDGED_TEXTS]
    random = torch.Generator().manual_seed(7)
    anchors = random_anchors(data.turns.answers(ids), JUDGED_ANCHORS, net.config.block_size, random)
    ids_of_draft = None if target_ids is None else target_ids.to(teacher.device)
    greedy, sampled = judge(net, teacher, ids, anchors, ids_of_draft)
    record: dict[str, Any] = {"conditional_acceptance": _rounded((greedy if len(greedy.kept) else sampled).conditional)}
    told: dict[str, tuple[Judged, Floats]] = {}
    for name, found in (("greedy", greedy), ("temperature 1", sampled)):
        key = name.replace(" ", "_")
        record[key] = {"num_blocks": len(found.kept)}
        if not len(found.kept):
            continue  # no held-out text was written greedily
        record[key] |= {
            "acceptance_length": round(found.acceptance_length, 4),
            "conditional_acceptance": _rounded(found.conditional),
        }
        scaling = Scaling.none(found.told.shape[1])
        if net.config.has_confidence and len(found.told) > 1:
            half = len(found.told) // 2  # of other texts than the rest
            fitted, tested = slice(half), slice(half, None)
            unscaled, scaling = scaling, fit_scaling(found.told[fitted], found.survived[fitted])
            record[key] |= {
                "confidence_temperatures": _rounded(scaling.temperatures.tolist()),
                "confidence_shifts": _rounded(scaling.shifts.tolist()),
                "before": _honesty(found.told[tested], unscaled, found.survived[tested]),
                "after": _honesty(found.told[tested], scaling, found.survived[tested]),
            }
        told[name] = found, prefix_survival(found.told, scaling)
    return record, told


def _honesty(told: Floats, scaling: Scaling, survived: Floats) -> dict[str, Any]:
    found = reliability(prefix_survival(told, scaling), survived)
    return {
        "mean_ece": round(float(np.mean([r.expected_error for r in found])), 5),
        "ece": _rounded([r.expected_error for r in found], 5),
        "brier": _rounded([r.brier for r in found], 5),
        "base_rate_brier": _rounded([r.base_brier for r in found], 5),
    }


def _rounded(values: list[float], digits: int = 4) -> list[float]:
    return [round(value, digits) for value in values]
