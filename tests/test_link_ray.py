"""The Ray transport: the same frames, refusals and losses as over a socket, through a real local Ray."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import link_apps
import msgpack
import pytest
from link_apps import BLOCK, CRASH, DIE, HANG, VOCAB, DraftActor

from twinspark.actors import wire
from twinspark.actors.errors import LinkLost, WireError
from twinspark.actors.link.base import Endpoint, fresh_nonce, hello
from twinspark.actors.link.dial import connect
from twinspark.actors.link.ray_call import RayLink
from twinspark.actors.sampling.settings import Sampling

WAIT_S = 60.0


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    ray.cloudpickle.register_pickle_by_value(link_apps)  # the workers do not have tests/ on their path
    found = ray.is_initialized()
    if not found:
        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.cloudpickle.unregister_pickle_by_value(link_apps)
    if not found:
        ray.shutdown()


@pytest.fixture
def actor(ray: Any) -> Iterator[Any]:
    handle = ray.remote(num_cpus=0)(DraftActor).remote()
    yield handle
    ray.kill(handle)


async def dial(actor: Any, epoch: int = 1, **options: Any) -> RayLink:
    endpoint = Endpoint(transport="ray", nonce=await actor.arm.remote(), actor=actor)
    link = await connect(endpoint, epoch=epoch, vocab_size=VOCAB, timeout_s=WAIT_S, **options)
    assert isinstance(link, RayLink)
    return link


def opening(session: int, *ids: int, epoch: int = 1) -> wire.Open:
    return wire.Open.of(epoch=epoch, session=session, sampling=Sampling(), context=64, ids=ids)


def asking(number: int, *entries: wire.RoundEntry, epoch: int = 1) -> wire.Round:
    return wire.Round(epoch, number, entries)


async def works(link: RayLink, number: int, epoch: int = 1) -> None:
    await link.send(opening(number, 1, 2, 3, epoch=epoch))
    await link.send(asking(number, wire.RoundEntry(number, 3, 2, (4,)), epoch=epoch))
    expected = wire.Proposal(epoch, number, 5, 0, (wire.ProposalEntry(number, (4, 3)),))
    assert await link.receive(WAIT_S) == expected


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


def test_importing_the_links_does_not_import_ray() -> None:
    code = "import sys, twinspark.actors.link.dial as d; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_rounds_go_back_and_forth_and_every_byte_is_counted_and_recorded(actor: Any) -> None:
    async def body() -> None:
        crossed: dict[str, bytes] = {"out": b"", "in": b""}

        def record(direction: str, data: bytes) -> None:
            crossed[direction] += data

        link = await dial(actor, record=record)
        assert link.welcome == wire.Welcome(wire.WIRE_VERSION, 1, BLOCK, VOCAB)
        for number in range(1, 6):
            await works(link, number)
        assert (link.bytes_out, link.bytes_in) == (len(crossed["out"]), len(crossed["in"]))
        for data in crossed.values():
            assert wire.account_recording(data, VOCAB)[-1].end == len(data)
        await link.close()
        with pytest.raises(LinkLost, match="has ended"):
            await link.send(wire.Close(1, 1))

    run(body)


def test_a_wrong_or_used_nonce_gets_nothing(actor: Any) -> None:
    async def body() -> None:
        nonce = await actor.arm.remote()
        for shown in (fresh_nonce(), nonce ^ 1, nonce ^ 1 << 127):
            with pytest.raises(LinkLost, match="closed"):
                await connect(
                    Endpoint(transport="ray", nonce=shown, actor=actor), epoch=1, vocab_size=VOCAB, timeout_s=WAIT_S
                )
        for data in (b"", b"\x00" * 257, wire.encode(opening(1, 2), VOCAB), wire.encode(asking(1), VOCAB)):
            assert await actor.link_frame.remote(data) == b""
        endpoint = Endpoint(transport="ray", nonce=nonce, actor=actor)
        first = await connect(endpoint, epoch=1, vocab_size=VOCAB, timeout_s=WAIT_S)
        assert isinstance(first, RayLink)
        with pytest.raises(WireError, match="unexpected"):
            await connect(endpoint, epoch=2, vocab_size=VOCAB, timeout_s=WAIT_S)
        await works(first, 1)
        await dial(actor, epoch=2)
        with pytest.raises(WireError, match="stale_epoch"):
            await dial(actor, epoch=2)
        await works(await dial(actor, epoch=3), 1, epoch=3)

    run(body)


def test_bad_frames_are_refused_by_name_and_the_link_goes_on(actor: Any) -> None:
    async def body() -> None:
        link = await dial(actor)
        await works(link, 10)
        for frame, expected in (
            (asking(11, epoch=2), ("stale_epoch", 11, 0)),
            (asking(10), ("stale_round", 10, 0)),
            (opening(10, 1), ("session_open", 10, 10)),
            (asking(11, wire.RoundEntry(78, 0, 1, (1,))), ("unknown_session", 11, 78)),
            (hello(5, 1, VOCAB), ("unexpected", 11, 0)),
        ):
            await link.send(frame)
            refused = await link.receive(WAIT_S)
            assert isinstance(refused, wire.Refused)
            assert (refused.name, refused.round, refused.session) == expected
        for data, name in (
            (b"\x00", "malformed"),
            (msgpack.packb([4, 1, 2.0]), "malformed"),
            (msgpack.packb([9, 1]), "unknown_kind"),
            ("text", "malformed"),
            ([1], "malformed"),
        ):
            refused = wire.decode(await actor.link_frame.remote(data), VOCAB)
            assert isinstance(refused, wire.Refused)
            assert refused.name == name
        await works(link, 20)
        refused = wire.decode(await actor.link_frame.remote(b"\x00" * (wire.MAX_FRAME_BYTES + 1)), VOCAB)
        assert isinstance(refused, wire.Refused)
        assert refused.name == "oversized"
        await link.send(asking(30))
        with pytest.raises(LinkLost, match="closed"):
            await link.receive(WAIT_S)
        await works(await dial(actor, epoch=2), 1, epoch=2)

    run(body)


def test_an_applications_own_mistake_is_a_lost_link(actor: Any) -> None:
    async def body() -> None:
        link = await dial(actor)
        await link.send(asking(1, wire.RoundEntry(CRASH, 0, 1, ())))
        with pytest.raises(LinkLost, match="gone"):
            await link.receive(WAIT_S)
        await works(await dial(actor, epoch=2), 1, epoch=2)

    run(body)


def test_a_cancelled_receive_loses_nothing(actor: Any) -> None:
    async def body() -> None:
        link = await dial(actor)
        waiting = asyncio.create_task(link.receive(WAIT_S))
        await asyncio.sleep(0.05)
        await link.send(opening(1, 5))
        await link.send(asking(1, wire.RoundEntry(1, 1, 1, ())))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        answer = waiting.result() if not waiting.cancelled() else await link.receive(WAIT_S)
        assert answer == wire.Proposal(1, 1, 5, 0, (wire.ProposalEntry(1, (5,)),))

    run(body)


def test_a_hung_peer_is_lost_at_the_deadline(actor: Any) -> None:
    async def body() -> None:
        link = await dial(actor)
        await link.send(asking(1, wire.RoundEntry(HANG, 0, 1, ())))
        before = asyncio.get_running_loop().time()
        with pytest.raises(LinkLost, match=r"nothing for 0\.3 s"):
            await link.receive(0.3)
        assert asyncio.get_running_loop().time() - before < 5.0

    run(body)


def test_a_killed_actor_is_noticed_long_before_the_deadline(ray: Any) -> None:
    async def body() -> None:
        handle = ray.remote(num_cpus=0, max_restarts=0)(DraftActor).remote()
        link = await dial(handle)
        await link.send(asking(1, wire.RoundEntry(DIE, 0, 1, ())))
        before = asyncio.get_running_loop().time()
        with pytest.raises(LinkLost, match="gone"):
            await link.receive(60.0)
        assert asyncio.get_running_loop().time() - before < 20.0
        with pytest.raises(LinkLost, match="has ended"):
            await link.send(asking(2))

    run(body)


class Unhurried:
    """In an actor's place: takes every call, answers none until it is told to."""

    def __init__(self) -> None:
        self.calls: list[asyncio.Future[bytes]] = []

    @property
    def link_frame(self) -> Unhurried:
        return self

    def remote(self, data: bytes) -> asyncio.Future[bytes]:
        self.calls.append(asyncio.get_running_loop().create_future())
        return self.calls[-1]


def test_a_frame_waits_until_the_one_before_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray may begin an asynchronous actor's calls in another order: an end must not overtake a beginning."""

    async def body() -> None:
        actor = Unhurried()
        link = RayLink(actor, vocab_size=VOCAB)
        await link.send(wire.Close(1, 1))
        second = asyncio.create_task(link.send(wire.Close(1, 2)))
        await asyncio.sleep(0.02)
        assert len(actor.calls) == 1
        actor.calls[0].set_result(b"")
        await second
        assert len(actor.calls) == 2
        monkeypatch.setattr("twinspark.actors.link.ray_call.SETTLE_S", 0.05)
        with pytest.raises(LinkLost, match="took no frame"):
            await link.send(wire.Close(1, 3))

    asyncio.run(body())
