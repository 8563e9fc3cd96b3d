"""A place on a node for one actor: a Ray placement group of one bundle, held to the node by its label.

One group an actor, so that a draft's place can be given up while its target stays. Everything here has a deadline.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from twinspark.cluster.errors import SpawnError
from twinspark.cluster.survey import HERE, NODE_LABEL
from twinspark.planner.nodes import Seat

PLACE_TIMEOUT_S = 60.0
POLL_S = 0.05


@dataclass(frozen=True)
class Berth:
    """What an actor needs: a seat, cores and (shares of) GPUs by Ray's account. `gpu_key` is the GPU's name for
    CUDA_VISIBLE_DEVICES; None hides every GPU.
    """

    seat: Seat
    num_cpus: float
    num_gpus: float = 0.0
    gpu_key: str | None = None

    @property
    def bundle(self) -> dict[str, float]:
        return {"CPU": self.num_cpus} | ({"GPU": self.num_gpus} if self.num_gpus else {})


class Reservation:
    """A berth that is held until `release`."""

    def __init__(self, berth: Berth, group: PlacementGroup) -> None:
        self.berth, self._group = berth, group

    def options(self) -> dict[str, Any]:
        """For `.options(...)` of the actor that takes the place."""
        return {
            "num_cpus": self.berth.num_cpus,
            "num_gpus": self.berth.num_gpus,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=0),
        }

    def release(self) -> None:
        """Give the place back; whatever runs in it is ended."""
        remove_placement_group(self._group)


async def reserve(berth: Berth, name: str, timeout_s: float = PLACE_TIMEOUT_S) -> Reservation:
    """Wait for the place. Raises SpawnError, saying what was missing on which node, where it does not come in time."""
    selector = None if berth.seat.node == HERE else [{NODE_LABEL: berth.seat.node}]
    group = placement_group([berth.bundle], strategy="PACK", bundle_label_selector=selector)
    try:
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + timeout_s
        while not await asyncio.to_thread(group.wait, POLL_S):
            if loop.time() > ends_s:
                raise SpawnError(f"a place for the {name} was not there within {timeout_s:g} s: {_missing(berth)}")
    except BaseException:
        remove_placement_group(group)
        raise
    return Reservation(berth, group)


def _missing(berth: Berth) -> str:
    """What was asked of the node, and what Ray has there in all, and free."""
    name = berth.seat.node
    nodes = {entry["NodeID"]: entry for entry in ray.nodes() if entry["Alive"]}
    if name != HERE and name not in nodes:
        return f"node {name[:8]} is gone"
    [entry] = [nodes[name]] if name != HERE else list(nodes.values())[:1] or [{"Resources": {}}]
    free = ray._private.state.available_resources_per_node().get(entry.get("NodeID"), {})
    parts = [
        f"{amount:g} {kind} asked, {free.get(kind, 0):g} free of {entry['Resources'].get(kind, 0):g}"
        for kind, amount in berth.bundle.items()
    ]
    return f"on node {entry.get('NodeManagerAddress', 'here')}: {'; '.join(parts)}"
