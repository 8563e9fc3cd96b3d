"""The `ray` transport: the same frames as arguments and results of plain actor calls.

Knows how to call an actor that has `async def link_frame(self, data: bytes) -> bytes`. Ray is imported only where used.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from twinspark.actors.errors import LinkLost
from twinspark.actors.link.base import Endpoint, MeteredLink, Recorder, check_welcome, from_draft, hello
from twinspark.actors.link.frame_server import FrameServer
from twinspark.actors.wire import GREETING_BYTES, Frame, Hello, Round, encode

SETTLE_S = 5.0  # for a frame without an answer to be taken


class RayServer:
    """The draft's end: the body of the actor's `link_frame`. Empty bytes mean no answer."""

    def __init__(self, gate: FrameServer) -> None:
        self._gate = gate

    def arm(self, actor: Any) -> Endpoint:
        """Ends the link there is, if any, and lets one more be opened. `actor` is the handle to call."""
        return Endpoint(transport="ray", nonce=self._gate.arm(), actor=actor)

    async def link_frame(self, data: bytes) -> bytes:
        """Answers one frame. Until somebody greeted with the nonce, everything else is met with silence."""
        if not self._gate.greeted:
            if type(data) is not bytes or len(data) > GREETING_BYTES:
                return b""
            return (await self._gate.greet(data)).data
        answer = await self._gate.frame(data)
        if not answer.keep:
            self._gate.hang_up()
        return answer.data


class RayLink(MeteredLink):
    """A Link over calls to `actor`; made by `connect`. Answers come in the order of the calls."""

    def __init__(self, actor: Any, *, vocab_size: int, record: Recorder | None = None) -> None:
        super().__init__(vocab_size, record)
        self._actor = actor
        self._calls: deque[tuple[Any, bool]] = deque()
        self._called = asyncio.Event()
        self._latest: Any = None

    async def send(self, frame: Frame) -> None:
        import ray

        data = encode(frame, self._vocab_size)
        self._check_open()
        try:
            # An asynchronous actor may begin calls in another order than they were made.
            async with asyncio.timeout(SETTLE_S):
                if self._latest is not None:
                    await self._latest
            self._meter.sent(data)
            call = self._latest = self._actor.link_frame.remote(data)
        except TimeoutError as error:
            raise self._lost(f"the draft took no frame for {SETTLE_S:g} s") from error
        except ray.exceptions.RayError as error:
            raise self._lost(f"the draft is gone ({type(error).__name__})") from error
        self._calls.append((call, isinstance(frame, (Hello, Round))))
        self._called.set()

    async def receive(self, timeout_s: float) -> Frame:
        import ray

        self._check_open()
        try:
            async with asyncio.timeout(timeout_s):
                data = await self._next_answer()
        except TimeoutError as error:
            raise self._lost(f"the draft sent nothing for {timeout_s:g} s") from error
        except ray.exceptions.RayError as error:
            raise self._lost(f"the draft is gone ({type(error).__name__})") from error
        if not data:
            raise self._lost("the draft has closed the link")
        self._meter.received(data)
        try:
            return from_draft(data, self._vocab_size)
        except LinkLost as error:
            raise self._lost(str(error)) from error

    async def close(self) -> None:
        self._ended = self._ended or "it was closed"
        self._calls.clear()

    async def _next_answer(self) -> bytes:
        """The next answer that says something, or nothing from a call that is always answered."""
        while True:
            while not self._calls:
                self._called.clear()
                await self._called.wait()
            call, answer_due = self._calls[0]
            data: bytes = await call
            self._calls.popleft()
            if data or answer_due:
                return data

    def _lost(self, why: str) -> LinkLost:
        self._ended = why
        self._calls.clear()
        return LinkLost(why)


async def connect(
    endpoint: Endpoint, *, epoch: int, vocab_size: int, timeout_s: float, record: Recorder | None = None
) -> RayLink:
    """Opens the link. Raises LinkLost where nobody answers, WireError where the draft refuses by name."""
    link = RayLink(endpoint.actor, vocab_size=vocab_size, record=record)
    await link.send(hello(endpoint.nonce, epoch, vocab_size))
    link.welcome = check_welcome(await link.receive(timeout_s), epoch, vocab_size)
    return link
