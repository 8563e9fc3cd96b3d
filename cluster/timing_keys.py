"""What a time depends on, told of a pair: the keys under which its times are kept. Reads headers and versions only."""

from __future__ import annotations

from importlib import metadata

import torch

from twinspark.actors.link.base import Transport
from twinspark.actors.specs import DraftSettings, DraftSpec, TargetSpec
from twinspark.cluster.calibrate import CalibrationPlan
from twinspark.cluster.timings_cache import CacheKeys, LinkEntryKey, OverheadEntryKey, StepEntryKey
from twinspark.planner.timings import StepKey


def keys_of(
    plan: CalibrationPlan,
    *,
    target: TargetSpec,
    target_identity: str,
    head_identity: str = "",
    colocated: DraftSettings | None = None,
    draft: DraftSpec | None = None,
    hosts: tuple[str, str] = ("", ""),
    transport: Transport = "stream",
) -> CacheKeys:
    """Keys of everything that `plan` has timed. `hosts` are the lasting names of the target's and the draft's node: a
    private Ray gives its nodes other names each time.
    """
    torch_version, twinspark_version = str(torch.__version__), metadata.version("twinspark")
    their_threads, draft_threads = target.actor.num_threads, 0 if draft is None else draft.actor.num_threads

    def step(key: StepKey, threads: int, beside_threads: int, dtype: str, head: str = "") -> StepEntryKey:
        return StepEntryKey(
            role=key.role,
            device_class=key.device_class,
            threads=threads,
            beside_threads=beside_threads if key.beside else 0,
            target=target_identity,
            head=head,
            dtype=dtype,
            numerics=target.numerics,
            torch_version=torch_version,
            twinspark_version=twinspark_version,
        )

    steps: dict[StepKey, StepEntryKey] = {}
    verify = [StepKey("verify", plan.target_class)]
    if draft is not None and plan.beside:
        verify.append(StepKey("verify", plan.target_class, beside=True))
    for key in verify:
        steps[key] = step(key, their_threads, draft_threads, target.dtype)
    if colocated is not None:
        key = StepKey("colocated", plan.target_class)
        steps[key] = step(key, their_threads, 0, colocated.dtype, head_identity)
    links: dict[tuple[str, str], LinkEntryKey] = {}
    if draft is not None and plan.draft is not None:
        key = StepKey("draft", plan.draft_class, plan.beside)
        steps[key] = step(key, draft_threads, their_threads, draft.settings.dtype, head_identity)
        a, b = sorted(hosts)
        links[plan.target.node, plan.draft.node] = LinkEntryKey(
            hosts=(a, b), transport=transport, twinspark_version=twinspark_version
        )
    overhead = OverheadEntryKey(
        device_class=plan.target_class,
        threads=their_threads,
        torch_version=torch_version,
        twinspark_version=twinspark_version,
    )
    return CacheKeys(steps, links, {plan.target_class: overhead})
