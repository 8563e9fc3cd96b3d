"""From options and nodes to a pair that can be spawned: what is asked, what it would take, the decision, the recipe."""

from __future__ import annotations

from collections.abc import Sequence

from twinspark.actors.checkpoint.head_record import conditional_acceptance
from twinspark.actors.checkpoint.sizes import head_size, model_size
from twinspark.actors.loading import check_settings
from twinspark.actors.specs import DraftDtype, DraftSettings
from twinspark.cluster.pair import PairSpec
from twinspark.cluster.recipe import Recipe, TargetDtype
from twinspark.deploy.opening import Opened
from twinspark.deploy.options import Options
from twinspark.deploy.prices import read_prices
from twinspark.planner.decide import PlanInputs
from twinspark.planner.nodes import Node
from twinspark.planner.pair_footprints import PairFootprints
from twinspark.planner.placement import Demand, Kind, PlacementError
from twinspark.planner.timings import Timings

DEFAULT_CONTEXT = 2048
NOT_MEASURED = Timings()


def plan_pair(
    options: Options,
    opened: Opened,
    nodes: Sequence[Node],
    timings: Timings = NOT_MEASURED,
    *,
    survival: tuple[float, ...] | None = None,
    max_seqs: int | None = None,
    record_path: str | None = None,
) -> PairSpec:
    """The pair to spawn. `max_seqs` narrows the option where fewer requests are known to come; `survival` takes the
    place of the head's own record.

    Raises ValueError (one line) for settings that do not go together, PlacementError for what cannot be placed.
    """
    recipe = recipe_of(options, opened, record_path)
    inputs = PlanInputs(
        nodes=tuple(nodes),
        demand=_demand(options, opened, min(options.max_seqs, max_seqs or options.max_seqs), survival),
        footprints=PairFootprints(
            model=model_size(opened.target),
            head=None if opened.head is None else head_size(opened.head),
            target_dtypes=recipe.target_dtypes,
            draft_dtypes=recipe.draft_dtypes,
            numerics=recipe.numerics,
            context=recipe.context,
        ),
        timings=timings,
    )
    return PairSpec(recipe, inputs, inputs.decide())


def recipe_of(options: Options, opened: Opened, record_path: str | None = None) -> Recipe:
    """What is the same wherever the pair is placed. Raises ValueError for settings that do not go together."""
    most = opened.target.config.max_positions
    context = options.context or min(most, DEFAULT_CONTEXT)
    if context > most:
        raise ValueError(f"--context must be at most the model's {most}, got {context}")
    if opened.head is None and options.dspark_place not in ("auto", "off"):
        raise PlacementError(f"placement {options.dspark_place} needs a draft head, got --dspark-model none")
    if opened.head is not None:
        asked = options.dspark_verify_len or 1
        check_settings(DraftSettings(opened.head.path, "float32", asked, options.dspark_min_confidence), opened.head)
    return Recipe(
        model_path=opened.target.path,
        head_path=None if opened.head is None else opened.head.path,
        context=context,
        target_dtypes={"cpu": _target_dtype(options, "cpu"), "cuda": _target_dtype(options, "cuda")},
        draft_dtypes={"cpu": _draft_dtype(options, "cpu"), "cuda": _draft_dtype(options, "cuda")},
        numerics=options.numerics,
        min_confidence=options.dspark_min_confidence,
        target_threads=options.threads,
        draft_threads=options.dspark_threads,
        transport=options.transport,
        record_path=record_path,
    )


def _demand(options: Options, opened: Opened, num_requests: int, survival: tuple[float, ...] | None) -> Demand:
    head = opened.head
    if survival is None and head is not None:
        survival = conditional_acceptance(head.path)
    return Demand(
        requested=options.dspark_place,
        num_requests=num_requests,
        verify_length=options.dspark_verify_len,
        most_drafts=0 if head is None else head.config.num_draft_tokens,
        survival=survival,
        draft_threads=options.dspark_threads,
        objective=options.objective,
        prices=read_prices(options.prices),
    )


def _draft_dtype(options: Options, kind: Kind) -> DraftDtype:
    if options.dspark_dtype != "auto":
        return options.dspark_dtype
    if options.dtype != "auto":
        return options.dtype
    return "bfloat16" if kind == "cuda" else "int8"


def _target_dtype(options: Options, kind: Kind) -> TargetDtype:
    if options.dtype != "auto":
        return options.dtype
    return "float32" if kind == "cpu" else "bfloat16"
