"""The stream transport: who gets in, what a bad frame is answered, and what a dead or silent peer looks like."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
from link_apps import BLOCK, CRASH, HANG, VOCAB, EchoApp

from twinspark.actors import wire
from twinspark.actors.errors import LinkLost, WireError
from twinspark.actors.link import stream_server
from twinspark.actors.link.base import Endpoint, fresh_nonce, hello
from twinspark.actors.link.dial import connect
from twinspark.actors.link.frame_server import FrameServer
from twinspark.actors.link.stream import StreamLink
from twinspark.actors.link.stream_server import StreamServer
from twinspark.actors.sampling.settings import Sampling

WAIT_S = 10.0


def opening(session: int, *ids: int, epoch: int = 1) -> wire.Open:
    return wire.Open.of(epoch=epoch, session=session, sampling=Sampling(), context=64, ids=ids)


def asking(number: int, *entries: wire.RoundEntry, epoch: int = 1) -> wire.Round:
    return wire.Round(epoch, number, entries)


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[tuple[StreamServer, Endpoint, EchoApp]]:
    app = EchoApp()
    server = StreamServer(FrameServer(app, vocab_size=VOCAB, block=BLOCK), "127.0.0.1", **options)
    endpoint = await server.start()
    try:
        yield server, endpoint, app
    finally:
        await server.close()


async def dial(endpoint: Endpoint, epoch: int = 1, **options: Any) -> StreamLink:
    link = await connect(endpoint, epoch=epoch, vocab_size=VOCAB, timeout_s=WAIT_S, **options)
    assert isinstance(link, StreamLink)
    return link


async def works(link: StreamLink, number: int = 100, epoch: int = 1) -> None:
    """The link still serves a round."""
    await link.send(opening(number, 1, 2, 3, epoch=epoch))
    await link.send(asking(number, wire.RoundEntry(number, 3, 2, (4,)), epoch=epoch))
    expected = wire.Proposal(epoch, number, 5, 0, (wire.ProposalEntry(number, (4, 3)),))
    assert await link.receive(WAIT_S) == expected


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


def test_rounds_go_back_and_forth_and_every_byte_is_counted_and_recorded() -> None:
    async def body() -> None:
        crossed: dict[str, bytes] = {"out": b"", "in": b""}

        def record(direction: str, data: bytes) -> None:
            crossed[direction] += data

        async with serving() as (_, endpoint, app):
            link = await dial(endpoint, record=record)
            assert link.welcome == wire.Welcome(wire.WIRE_VERSION, 1, BLOCK, VOCAB)
            for number in range(1, 6):
                await works(link, number)
            await link.send(wire.Close(1, 1))
            await works(link, 6)
            assert sorted(app.sessions) == [2, 3, 4, 5, 6]
            await link.close()
            with pytest.raises(LinkLost, match="has ended"):
                await link.send(wire.Close(1, 2))
            with pytest.raises(LinkLost, match="has ended"):
                await link.receive(1.0)
        assert (link.bytes_out, link.bytes_in) == (len(crossed["out"]), len(crossed["in"]))
        for data, kinds in ((crossed["out"], wire.FROM_TARGET), (crossed["in"], wire.FROM_DRAFT)):
            frames = [wire.decode(frame, VOCAB) for frame in wire.split_recording(data)]
            assert frames
            assert all(isinstance(frame, kinds) for frame in frames)
            assert wire.account_recording(data, VOCAB)[-1].end == len(data)

    run(body)


def test_a_large_prompt_passes() -> None:
    async def body() -> None:
        ids = tuple(i % VOCAB for i in range(wire.MAX_IDS_PER_FRAME))
        async with serving() as (_, endpoint, app):
            link = await dial(endpoint)
            await link.send(opening(1, *ids))
            await works(link, 2)
            assert tuple(app.sessions[1]) == ids
            await link.close()

    run(body)


def test_a_nonce_opens_one_link_once() -> None:
    async def body() -> None:
        async with serving() as (server, endpoint, app):
            link = await dial(endpoint)
            with pytest.raises(LinkLost):
                await dial(endpoint, epoch=2)
            await works(link, 1)
            await link.close()
            with pytest.raises(LinkLost):
                await dial(endpoint, epoch=2)
            again = await dial(server.arm(), epoch=2)
            await works(again, 1, epoch=2)
            assert app.epochs == [1, 2]
            await again.close()

    run(body)


def test_arming_again_ends_the_link_there_is() -> None:
    async def body() -> None:
        async with serving() as (server, endpoint, _):
            link = await dial(endpoint)
            new = await dial(server.arm(), epoch=2)
            with pytest.raises(LinkLost, match="gone"):
                await link.receive(WAIT_S)
            await works(new, 1, epoch=2)
            await new.close()

    run(body)


@pytest.mark.parametrize("change", ["nonce", "high", "low"])
def test_a_wrong_nonce_is_met_with_silence(change: str) -> None:
    async def body() -> None:
        async with serving() as (_, endpoint, app):
            wrong = {"nonce": fresh_nonce(), "high": endpoint.nonce ^ 1 << 127, "low": endpoint.nonce ^ 1}[change]
            received: list[bytes] = []

            def record(direction: str, data: bytes) -> None:
                if direction == "in":
                    received.append(data)

            with pytest.raises(LinkLost, match="gone"):
                await dial(dataclasses.replace(endpoint, nonce=wrong), record=record)
            assert not received
            assert not app.epochs
            await works(await dial(endpoint))

    run(body)


def test_the_right_nonce_with_another_vocabulary_or_an_old_epoch_is_told_why() -> None:
    async def body() -> None:
        async with serving() as (server, endpoint, _):
            with pytest.raises(WireError, match="foreign"):
                await connect(endpoint, epoch=1, vocab_size=VOCAB + 1, timeout_s=WAIT_S)
            await (await dial(server.arm(), epoch=5)).close()
            for epoch in (4, 5):
                with pytest.raises(WireError, match="stale_epoch"):
                    await dial(server.arm(), epoch=epoch)
            await works(await dial(server.arm(), epoch=6), epoch=6)

    run(body)


def test_another_version_is_foreign() -> None:
    async def body() -> None:
        async with serving() as (_, endpoint, _app):
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
            greeting = dataclasses.replace(hello(endpoint.nonce, 1, VOCAB), version=wire.WIRE_VERSION + 1)
            writer.write(wire.framed(wire.encode(greeting, VOCAB)))
            (data,) = wire.split_recording(await asyncio.wait_for(reader.read(), WAIT_S))
            assert wire.decode(data, VOCAB) == wire.Refused(1, 0, 0, wire.fault_index("foreign"))
            writer.close()

    run(body)


async def refusal(link: StreamLink) -> tuple[str, int, int]:
    frame = await link.receive(WAIT_S)
    assert isinstance(frame, wire.Refused)
    return frame.name, frame.round, frame.session


def test_bad_frames_are_refused_by_name_and_the_link_goes_on() -> None:
    async def body() -> None:
        async with serving() as (_, endpoint, app):
            link = await dial(endpoint)
            await works(link, 10)
            before = {session: list(ids) for session, ids in app.sessions.items()}
            for frame, expected in (
                (asking(11, epoch=0), ("stale_epoch", 11, 0)),
                (asking(11, epoch=2), ("stale_epoch", 11, 0)),
                (opening(3, epoch=2), ("stale_epoch", 10, 0)),
                (asking(10), ("stale_round", 10, 0)),
                (asking(9), ("stale_round", 9, 0)),
                (opening(10, 1), ("session_open", 10, 10)),
                (wire.Close(1, 77), ("unknown_session", 10, 77)),
                (asking(11, wire.RoundEntry(78, 0, 1, (1,))), ("unknown_session", 11, 78)),
                (asking(12, wire.RoundEntry(10, 3, 1, (1,))), ("wrong_start", 12, 10)),
                (wire.Proposal(1, 13, 0, 0, ()), ("unexpected", 12, 0)),
                (hello(endpoint.nonce, 1, VOCAB), ("unexpected", 12, 0)),
                (hello(endpoint.nonce, 2, VOCAB), ("unexpected", 12, 0)),
            ):
                await link.send(frame)
                assert await refusal(link) == expected, frame
            assert app.sessions == before
            assert app.epochs == [1]
            await works(link, 20)
            await link.close()

    run(body)


def test_undecodable_frames_are_refused_by_name_and_the_link_goes_on() -> None:
    async def body() -> None:
        async with serving() as (_, endpoint, _app):
            link = await dial(endpoint)
            await works(link, 4)
            for data, name in (
                (b"\x00", "malformed"),
                (msgpack.packb([4, 1, 2.0]), "malformed"),
                (msgpack.packb([4, 1, 2**31]), "out_of_range"),
                (msgpack.packb([9, 1]), "unknown_kind"),
                (wire.encode(opening(5, VOCAB), VOCAB + 1), "out_of_range"),
                (b"\x91" * 5000, "malformed"),
            ):
                link._writer.write(wire.framed(data))
                assert await refusal(link) == (name, 4, 0)
            await works(link, 20)
            await link.close()

    run(body)


@pytest.mark.parametrize("length", [0, wire.MAX_FRAME_BYTES + 1, 2**32 - 1])
def test_a_bad_length_ends_the_link(length: int) -> None:
    async def body() -> None:
        async with serving() as (server, endpoint, _):
            link = await dial(endpoint)
            link._writer.write(length.to_bytes(4, "little"))
            assert (await refusal(link))[0] == ("oversized" if length else "malformed")
            with pytest.raises(LinkLost, match="gone"):
                await link.receive(WAIT_S)
            await works(await dial(server.arm(), epoch=2), epoch=2)

    run(body)


def test_an_applications_own_mistake_ends_the_link_not_the_server(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with serving() as (server, endpoint, _):
            link = await dial(endpoint)
            await link.send(asking(1, wire.RoundEntry(CRASH, 0, 1, ())))
            with pytest.raises(LinkLost, match="gone"):
                await link.receive(WAIT_S)
            await works(await dial(server.arm(), epoch=2), epoch=2)

    run(body)
    assert "an application's own mistake" in caplog.text


def test_half_a_frame_and_then_death() -> None:
    async def body() -> None:
        async with serving() as (server, endpoint, app):
            link = await dial(endpoint)
            link._writer.write(wire.framed(wire.encode(opening(1, 2, 3), VOCAB))[:-2])
            await link._writer.drain()
            link._writer.transport.abort()
            await works(await dial(server.arm(), epoch=2), epoch=2)
            assert 1 not in app.sessions

    run(body)


def garbage(i: int, rng: random.Random) -> bytes:
    length = rng.randrange(1, wire.GREETING_BYTES)
    return (
        b"",
        rng.randbytes(rng.randrange(1, 4)),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        wire.framed(rng.randbytes(length)),
        wire.framed(rng.randbytes(length))[:-1],
        rng.randbytes(5000),
        wire.framed(wire.encode(hello(rng.getrandbits(128), 1, VOCAB), VOCAB)),
        wire.framed(wire.encode(opening(1, *range(200)), VOCAB)),
    )[i % 8]


def test_the_server_survives_strangers_before_and_while_it_serves() -> None:
    async def body() -> None:
        rng = random.Random(3)

        async def stranger(endpoint: Endpoint, i: int) -> bytes:
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
            try:
                writer.write(garbage(i, rng))
                await writer.drain()
                return await asyncio.wait_for(reader.read(), WAIT_S)
            except ConnectionError:
                return b""
            finally:
                writer.close()

        async with serving(greeting_timeout_s=0.5) as (_, endpoint, app):
            assert not any(await asyncio.gather(*(stranger(endpoint, i) for i in range(100))))
            link = await dial(endpoint)
            crowd = asyncio.gather(*(stranger(endpoint, i) for i in range(100)))
            for number in range(1, 6):
                await works(link, number)
            assert not any(await crowd)
            await works(link, 7)
            assert app.epochs == [1]
            await link.close()

    run(body)


def test_silent_strangers_do_not_keep_the_target_out() -> None:
    async def body() -> None:
        async with serving(greeting_timeout_s=60.0) as (server, endpoint, _):
            crowd = [
                await asyncio.open_connection(endpoint.host, endpoint.port)
                for _ in range(3 * stream_server.MAX_STRANGERS)
            ]
            link = await dial(endpoint)
            await works(link)
            assert len(server._strangers) <= stream_server.MAX_STRANGERS
            assert len(server._tasks) <= stream_server.MAX_STRANGERS + 1
            for _, writer in crowd:
                writer.close()

    run(body)


def test_a_silent_stranger_is_shown_out() -> None:
    async def body() -> None:
        async with serving(greeting_timeout_s=0.1) as (_, endpoint, _app):
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
            writer.close()

    run(body)


def test_a_greeting_larger_than_its_budget_is_not_read() -> None:
    async def body() -> None:
        async with serving(greeting_timeout_s=60.0) as (_, endpoint, _app):
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
            writer.write((wire.GREETING_BYTES + 1).to_bytes(4, "little"))
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
            writer.close()

    run(body)


def test_a_hung_peer_is_lost_at_the_deadline() -> None:
    async def body() -> None:
        async with serving() as (_, endpoint, _app):
            link = await dial(endpoint)
            await link.send(asking(1, wire.RoundEntry(HANG, 0, 1, ())))
            before = asyncio.get_running_loop().time()
            with pytest.raises(LinkLost, match=r"nothing for 0\.3 s"):
                await link.receive(0.3)
            assert 0.25 < asyncio.get_running_loop().time() - before < 5.0
            with pytest.raises(LinkLost, match="has ended"):
                await link.receive(0.3)

    run(body)


def test_a_cancelled_receive_loses_nothing() -> None:
    async def body() -> None:
        ready = asyncio.Event()
        go_on = asyncio.Event()
        frame = wire.Proposal(1, 1, 2, 0, (wire.ProposalEntry(4, (5, 6)),))

        async def slow_draft(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            data = wire.framed(wire.encode(frame, VOCAB))
            writer.write(data[:7])
            ready.set()
            await go_on.wait()
            writer.write(data[7:])

        async with await asyncio.start_server(slow_draft, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            link = StreamLink(reader, writer, vocab_size=VOCAB)
            waiting = asyncio.create_task(link.receive(WAIT_S))
            await ready.wait()
            await asyncio.sleep(0.05)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            go_on.set()
            assert await link.receive(WAIT_S) == frame
            await link.close()

    run(body)


@pytest.mark.parametrize(
    "data",
    [
        wire.framed(b"\x93\x04\x03"),
        wire.framed(wire.encode(wire.Close(1, 1), VOCAB)),
        wire.framed(wire.encode(wire.Proposal(1, 1, 0, 0, (wire.ProposalEntry(1, (VOCAB,)),)), VOCAB + 1)),
        (2**31).to_bytes(4, "little"),
        b"\0\0\0\0",
        b"\x05\0\0\0ab",
    ],
    ids=["malformed", "a target's frame", "not in the vocabulary", "oversized", "empty", "cut"],
)
def test_a_draft_that_sends_nonsense_is_lost(data: bytes) -> None:
    async def body() -> None:
        async def mad_draft(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(data)
            writer.close()

        async with await asyncio.start_server(mad_draft, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            link = StreamLink(reader, writer, vocab_size=VOCAB)
            with pytest.raises(LinkLost):
                await link.receive(WAIT_S)
            with pytest.raises(LinkLost, match="has ended"):
                await link.receive(WAIT_S)

    run(body)


def test_a_peer_that_takes_nothing_is_lost_while_sending() -> None:
    async def body() -> None:
        done = asyncio.Event()

        async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await done.wait()

        async with await asyncio.start_server(deaf, "127.0.0.1", 0, limit=1) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            link = StreamLink(reader, writer, vocab_size=VOCAB, send_timeout_s=0.2)
            large = opening(1, *([1] * wire.MAX_IDS_PER_FRAME))

            async def send_until_full() -> None:
                for _ in range(200):
                    await link.send(large)

            with pytest.raises(LinkLost, match="took nothing"):
                await send_until_full()
            done.set()

    run(body)


def test_what_cannot_be_encoded_is_not_sent() -> None:
    async def body() -> None:
        async with serving() as (_, endpoint, _app):
            link = await dial(endpoint)
            sent = link.bytes_out
            with pytest.raises(WireError, match="out_of_range"):
                await link.send(opening(1, VOCAB))
            assert link.bytes_out == sent
            await works(link)

    run(body)


def test_nobody_there() -> None:
    async def body() -> None:
        async with serving() as (_, endpoint, _app):
            pass
        with pytest.raises(LinkLost, match="no connection"):
            await dial(endpoint)

    run(body)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::"])
def test_never_bound_to_every_address(host: str) -> None:
    with pytest.raises(ValueError, match="own address"):
        StreamServer(FrameServer(EchoApp(), vocab_size=VOCAB, block=BLOCK), host)


def test_the_nonce_is_not_printed() -> None:
    assert "12345678" not in repr(Endpoint(transport="stream", nonce=12345678, host="127.0.0.1", port=1))


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_process_is_noticed_at_once_and_a_stopped_one_at_the_deadline(sent: signal.Signals) -> None:
    script = Path(__file__).with_name("link_apps.py")
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)

    async def body() -> None:
        assert process.stdout is not None
        port, nonce = map(int, process.stdout.readline().split())
        link = await dial(Endpoint(transport="stream", nonce=nonce, host="127.0.0.1", port=port))
        await works(link, 1)
        await link.send(asking(2, wire.RoundEntry(HANG, 0, 1, ())))
        asyncio.get_running_loop().call_later(0.1, os.kill, process.pid, sent)
        killed = sent == signal.SIGKILL
        before = asyncio.get_running_loop().time()
        with pytest.raises(LinkLost, match="gone" if killed else "nothing for 1 s"):
            await link.receive(60.0 if killed else 1.0)
        assert asyncio.get_running_loop().time() - before < 10.0

    try:
        run(body)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
