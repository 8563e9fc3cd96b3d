"""The last look before loading: free memory read in the actor itself, on the device it will take it from."""

from __future__ import annotations

from dataclasses import dataclass, replace

from twinspark.cluster.errors import NoRoomError
from twinspark.cluster.probe import Snapshot, probe_node
from twinspark.planner.decide import PlanInputs
from twinspark.planner.footprint import Footprint
from twinspark.planner.nodes import CPU
from twinspark.planner.placement import Candidate, Demand
from twinspark.planner.rooms import DRAFT_MARGIN, price_of_draft


@dataclass(frozen=True)
class RoomNeeded:
    """Bytes that must be there: on the actor's device, and in RAM beside it where that is a GPU. With `reserve` the
    device's reserve must stay free as well; without it (a placement that a person asked for) the bytes are enough.
    `process_bytes` is the RAM of the actor's process itself: it has taken them by the time it looks.
    """

    device_bytes: int
    host_bytes: int = 0
    reserve: bool = True
    process_bytes: int = 0

    def beside(self, promised_bytes: int) -> RoomNeeded:
        """The same, where so much of the device is promised to another actor and still looks free."""
        return replace(self, device_bytes=self.device_bytes + promised_bytes)


def check_room(needed: RoomNeeded, device: str, name: str) -> None:
    """Raises NoRoomError where this process would not find `needed` on `device` ("cpu" or "cuda"). What cannot be read
    cannot be refused: the planner has said so already.
    """
    snapshot = probe_node()
    if device == CPU:
        _check(snapshot, CPU, needed.device_bytes + needed.host_bytes, needed.reserve, name)
        return
    _check(snapshot, "cuda:0", needed.device_bytes, needed.reserve, name)
    _check(snapshot, CPU, needed.host_bytes, needed.reserve, name)


def check_room_for_process(needed: RoomNeeded, device: str, name: str) -> None:
    """The same for RAM, from another process of the node, before the actor's own is started: near a limit that alone
    could bring the kernel to kill somebody.
    """
    wanted = needed.process_bytes + needed.host_bytes + (needed.device_bytes if device == CPU else 0)
    _check(probe_node(), CPU, wanted, needed.reserve, name)


def _check(snapshot: Snapshot, device: str, wanted_bytes: int, reserve: bool, name: str) -> None:
    node = snapshot.node(snapshot.host)
    if device != CPU and not node.gpus:
        raise NoRoomError(f"the {name} needs a GPU on {node.host}, found none ({snapshot.gpu_search})")
    free = node.available_ram_bytes if device == CPU else node.gpu(device).free_bytes
    found = node.headroom_bytes(device) if reserve else free
    if found is not None and found < wanted_bytes:
        kept = f" ({free / 2**30:.2f} GiB free less a reserve)" if reserve and free is not None else ""
        raise NoRoomError(
            f"the {name} needs {wanted_bytes / 2**30:.2f} GiB on {node.host} {device}, "
            f"found {found / 2**30:.2f} GiB{kept} just before loading"
        )


def target_room(inputs: PlanInputs, candidate: Candidate) -> RoomNeeded:
    """What the target of `candidate` must find."""
    drafting = candidate.placement != "off"
    length = inputs.demand.priced_length if drafting else 0
    footprint = inputs.footprints.target(candidate.target.kind, candidate.num_requests, length)
    return _needed(footprint, 1.0, inputs.demand)


def draft_room(inputs: PlanInputs, candidate: Candidate, num_requests: int) -> RoomNeeded:
    """What its draft must find, in an actor of its own or in the target's, for `num_requests` at once."""
    price = price_of_draft(inputs.footprints, candidate.draft)
    margin = DRAFT_MARGIN if inputs.demand.requested == "auto" else 1.0
    return _needed(price(candidate.seat.kind, num_requests, inputs.demand.priced_length), margin, inputs.demand)


def _needed(footprint: Footprint, margin: float, demand: Demand) -> RoomNeeded:
    """A process on a CPU is there already when it looks; a CUDA context is not."""
    there = 0 if footprint.host_bytes else footprint.overhead_bytes
    return RoomNeeded(
        int(margin * (footprint.device_bytes + footprint.loading_bytes - there)),
        int(margin * footprint.host_bytes),
        reserve=demand.requested == "auto",
        process_bytes=there,
    )
