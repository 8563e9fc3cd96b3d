"""The pair's checkpoints, found and checked from headers alone."""

from __future__ import annotations

from dataclasses import dataclass

from twinspark.actors.checkpoint.compatible import check_head_fits
from twinspark.actors.checkpoint.opening import open_head, open_target
from twinspark.actors.checkpoint.source import HeadCheckpoint, TargetCheckpoint
from twinspark.deploy.embedded import Progress, demo_head_path, demo_model_path
from twinspark.deploy.options import Options


@dataclass(frozen=True)
class Opened:
    """The pair's checkpoints, headers read."""

    target: TargetCheckpoint
    head: HeadCheckpoint | None


def open_pair(options: Options, say: Progress) -> Opened:
    """Both checkpoints, checked against each other. Raises CheckpointError, or DemoModelError where a fetch fails."""
    model = str(demo_model_path(say)) if options.model == "demo" else options.model
    target = open_target(model)
    if options.dspark_model == "none":
        return Opened(target, None)
    head = open_head(str(demo_head_path()) if options.dspark_model == "demo" else options.dspark_model)
    if options.dspark_place != "off":
        check_head_fits(head, target)
    return Opened(target, head)
