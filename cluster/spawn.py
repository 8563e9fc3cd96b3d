"""Spawning the actors of a pair. The only place where the hosts meet Ray; everything that can wait has a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import ray

from twinspark.actors.draft.host import DraftHost
from twinspark.actors.link.base import Endpoint, Transport
from twinspark.actors.specs import ActorReport, DraftSpec, TargetSpec
from twinspark.actors.target.host import TargetHost
from twinspark.cluster.errors import SpawnError

PLACE_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 30.0  # an actor's event loop answers while it loads; one that does not for so long is hung
POLL_S = 0.1
T = TypeVar("T")
OnProgress = Callable[[str, int, int], None]


class DraftActor(DraftHost):
    """A DraftHost that knows its own node's address."""

    async def listen_here(self, transport: Transport, me: Any) -> Endpoint:
        """As `listen`, on the address by which the other nodes know this one."""
        return await self.listen(transport, ray.util.get_node_ip_address(), me)


def _environment(num_threads: int, device: str) -> dict[str, str]:
    """Threads by number (num_cpus=0 would give one), huge pages for weights, GPUs hidden from a CPU actor."""
    env = {"OMP_NUM_THREADS": str(num_threads), "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    if device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
    return env


def _actor(cls: type, spec: Any, *, num_gpus: float, num_cpus: float) -> Any:
    return (
        ray.remote(cls)
        .options(
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            max_restarts=0,
            runtime_env={"env_vars": _environment(spec.actor.num_threads, spec.actor.device)},
        )
        .remote(spec)
    )


async def spawn_target(spec: TargetSpec, *, gpu_share: float, on_progress: OnProgress) -> tuple[Any, ActorReport]:
    """A loaded target actor. Raises what its loading raises, SpawnError where it does not come up."""
    actor = _actor(TargetHost, spec, num_gpus=gpu_share, num_cpus=1)
    return actor, await _load(actor, "target", on_progress)


async def spawn_draft(spec: DraftSpec, *, gpu_share: float, on_progress: OnProgress) -> tuple[Any, ActorReport]:
    """A loaded draft actor. Raises as `spawn_target` does."""
    actor = _actor(DraftActor, spec, num_gpus=gpu_share, num_cpus=1)
    return actor, await _load(actor, "draft", on_progress)


async def _load(actor: Any, name: str, on_progress: OnProgress) -> ActorReport:
    try:
        await within(actor.progress.remote(), PLACE_TIMEOUT_S, f"a place for the {name} actor")
        loading = asyncio.ensure_future(_as_future(actor.load.remote()))
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
        raise error.as_instanceof_cause() from None
    except ray.exceptions.RayError as error:
        ray.kill(actor)
        raise SpawnError(f"the {name} actor died while it was loading ({type(error).__name__})") from error
    except BaseException:
        ray.kill(actor)
        raise


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
        have = ray.cluster_resources()
        free = ray.available_resources()
        raise SpawnError(
            f"{what} was not there within {timeout_s:g} s; the cluster has {_amounts(have)}, free {_amounts(free)}"
        ) from error


def _amounts(resources: dict[str, float]) -> str:
    return ", ".join(f"{resources.get(name, 0):g} {name}" for name in ("CPU", "GPU"))
