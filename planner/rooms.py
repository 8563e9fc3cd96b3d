"""Headroom as it is given out: what a placement takes from which device, and whether it fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from twinspark.planner.footprint import Footprint
from twinspark.planner.nodes import CPU, Seat
from twinspark.planner.placement import Footprints, Kind

DRAFT_MARGIN = 1.15  # a draft fits where headroom >= 1.15 x footprint (DESIGN section 4)


@dataclass(frozen=True)
class Need:
    """Bytes wanted on a device."""

    seat: Seat
    wanted_bytes: int


@dataclass(frozen=True)
class Shortage:
    """A device that cannot give what is wanted. `found_bytes` None: nobody could read its memory."""

    seat: Seat
    wanted_bytes: int
    found_bytes: int | None


def needs(seat: Seat, footprint: Footprint, margin: float = 1.0) -> list[Need]:
    """What an actor at `seat` wants there, and in its node's RAM."""
    found = [Need(seat, int(margin * footprint.device_bytes))]
    if footprint.host_bytes:
        found.append(Need(Seat(seat.node, CPU), int(margin * footprint.host_bytes)))
    return found


def price_of_draft(footprints: Footprints, draft: Seat | None) -> Callable[[Kind, int, int], Footprint]:
    """What prices a draft at `draft`, an actor of its own, or None: beside the target."""
    return footprints.colocated if draft is None else footprints.draft


def drafted_needs(
    footprints: Footprints,
    target: Seat,
    draft: Seat | None,
    num_requests: int,
    verify_length: int,
    margin: float = DRAFT_MARGIN,
) -> list[Need]:
    """What both sides want of which device, the draft with its `margin`."""
    seat = draft or target
    own = needs(target, footprints.target(target.kind, num_requests, verify_length))
    return own + needs(seat, price_of_draft(footprints, draft)(seat.kind, num_requests, verify_length), margin)


def shortage(headroom: Mapping[Seat, int | None], wanted: Iterable[Need]) -> Shortage | None:
    """The first device that cannot give all that is wanted of it; what is wanted of one device adds up."""
    taken: dict[Seat, int] = {}
    for need in wanted:
        before = taken.get(need.seat, 0)
        taken[need.seat] = before + need.wanted_bytes
        room = headroom.get(need.seat)
        if room is None:
            return Shortage(need.seat, need.wanted_bytes, None)
        if taken[need.seat] > room:
            return Shortage(need.seat, need.wanted_bytes, max(0, room - before))
    return None
