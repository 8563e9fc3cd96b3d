"""`twinspark plan`: where a pair would go and why, before anything is loaded; and how many pairs a fleet takes.

The cluster is this machine, a Ray cluster, or a file's description; who decides and what is shown is the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from twinspark.deploy.options import Options
from twinspark.deploy.plan_document import plan_document
from twinspark.deploy.plan_tables import show_plan
from twinspark.deploy.what_if import OVERRIDING, read_what_if
from twinspark.planner.decide import PlanInputs
from twinspark.planner.fleet import plan_fleet
from twinspark.planner.fleet_layouts import Links
from twinspark.planner.fleet_plans import Wanted
from twinspark.planner.node_groups import group_equal, representatives
from twinspark.planner.nodes import Node, Seat
from twinspark.planner.placement import Candidate, Decision
from twinspark.planner.rooms import drafted_needs, needs

NOT_WITH_WHAT_IF = ("address", "static", "recalibrate", "threads")


async def plan(options: Options, wanted: Wanted | None, *, as_json: bool) -> None:
    """Plan for this machine, or the cluster at the options' address. Raises ValueError for what cannot be placed."""
    from twinspark.deploy.opening import open_pair
    from twinspark.deploy.planned import planned
    from twinspark.deploy.progress import note

    opened = open_pair(options, note)
    async with planned(options, opened, to_run=False) as made:
        spec = made.spec
        _show(spec.inputs, spec.inputs.nodes, spec.decision, spec.recipe.context, wanted, None, as_json=as_json)


def plan_what_if(path: Path, given: Mapping[str, Any], wanted: Wanted | None, *, as_json: bool) -> None:
    """Plan for a described cluster; `given` are the options that were set. Raises ValueError (one line)."""
    for name in NOT_WITH_WHAT_IF:
        if given.get(name):
            raise ValueError(f"--{name} is of a cluster that is there, --what-if of one that is not: got both")
    described = read_what_if(path, {name: given[name] for name in OVERRIDING if name in given})
    nodes = representatives(group_equal(described.nodes))
    timings = replace(described.timings, link_ms=described.link_table(nodes))
    inputs = PlanInputs(tuple(nodes), described.demand, described.footprints, timings)
    context = described.footprints.context
    _show(inputs, described.nodes, inputs.decide(), context, wanted, described.worst_links, as_json=as_json)


def _show(
    inputs: PlanInputs,
    nodes: tuple[Node, ...],
    decision: Decision,
    context: int,
    wanted: Wanted | None,
    links: Links | None,
    *,
    as_json: bool,
) -> None:
    """`nodes` are all there are, those of `inputs` what the decision rests on."""
    fleet = None
    if wanted is not None:
        fleet = plan_fleet(nodes, inputs.demand, inputs.footprints, inputs.timings, wanted, links)
    groups, taken = group_equal(nodes), _taken(inputs, decision.chosen)
    if as_json:
        print(json.dumps(plan_document(decision, groups, inputs.demand, context, taken, fleet), ensure_ascii=False))
    else:
        show_plan(decision, groups, inputs.demand, context, taken, fleet)


def _taken(inputs: PlanInputs, chosen: Candidate) -> dict[Seat, int]:
    """Bytes by device, the RAM beside a GPU among them; without the draft's margin."""
    footprints, num, target = inputs.footprints, chosen.num_requests, chosen.target
    if chosen.placement == "off":
        wanted = needs(target, footprints.target(target.kind, num, 0))
    else:
        wanted = drafted_needs(footprints, target, chosen.draft, num, inputs.demand.priced_length, margin=1.0)
    taken: dict[Seat, int] = {}
    for need in wanted:
        taken[need.seat] = taken.get(need.seat, 0) + need.wanted_bytes
    return taken
