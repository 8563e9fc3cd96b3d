"""Which pairs have to be timed before the planner can compare placements, and timing them.

A stage is one way to sit: the target alone or with a head beside it, or a draft actor at one seat. Stages around one
target share its actor: the draft is moved from one to the next, as it is while serving.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from twinspark.actors.checkpoint.identity import checkpoint_identity
from twinspark.actors.checkpoint.source import HeadCheckpoint, TargetCheckpoint
from twinspark.cluster.calibrate import BUDGET_S, CalibrationPlan, RayCalls, calibrate
from twinspark.cluster.errors import SpawnError
from twinspark.cluster.pair import Pair, PairSpec
from twinspark.cluster.timing_keys import keys_of
from twinspark.cluster.timings_cache import NEWEST_COUNTS, CacheKeys, joined, load, store
from twinspark.planner.nodes import Seat
from twinspark.planner.placement import Candidate, Decision
from twinspark.planner.predict import Predictor
from twinspark.planner.timings import Grid, StepKey, Timings

log = logging.getLogger(__name__)

MOST_STAGES = 8  # more ways to sit than that differ in what they are called, or cannot be timed in the time there is
LEAST_BUDGET_S = 2.0
OnStage = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Stage:
    """A candidate to be timed, what of it, and under which keys that is kept."""

    candidate: Candidate
    plan: CalibrationPlan
    keys: CacheKeys

    def is_known(self, timings: Timings) -> bool:
        """Whether `timings` reach as far as this stage is asked for."""
        reaching = all(self._reaches(timings.steps.get(key)) for key in self.keys.steps)
        return reaching and all(timings.link(*ends) is not None for ends in self.keys.links)

    def alone(self, timings: Timings) -> Grid | None:
        """What the target's passes took with nothing beside it, if `timings` reach as far as that."""
        grid = timings.steps.get(StepKey("verify", self.plan.target_class))
        return grid if self._reaches(grid) else None

    def _reaches(self, grid: Grid | None) -> bool:
        return (
            grid is not None
            and max(cell.num_requests for cell in grid.cells) >= self.plan.max_seqs
            and max(cell.length for cell in grid.cells) >= max(self.plan.lengths, default=0)
        )


def stages_of(spec: PairSpec, target: TargetCheckpoint, head: HeadCheckpoint | None) -> list[Stage]:
    """What the candidates of `spec` need timed, each kind of device once: the seats the planner looked at first."""
    predictor = spec.inputs.predictor
    target_identity = checkpoint_identity(target)
    head_identity = "" if head is None else checkpoint_identity(head)
    stages: list[Stage] = []
    seen: set[tuple[StepKey, ...]] = set()
    for candidate in _one_target_a_class(spec.decision, predictor):
        site = candidate.site
        about = [predictor.verify_key(site)]
        if candidate.placement != "off":
            about.append(predictor.draft_key(site))
        away = candidate.draft is not None and candidate.draft.node != candidate.target.node
        about += [StepKey("draft", candidate.draft.node)] if away and candidate.draft is not None else []
        if tuple(about) in seen:
            continue
        seen.add(tuple(about))
        stages.append(_stage(spec, candidate, predictor, target_identity, head_identity))
    if len(stages) > MOST_STAGES:
        log.warning("of %d ways to place the pair, the first %d are timed", len(stages), MOST_STAGES)
    return stages[:MOST_STAGES]


def known_timings(stages: Sequence[Stage], directory: Path) -> Timings:
    """What was kept of earlier timings."""
    return joined(load(directory, stage.keys) for stage in stages)


async def measure(spec: PairSpec, stages: Sequence[Stage], directory: Path, on_stage: OnStage) -> Timings:
    """Time `stages`, within BUDGET_S of timings in all (bringing actors up takes its own time), and keep the result.

    A stage that cannot be brought up is left out, which is logged: its candidates are not predicted then.
    """
    budget_s = max(LEAST_BUDGET_S, BUDGET_S / max(1, len(stages)))
    found = [spec.inputs.timings]
    for _, group in groupby(stages, key=lambda stage: stage.candidate.target):
        around = list(group)
        alone = replace(around[0].candidate, placement="off", draft=None)
        decision = replace(spec.decision, chosen=alone, fallbacks=())
        try:
            async with Pair.start(replace(spec, decision=decision), supervised=False) as pair:
                for stage in around:
                    await _measure_one(pair, stage, budget_s, found, directory, on_stage)
        except SpawnError as error:
            log.warning("not timed: %s", error)
    return joined(found[1:])


async def _measure_one(
    pair: Pair, stage: Stage, budget_s: float, found: list[Timings], directory: Path, on_stage: OnStage
) -> None:
    name = stage.candidate.placement

    def on_progress(done: int, total: int) -> None:
        on_stage(f"timing {name}", done, total)

    try:
        await pair.place(stage.candidate)
    except SpawnError as error:
        log.warning("%s is not timed: %s", name, error)
        return
    draft = None if pair.draft is None else RayCalls(pair.draft)
    plan = replace(stage.plan, alone=stage.alone(joined(found)))
    timings = await calibrate(RayCalls(pair.target), draft, plan, budget_s=budget_s, on_progress=on_progress)
    timings = found[0].drawn_towards(timings, NEWEST_COUNTS)
    store(directory, stage.keys, timings)
    found.append(timings)


def _one_target_a_class(decision: Decision, predictor: Predictor) -> list[Candidate]:
    """Feasible candidates around the first target of each device class, those of one target together; `off` is timed
    with `colocated` where that fits.
    """
    targets: dict[str, Seat] = {}
    feasible = [c for c in decision.candidates if c.feasible]
    # The decision's own target stands for its class.
    for candidate in sorted(feasible, key=lambda c: c.target != decision.chosen.target):
        targets.setdefault(predictor.device_class(candidate.target), candidate.target)
    around = [[c for c in feasible if c.target == target] for target in targets.values()]
    return [
        candidate
        for group in around
        for candidate in group
        if candidate.placement != "off" or not any(c.placement == "colocated" for c in group)
    ]


def _stage(
    spec: PairSpec, candidate: Candidate, predictor: Predictor, target_identity: str, head_identity: str
) -> Stage:
    recipe, inputs = spec.recipe, spec.inputs
    target, draft = candidate.target, candidate.draft
    colocated = candidate.placement == "colocated"
    plan = CalibrationPlan(
        target=target,
        target_class=predictor.device_class(target),
        max_seqs=inputs.demand.num_requests,
        context=recipe.context,
        most_length=inputs.demand.priced_length if candidate.placement != "off" else 0,
        colocated=colocated,
        draft=draft,
        draft_class="" if draft is None else predictor.device_class(draft),
        batch_sizes=(inputs.demand.num_requests,),
        lengths=(inputs.demand.priced_length,) if candidate.placement != "off" else (),
    )
    length = max(1, inputs.demand.priced_length)
    keys = keys_of(
        plan,
        target=recipe.target_spec(target, plan.max_seqs, inputs.node(target.node).num_cpus),
        target_identity=target_identity,
        head_identity=head_identity,
        colocated=recipe.draft_settings(target, length) if colocated else None,
        draft=None if draft is None else recipe.draft_spec(draft, plan.max_seqs, length),
        hosts=(inputs.node(target.node).host, inputs.node(draft.node).host) if draft is not None else ("", ""),
        transport=recipe.transport,
    )
    return Stage(candidate, plan, keys)
