"""Ray's simulated cluster, two raylets on one address: the draft goes to the node that was chosen, the tokens stay."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from pairs import expected_greedy, ids_of, run_all
from placed_pair import start_pair
from ray.cluster_utils import Cluster

from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.target.request import Request
from twinspark.cluster.ray_session import ray_session

# Each simulated node takes the whole machine's memory for its own unless it is told otherwise.
NODE: dict[str, Any] = {"num_cpus": 2, "memory": 4 * 2**30, "object_store_memory": 80 * 2**20}
NUM_TOKENS = 32


@pytest.fixture(scope="module")
def cluster(demo_model: Path) -> Iterator[Cluster]:
    """Two nodes, and this process connected to them."""
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(prefix="tw-", dir="/tmp", ignore_cleanup_errors=True) as folder,
    ):
        patch.setenv("RAY_TMPDIR", folder)  # else it would tell every Ray program of this machine about itself
        cluster = Cluster()
        try:
            cluster.add_node(include_dashboard=False, **NODE)
            cluster.add_node(**NODE)
            with ray_session(cluster.address, num_cpus=0, num_gpus=0):
                yield cluster
        finally:
            cluster.shutdown()


@pytest.mark.parametrize(("target", "draft"), [(0, 1), (1, 0)])
def test_each_actor_is_on_the_node_that_was_chosen(cluster: Cluster, target: int, draft: int) -> None:
    node_ids = [node.node_id for node in cluster.list_all_nodes()]
    requests = [Request(i, e.prompt_ids, Sampling(), NUM_TOKENS) for i, e in enumerate(expected_greedy()[:2])]

    async def run() -> None:
        async with start_pair(target=node_ids[target], draft=node_ids[draft]) as pair:
            reports = await run_all(pair, requests)
            actors = {actor["ActorID"]: actor["Address"]["NodeID"] for actor in living_actors()}
            assert actors[pair.target._actor_id.hex()] == node_ids[target]
            assert actors[pair.draft._actor_id.hex()] == node_ids[draft]
        assert ids_of(reports) == [e.greedy_ids[:NUM_TOKENS] for e in expected_greedy()[:2]]
        assert sum(r.num_accepted for report in reports for r in report.rounds) > 0

    asyncio.run(run())


def test_a_lost_node_gives_its_draft_to_one_that_joined(cluster: Cluster) -> None:
    """By its supervisor alone, while requests run; the node that joined after the pair counts too."""
    requests = [Request(i, e.prompt_ids, Sampling(), NUM_TOKENS) for i, e in enumerate(expected_greedy()[:2])]

    async def run() -> None:
        first, second = cluster.list_all_nodes()
        async with start_pair(target=first.node_id, draft=second.node_id, supervised=True) as pair:
            cluster.add_node(**NODE)
            running = asyncio.create_task(run_all(pair, requests))
            await asyncio.sleep(0.2)
            await asyncio.to_thread(cluster.remove_node, second, allow_graceful=False)
            assert ids_of(await running) == expected
            async with asyncio.timeout(240):
                while not pair.moves or pair.draft is None:
                    await asyncio.sleep(0.2)
            assert f"node {second.node_id[:8]} does not answer" in pair.reason
            assert pair.current.draft is not None
            assert pair.current.draft.node != second.node_id
            reports = await run_all(pair, requests)
            assert ids_of(reports) == expected
            assert sum(r.num_accepted for report in reports for r in report.rounds) > 0

    expected = [e.greedy_ids[:NUM_TOKENS] for e in expected_greedy()[:2]]
    asyncio.run(run())


def living_actors() -> list[dict[str, Any]]:
    return [actor for actor in ray._private.state.actors().values() if actor["State"] == "ALIVE"]
