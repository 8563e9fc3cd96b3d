"""Spawning the actors of a pair. The only place where the hosts meet Ray; everything that can wait has a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import psutil
import ray

from twinspark.actors.draft.host import DraftHost
from twinspark.actors.link.base import Endpoint, Transport
from twinspark.actors.specs import ActorReport, DraftSettings, DraftSpec, TargetSpec
from twinspark.actors.target.host import TargetHost
from twinspark.cluster.errors import SpawnError
from twinspark.cluster.reserve import PLACE_TIMEOUT_S, Berth, Reservation, reserve
from twinspark.cluster.room import RoomNeeded, check_room, check_room_for_process
from twinspark.cluster.survey import HERE

ANSWER_TIMEOUT_S = 30.0  # an actor's event loop answers while it loads; one that does not for so long is hung
POLL_S = 0.1
T = TypeVar("T")
OnProgress = Callable[[str, int, int], None]


class TargetActor(TargetHost):
    """A TargetHost that looks for room before it reads anything."""

    async def load_within(self, needed: RoomNeeded) -> ActorReport:
        """As `load`. Raises NoRoomError where the memory is not there."""
        check_room(needed, self.spec.actor.device, "target")
        return await self.load()

    async def colocate_within(self, settings: DraftSettings, needed: RoomNeeded) -> None:
        """As `colocate`. Raises NoRoomError where the memory is not there."""
        check_room(needed, self.spec.actor.device, "draft beside the target")
        await self.colocate(settings)


class DraftActor(DraftHost):
    """A DraftHost that looks for room, and knows its own node's address."""

    async def load_within(self, needed: RoomNeeded) -> ActorReport:
        """As `load`. Raises NoRoomError where the memory is not there."""
        check_room(needed, self.spec.actor.device, "draft")
        return await self.load()

    async def listen_here(self, transport: Transport, me: Any) -> Endpoint:
        """As `listen`, on the address by which the other nodes know this one."""
        return await self.listen(transport, ray.util.get_node_ip_address(), me)


class Spawned:
    """A loaded actor, the place it holds, and what it said of itself when it had loaded."""

    def __init__(self, actor: Any, place: Reservation, report: ActorReport) -> None:
        self.actor, self.place, self.report = actor, place, report

    def bury(self) -> None:
        """End the process and give its place back. Ray asks before it kills, and gives a stopped process 5 s to answer;
        one of this node is killed at once, so that its memory is free before the next one loads.
        """
        ray.kill(self.actor)
        if self.report.node == socket.gethostname():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(self.report.pid)
                ours = process.name().startswith(f"ray::{DraftActor.__name__}")
                if ours and process.status() == psutil.STATUS_STOPPED:
                    process.kill()
        self.place.release()


def _environment(num_threads: int, gpu_key: str | None) -> dict[str, str]:
    """Threads by number (num_cpus=0 would give one), huge pages for weights; the GPU that was planned with is seen, and
    no other: Ray keeps account of GPUs, but does not know which of them has room.
    """
    return {
        "OMP_NUM_THREADS": str(num_threads),
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
        "CUDA_VISIBLE_DEVICES": gpu_key or "",
    }


async def spawn_target(spec: TargetSpec, berth: Berth, needed: RoomNeeded, on_progress: OnProgress) -> Spawned:
    """A loaded target actor. Raises what its loading raises, NoRoomError where the memory is gone, SpawnError where it
    does not come up.
    """
    return await _spawn(TargetActor, spec, berth, needed, "target", on_progress)


async def spawn_draft(spec: DraftSpec, berth: Berth, needed: RoomNeeded, on_progress: OnProgress) -> Spawned:
    """A loaded draft actor. Raises as `spawn_target` does."""
    return await _spawn(DraftActor, spec, berth, needed, "draft", on_progress)


async def _spawn(cls: type, spec: Any, berth: Berth, needed: RoomNeeded, name: str, on_progress: OnProgress) -> Spawned:
    if berth.seat.node == HERE:
        check_room_for_process(needed, spec.actor.device, name)
    place = await reserve(berth, f"{name} actor")
    try:
        options = {"max_restarts": 0, "runtime_env": {"env_vars": _environment(spec.actor.num_threads, berth.gpu_key)}}
        actor = ray.remote(cls).options(**options, **place.options()).remote(spec)
        return Spawned(actor, place, await _load(actor, needed, name, on_progress))
    except BaseException:
        place.release()
        raise


async def _load(actor: Any, needed: RoomNeeded, name: str, on_progress: OnProgress) -> ActorReport:
    try:
        await within(actor.progress.remote(), PLACE_TIMEOUT_S, f"the {name} actor's process")
        loading = asyncio.ensure_future(_as_future(actor.load_within.remote(needed)))
        loading.add_done_callback(_noted)
        while not loading.done():
            done, total = await within(actor.progress.remote(), ANSWER_TIMEOUT_S, f"an answer of the {name} actor")
            on_progress(name, done, total)
            await asyncio.wait({loading}, timeout=POLL_S)
        report: ActorReport = loading.result()
        done, total = await within(actor.progress.remote(), ANSWER_TIMEOUT_S, f"an answer of the {name} actor")
        on_progress(name, done, total)
        return report
    except ray.exceptions.RayTaskError as error:
        ray.kill(actor)
        raise unwrapped(error) from None
    except ray.exceptions.RayError as error:
        ray.kill(actor)
        raise SpawnError(f"the {name} actor died while it was loading ({type(error).__name__})") from error
    except BaseException:
        ray.kill(actor)
        raise


def unwrapped(error: ray.exceptions.RayTaskError) -> BaseException:
    """What an actor's method raised, without Ray's traceback around it."""
    return error.cause if isinstance(error.cause, BaseException) else error


async def _as_future(reference: Any) -> Any:
    return await reference


def _noted(future: asyncio.Future[Any]) -> None:
    """Its failure is told once, by whatever noticed it first: asyncio need not tell it again."""
    if not future.cancelled():
        future.exception()


async def within(reference: Awaitable[T], timeout_s: float, what: str) -> T:
    """The result of an actor call. Raises SpawnError, naming `what`, where it does not come in time."""
    try:
        async with asyncio.timeout(timeout_s):
            return await reference
    except TimeoutError as error:
        have, free = ray.cluster_resources(), ray.available_resources()
        raise SpawnError(
            f"{what} was not there within {timeout_s:g} s; the cluster has {_amounts(have)}, free {_amounts(free)}"
        ) from error


def _amounts(resources: dict[str, float]) -> str:
    return ", ".join(f"{resources.get(name, 0):g} {name}" for name in ("CPU", "GPU"))
