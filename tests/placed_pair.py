"""A pair whose actors are on chosen nodes: the one place of the tests that knows how they get there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import ray
from pairs import spec_of

from twinspark.actors.link.base import Transport
from twinspark.actors.specs import ActorReport
from twinspark.actors.target.host import TargetHost
from twinspark.cluster import spawn
from twinspark.cluster.pair import ATTACH_TIMEOUT_S, Pair

NODE_LABEL = "ray.io/node-id"
# One thread each: a machine that others use too stalls a team of threads whenever it stalls one of them.
SETTINGS: dict[str, Any] = {"dspark_verify_len": 5, "threads": 1, "dspark_threads": 1, "max_seqs": 4}


@asynccontextmanager
async def start_pair(*, target: str, draft: str | None, transport: Transport = "stream") -> AsyncIterator[Pair]:
    """A pair on the nodes with these ids; its draft (None: none as yet) is unsupervised."""
    pair = Pair(spec_of("cpu", transport=transport, **SETTINGS))
    try:
        pair.target, _ = await _spawn(TargetHost, pair.spec.target, target, "target")
        if draft is not None:
            await attach_draft(pair, draft)
        yield pair
    finally:
        await pair.close()


async def attach_draft(pair: Pair, node_id: str) -> None:
    """A new draft on that node, in place of the one there was."""
    pair._bury_draft()
    pair.draft, pair.draft_report = await _spawn(spawn.DraftActor, pair.spec.draft, node_id, "draft")
    listening = pair.draft.listen_here.remote(pair.spec.transport, pair.draft)
    endpoint = await spawn.within(listening, spawn.ANSWER_TIMEOUT_S, "a link to the draft actor")
    await pair.target.attach_draft.remote(endpoint, ATTACH_TIMEOUT_S, None)


async def _spawn(cls: type, spec: Any, node_id: str, name: str) -> tuple[Any, ActorReport]:
    """A loaded actor, as cluster/spawn.py makes them, but on that node."""
    options = {
        "num_cpus": 1,
        "max_restarts": 0,
        "label_selector": {NODE_LABEL: node_id},
        "runtime_env": {"env_vars": spawn._environment(spec.actor.num_threads, spec.actor.device)},
    }
    actor = ray.remote(cls).options(**options).remote(spec)
    return actor, await spawn._load(actor, name, lambda *_: None)
