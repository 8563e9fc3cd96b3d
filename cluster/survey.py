"""The nodes there are: this one, or every living node of the Ray cluster, each probed by a task that runs on it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import ray

from twinspark.cluster.probe import Snapshot, probe_node
from twinspark.planner.nodes import Node

log = logging.getLogger(__name__)

HERE = "here"  # the name of this machine where a private Ray needs no other
NODE_LABEL = "ray.io/node-id"
PROBE_TIMEOUT_S = 30.0  # a worker process has to start for it
MOST_PROBED_AT_ONCE = 200


def survey_here() -> list[Node]:
    """This machine alone."""
    return [probe_node().node(HERE)]


async def survey_cluster() -> list[Node]:
    """Every living node of the cluster this process is connected to. One that does not answer in time is left out,
    which is logged: nothing is known of it.
    """
    living = [entry for entry in ray.nodes() if entry["Alive"]]
    gate = asyncio.Semaphore(MOST_PROBED_AT_ONCE)
    found = await asyncio.gather(*(_survey(entry, gate) for entry in living))
    return sorted((node for node in found if node is not None), key=lambda node: node.name)


async def _survey(entry: dict[str, Any], gate: asyncio.Semaphore) -> Node | None:
    name, address, resources = entry["NodeID"], entry["NodeManagerAddress"], entry["Resources"]
    task = ray.remote(probe_node).options(num_cpus=0, label_selector={NODE_LABEL: name}, max_retries=0)
    async with gate:
        reference = task.remote()
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                snapshot: Snapshot = await reference
        except (TimeoutError, ray.exceptions.RayError) as error:
            ray.cancel(reference, force=True)
            why = "no answer" if isinstance(error, TimeoutError) else type(error).__name__
            log.warning("node %s (%s) was not probed within %g s: %s", name[:8], address, PROBE_TIMEOUT_S, why)
            return None
    node = snapshot.node(name)
    # What Ray was not given is not ours to plan with.
    return replace(
        node,
        host=f"{snapshot.host}/{address}",
        num_cpus=max(1, min(node.num_cpus, int(resources.get("CPU", 0)))),
        gpus=node.gpus[: int(resources.get("GPU", 0))],
    )


def is_alive(name: str) -> bool:
    """Whether Ray still takes the node for alive."""
    return name == HERE or any(entry["NodeID"] == name and entry["Alive"] for entry in ray.nodes())
