"""A Ray to work in and the pair that was planned for it: where `generate`, `demo` and `plan` come together.

Without an address this machine is planned for, and whatever is wrong is told before Ray starts. What the planner wants
to know and nobody has timed yet is timed first, once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from twinspark.actors.checkpoint.head_record import conditional_acceptance
from twinspark.actors.checkpoint.identity import checkpoint_identity
from twinspark.actors.target.request import Report
from twinspark.cluster.acceptance_cache import AcceptanceKey, believed, remember
from twinspark.cluster.measure import Stage, known_timings, measure, stages_of
from twinspark.cluster.observed import observed
from twinspark.cluster.pair import PairSpec
from twinspark.cluster.ray_session import ray_session
from twinspark.cluster.survey import survey_cluster, survey_here
from twinspark.cluster.timings_cache import NEWEST_COUNTS, joined, store
from twinspark.deploy.embedded import cache_dir
from twinspark.deploy.opening import Opened
from twinspark.deploy.options import Options
from twinspark.deploy.plan_pair import NOT_MEASURED, plan_pair
from twinspark.deploy.progress import note, timing_bar
from twinspark.planner.nodes import Node
from twinspark.planner.placement import Site
from twinspark.planner.timings import Timings


def timings_dir() -> Path:
    """Where step times are kept."""
    return cache_dir() / "timings"


@dataclass
class Plan:
    """A plan in the making: `spec` as it stands, `missing` what nobody has timed yet."""

    options: Options
    opened: Opened
    nodes: Sequence[Node]
    max_seqs: int | None = None
    record_path: str | None = None
    timings: Timings = NOT_MEASURED
    stages: list[Stage] = field(default_factory=list)
    survival: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        self.spec = self._decided()
        measuring = self.options.dspark_place == "auto" and not self.options.static
        if measuring and self.opened.head is not None:
            self.stages = stages_of(self.spec, self.opened.target, self.opened.head)
            self.survival = believed(
                timings_dir(), self._acceptance_key(), conditional_acceptance(self.opened.head.path)
            )
            if not self.options.recalibrate:
                self.timings = known_timings(self.stages, timings_dir())
            self.spec = self._decided()

    @property
    def missing(self) -> list[Stage]:
        return [stage for stage in self.stages if not stage.is_known(self.timings)]

    async def complete(self) -> None:
        """Time what is missing, in a Ray session, and decide again."""
        if self.missing:
            note("timing this machine for the planner (at most 10 s, kept for the next time)")
            with timing_bar() as on_stage:
                self.timings = joined([self.timings, await measure(self.spec, self.missing, timings_dir(), on_stage)])
            self.spec = self._decided()

    def remember(self, reports: Sequence[Report], site: Site | None = None) -> None:
        """Keep how these answers' drafts were accepted and, where they all ran at `site`, what their steps took: for
        the next plan.
        """
        if self.opened.head is None:
            return
        remember(timings_dir(), self._acceptance_key(), reports)
        if site is not None and self.stages:
            seen = observed(reports, site, self.spec.inputs.predictor, self.spec.inputs.demand.num_requests)
            found = self.timings.drawn_towards(seen, NEWEST_COUNTS)
            for stage in self.stages:
                store(timings_dir(), stage.keys, found)
            self.timings = joined([self.timings, found])

    def _acceptance_key(self) -> AcceptanceKey:
        kind = self.spec.decision.chosen.seat.kind
        return AcceptanceKey(
            target=checkpoint_identity(self.opened.target),
            head="" if self.opened.head is None else checkpoint_identity(self.opened.head),
            dtype=self.spec.recipe.draft_dtypes[kind],
            greedy=self.options.temperature == 0,
        )

    def _decided(self) -> PairSpec:
        return plan_pair(
            self.options,
            self.opened,
            self.nodes,
            self.timings,
            survival=self.survival,
            max_seqs=self.max_seqs,
            record_path=self.record_path,
        )


@contextmanager
def session(options: Options, here: Sequence[Node]) -> Iterator[None]:
    """The Ray of these options: the cluster at their address, or a private one with the devices of `here`."""
    [node] = here
    with ray_session(options.address, num_cpus=node.num_cpus, num_gpus=len(node.gpus)):
        yield


@asynccontextmanager
async def planned(
    options: Options,
    opened: Opened,
    *,
    max_seqs: int | None = None,
    record_path: str | None = None,
    to_run: bool = True,
) -> AsyncIterator[Plan]:
    """A complete plan, in a Ray session; one that is not `to_run` starts no Ray unless something has to be timed.

    Raises ValueError (one line) for settings that do not go together, PlacementError for what cannot be placed.
    """
    plan, here = None, survey_here()
    if options.address is None:
        plan = Plan(options, opened, here, max_seqs, record_path)
    with session(options, here) if to_run or plan is None or plan.missing else nullcontext():
        plan = plan or Plan(options, opened, await survey_cluster(), max_seqs, record_path)
        await plan.complete()
        yield plan
