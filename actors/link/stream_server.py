"""The `stream` transport, draft's end: listens on the node's own address and serves one link at a time.

Knows connections and lengths. What a frame means, and who may talk, is the FrameServer's.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging

from twinspark.actors.errors import LinkLost, WireError
from twinspark.actors.link.base import Endpoint
from twinspark.actors.link.frame_server import Answer, FrameServer
from twinspark.actors.link.stream import set_options
from twinspark.actors.wire import GREETING_BYTES, MAX_FRAME_BYTES, PREFIX_BYTES, frame_length, framed

log = logging.getLogger(__name__)

GREETING_TIMEOUT_S = 5.0
MAX_STRANGERS = 16
READ_AHEAD_BYTES = 4096
"""How much may wait unread; a frame that is larger, and allowed, is read in pieces."""


class StreamServer:
    """Accepts connections, lets one in that greets with the nonce, and answers its frames in order."""

    def __init__(self, gate: FrameServer, bind_host: str, *, greeting_timeout_s: float = GREETING_TIMEOUT_S) -> None:
        if _is_wildcard(bind_host):
            raise ValueError(f"bind_host must be the node's own address, got {bind_host!r}")
        self._gate = gate
        self._bind_host = bind_host
        self._greeting_timeout_s = greeting_timeout_s
        self._server: asyncio.Server | None = None
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        self._current: asyncio.StreamWriter | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> Endpoint:
        """Listens on a free port, and lets one link be opened."""
        self._server = await asyncio.start_server(self._accept, self._bind_host, 0, limit=READ_AHEAD_BYTES)
        return self.arm()

    def arm(self) -> Endpoint:
        """Ends the link there is, if any, and lets one more be opened, with a fresh nonce."""
        if self._server is None:
            raise ValueError("a server must be started before it is armed again")
        nonce = self._gate.arm()
        if self._current is not None:
            self._current.transport.abort()
            self._current = None
        host, port = self._server.sockets[0].getsockname()[:2]
        return Endpoint(transport="stream", nonce=nonce, host=host, port=port)

    async def close(self) -> None:
        """Stops listening and ends every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._finished)
        try:
            # Strangers may leave, reset or send anything at any moment; that is their business alone.
            with contextlib.suppress(LinkLost):
                set_options(writer)
                if await self._let_in(reader, writer):
                    await self._serve(reader, writer)
        finally:
            if self._current is writer:
                self._current = None
                self._gate.hang_up()
            writer.close()

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a link ended by an error of the draft's own", exc_info=task.exception())

    async def _let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Reads the greeting. The oldest stranger makes room when there are too many."""
        if len(self._strangers) >= MAX_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
        self._strangers[writer] = None
        try:
            async with asyncio.timeout(self._greeting_timeout_s):
                data = await _read(reader, GREETING_BYTES)
        except (WireError, TimeoutError):
            return False
        finally:
            self._strangers.pop(writer, None)
        answer = await self._gate.greet(data)
        if answer.keep:
            self._current = writer
        await _write(writer, answer)
        return answer.keep

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        keep = True
        while keep and self._current is writer:
            try:
                answer = await self._gate.frame(await _read(reader, MAX_FRAME_BYTES))
            except WireError as fault:
                # The length itself is wrong: where the next frame begins is not known.
                answer = Answer(self._gate.refuse(fault).data, keep=False)
            await _write(writer, answer)
            keep = answer.keep


async def _read(reader: asyncio.StreamReader, budget: int) -> bytes:
    try:
        return await reader.readexactly(frame_length(await reader.readexactly(PREFIX_BYTES), budget))
    except (asyncio.IncompleteReadError, OSError) as error:
        raise LinkLost(f"the target is gone ({error})") from error


async def _write(writer: asyncio.StreamWriter, answer: Answer) -> None:
    if answer.data:
        writer.write(framed(answer.data))
        try:
            await writer.drain()
        except OSError as error:
            raise LinkLost(f"the target is gone ({error})") from error


def _is_wildcard(host: str) -> bool:
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
