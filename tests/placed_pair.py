"""A pair whose actors are on chosen nodes of a cluster: the one place of the tests that knows how they get there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from pairs import BASE, silently

from twinspark.actors.link.base import Transport
from twinspark.cluster.pair import Pair, PairSpec
from twinspark.cluster.survey import survey_cluster
from twinspark.deploy.opening import open_pair
from twinspark.deploy.plan_pair import plan_pair
from twinspark.planner.nodes import CPU, Seat
from twinspark.planner.placement import Candidate

# One thread each: a machine that others use too stalls a team of threads whenever it stalls one of them.
OPTIONS = BASE.model_copy(
    update={"dspark_place": "cpu", "dspark_verify_len": 5, "threads": 1, "dspark_threads": 1, "max_seqs": 4}
)


@asynccontextmanager
async def start_pair(
    *, target: str, draft: str | None, transport: Transport = "stream", supervised: bool = False
) -> AsyncIterator[Pair]:
    """A pair on the nodes with these ids (`draft` None: none as yet). Unsupervised, a lost draft stays lost."""
    spec = await _planned(transport)
    chosen = _at(spec, target, draft)
    spec = replace(spec, decision=replace(spec.decision, chosen=chosen, fallbacks=()))
    async with Pair.start(spec, supervised=supervised) as pair:
        yield pair


async def place_draft(pair: Pair, node_id: str, transport: Transport = "stream") -> None:
    """A new draft on that node, in place of the one there was. The node may have come after the pair."""
    pair.bury_draft()
    pair.spec = replace(await _planned(transport), decision=pair.spec.decision)
    await pair.place(_at(pair.spec, pair.current.target.node, node_id))


async def _planned(transport: Transport) -> PairSpec:
    options = OPTIONS.model_copy(update={"transport": transport})
    return plan_pair(options, open_pair(options, silently), await survey_cluster())


def _at(spec: PairSpec, target: str, draft: str | None) -> Candidate:
    """What the planner found for some nodes, on these: they are all of one machine."""
    found = {candidate.placement: candidate for candidate in spec.decision.candidates}
    if draft is None:
        return replace(found["off"], target=Seat(target, CPU))
    return replace(found["cpu"], target=Seat(target, CPU), draft=Seat(draft, CPU))
