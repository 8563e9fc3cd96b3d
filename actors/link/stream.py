"""The `stream` transport, target's end: one TCP connection, each frame behind its length."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from twinspark.actors.errors import LinkLost, WireError
from twinspark.actors.link.base import Endpoint, MeteredLink, Recorder, check_welcome, from_draft, hello
from twinspark.actors.wire import MAX_FRAME_BYTES, PREFIX_BYTES, Frame, encode, frame_length

SEND_TIMEOUT_S = 10.0
CONNECT_ATTEMPTS = 3
RETRY_PAUSE_S = 0.05


class StreamLink(MeteredLink):
    """A Link over a connected socket; made by `connect`."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        vocab_size: int,
        record: Recorder | None = None,
        send_timeout_s: float = SEND_TIMEOUT_S,
    ) -> None:
        super().__init__(vocab_size, record)
        self._reader = reader
        self._writer = writer
        self._send_timeout_s = send_timeout_s
        self._expected: int | None = None

    async def send(self, frame: Frame) -> None:
        data = encode(frame, self._vocab_size)
        self._check_open()
        try:
            async with asyncio.timeout(self._send_timeout_s):
                self._writer.write(self._meter.sent(data))
                await self._writer.drain()
        except TimeoutError as error:
            raise self._lost(f"the draft took nothing for {self._send_timeout_s:g} s") from error
        except OSError as error:
            raise self._lost(f"the draft is gone ({error})") from error

    async def receive(self, timeout_s: float) -> Frame:
        self._check_open()
        try:
            async with asyncio.timeout(timeout_s):
                data = await self._next_frame()
        except TimeoutError as error:
            raise self._lost(f"the draft sent nothing for {timeout_s:g} s") from error
        except (asyncio.IncompleteReadError, OSError) as error:
            raise self._lost(f"the draft is gone ({error})") from error
        except WireError as fault:
            raise self._lost(f"the draft sent a bad length ({fault})") from fault
        self._meter.received(data)
        try:
            return from_draft(data, self._vocab_size)
        except LinkLost as error:
            raise self._lost(str(error)) from error

    async def close(self) -> None:
        self._ended = self._ended or "it was closed"
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _next_frame(self) -> bytes:
        # The length is kept, so that a cancelled call does not leave the next one in the middle of a frame.
        if self._expected is None:
            self._expected = frame_length(await self._reader.readexactly(PREFIX_BYTES), MAX_FRAME_BYTES)
        data = await self._reader.readexactly(self._expected)
        self._expected = None
        return data

    def _lost(self, why: str) -> LinkLost:
        self._ended = why
        self._writer.transport.abort()
        return LinkLost(why)


async def connect(
    endpoint: Endpoint, *, epoch: int, vocab_size: int, timeout_s: float, record: Recorder | None = None
) -> StreamLink:
    """Opens the link. Raises LinkLost where nobody answers, WireError where the draft refuses by name.

    A connection that ends unanswered is tried again a few times: among many strangers' connections the draft may have
    dropped this one.
    """
    deadline = asyncio.get_running_loop().time() + timeout_s
    for attempt in range(1, CONNECT_ATTEMPTS + 1):
        left = deadline - asyncio.get_running_loop().time()
        try:
            return await _connect_once(endpoint, epoch, vocab_size, left, record)
        except LinkLost:
            if attempt == CONNECT_ATTEMPTS or asyncio.get_running_loop().time() + RETRY_PAUSE_S >= deadline:
                raise
        await asyncio.sleep(RETRY_PAUSE_S)
    raise LinkLost("the draft did not answer")


async def _connect_once(
    endpoint: Endpoint, epoch: int, vocab_size: int, timeout_s: float, record: Recorder | None
) -> StreamLink:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    except OSError as error:
        raise LinkLost(f"no connection to the draft at {endpoint.host}:{endpoint.port} ({error!r})") from error
    set_options(writer)
    link = StreamLink(reader, writer, vocab_size=vocab_size, record=record)
    opened = False
    try:
        await link.send(hello(endpoint.nonce, epoch, vocab_size))
        link.welcome = check_welcome(await link.receive(max(0.0, deadline - loop.time())), epoch, vocab_size)
        opened = True
    finally:
        if not opened:
            await link.close()
    return link


def set_options(writer: asyncio.StreamWriter) -> None:
    """Small frames go at once, and a peer's host that vanished is noticed in the end."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
