"""From options to a pair that can be spawned: paths, checks from headers alone, the placement, device settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from twinspark.actors.checkpoint.compatible import check_head_fits
from twinspark.actors.checkpoint.opening import open_head, open_target
from twinspark.actors.checkpoint.source import HeadCheckpoint, TargetCheckpoint
from twinspark.actors.loading import check_settings
from twinspark.actors.specs import ActorSpec, DraftDtype, DraftSettings, DraftSpec, TargetSpec
from twinspark.cluster.pair import PairSpec
from twinspark.cluster.probe import Snapshot
from twinspark.deploy.embedded import Progress, demo_head_path, demo_model_path
from twinspark.deploy.options import Options
from twinspark.planner.placement import Decision, Device, Resources, decide

DEFAULT_CONTEXT = 2048
CPU_VERIFY_LENGTH = 5  # up to 6 rows cost a CPU target what 1 does; the 7th and 8th do not (docs/performance.md)


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


def resources_of(snapshot: Snapshot) -> Resources:
    return Resources(snapshot.num_cpus, snapshot.available_ram_bytes, len(snapshot.gpus), snapshot.gpu_search)


def plan_pair(
    options: Options,
    opened: Opened,
    snapshot: Snapshot,
    *,
    max_seqs: int | None = None,
    record_path: str | None = None,
) -> PairSpec:
    """The pair to spawn. `max_seqs` narrows the option where fewer requests are known to come.

    Raises ValueError (one line) for settings that do not go together.
    """
    decision = decide(options.dspark_place, resources_of(snapshot), has_head=opened.head is not None)
    most = opened.target.config.max_positions
    context = options.context or min(most, DEFAULT_CONTEXT)
    if context > most:
        raise ValueError(f"--context must be at most the model's {most}, got {context}")
    settings = None
    if opened.head is not None:
        settings = _draft_settings(options, opened.head, decision)
        check_settings(settings, opened.head)
    seqs = min(options.max_seqs, max_seqs or options.max_seqs)
    threads = options.threads or snapshot.num_cpus
    actor = ActorSpec(opened.target.path, decision.target_device, context, seqs, threads)
    target = TargetSpec(
        actor,
        dtype=_target_dtype(options, decision.target_device),
        numerics=options.numerics,
        colocated=settings if decision.placement == "colocated" else None,
    )
    draft = None
    if decision.placement in ("cpu", "gpu") and settings is not None and decision.draft_device is not None:
        where = ActorSpec(opened.target.path, decision.draft_device, context, seqs, options.dspark_threads)
        draft = DraftSpec(where, settings)
    share = 0.5 if decision.placement == "gpu" and len(snapshot.gpus) == 1 else 1.0
    return PairSpec(decision, target, draft, options.transport, gpu_share=share, record_path=record_path)


def _draft_settings(options: Options, head: HeadCheckpoint, decision: Decision) -> DraftSettings:
    most = head.config.num_draft_tokens
    chosen = min(most, CPU_VERIFY_LENGTH) if decision.target_device == "cpu" else most
    return DraftSettings(
        head.path, _draft_dtype(options, decision), options.dspark_verify_len or chosen, options.dspark_min_confidence
    )


def _draft_dtype(options: Options, decision: Decision) -> DraftDtype:
    if options.dspark_dtype != "auto":
        return options.dspark_dtype
    if options.dtype != "auto":
        return options.dtype
    return "bfloat16" if decision.draft_device == "cuda" else "int8"


def _target_dtype(options: Options, device: Device) -> Literal["float32", "bfloat16"]:
    if options.dtype != "auto":
        return options.dtype
    return "float32" if device == "cpu" else "bfloat16"
