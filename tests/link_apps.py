"""A small draft application for the link tests: proposes what it was told, refuses what it does not know."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from twinspark.actors import wire
from twinspark.actors.link.frame_server import FrameServer
from twinspark.actors.link.ray_call import RayServer
from twinspark.actors.link.stream_server import StreamServer

VOCAB = 1000
BLOCK = 7
HANG = 999
CRASH = 998
DIE = 997


class EchoApp:
    """Proposes the last ids of each session backwards. A round with session HANG, CRASH or DIE does just that."""

    def __init__(self) -> None:
        self.sessions: dict[int, list[int]] = {}
        self.epochs: list[int] = []

    def hello(self, epoch: int) -> None:
        self.sessions.clear()
        self.epochs.append(epoch)

    def open(self, frame: wire.Open) -> None:
        if frame.session in self.sessions:
            raise wire.SessionFault("session_open", frame.session, "must be closed first")
        self.sessions[frame.session] = list(frame.ids)

    def close(self, frame: wire.Close) -> None:
        if self.sessions.pop(frame.session, None) is None:
            raise wire.SessionFault("unknown_session", frame.session, "was never opened")

    async def round(self, frame: wire.Round) -> wire.Proposal:
        for entry in frame.entries:
            await self._misbehave(entry.session)
            if entry.session not in self.sessions:
                raise wire.SessionFault("unknown_session", entry.session, "was never opened")
            have = len(self.sessions[entry.session])
            if entry.start != have:
                raise wire.SessionFault("wrong_start", entry.session, f"start must be {have}, got {entry.start}")
        answers = []
        for entry in frame.entries:
            ids = self.sessions[entry.session]
            ids += entry.ids
            answers.append(wire.ProposalEntry(entry.session, tuple(ids[::-1][: entry.cap])))
        return wire.Proposal(frame.epoch, frame.round, 5, 0, tuple(answers))

    async def _misbehave(self, session: int) -> None:
        if session == HANG:
            await asyncio.sleep(3600)
        if session == CRASH:
            raise OSError("an application's own mistake")
        if session == DIE:
            os.kill(os.getpid(), signal.SIGKILL)


class DraftActor:
    """What a Ray actor with a draft looks like from its link."""

    def __init__(self) -> None:
        self.app = EchoApp()
        self.server = RayServer(FrameServer(self.app, vocab_size=VOCAB, block=BLOCK))

    async def arm(self) -> int:
        return self.server.arm(None).nonce

    async def link_frame(self, data: bytes) -> bytes:
        return await self.server.link_frame(data)


async def serve_for_ever() -> None:
    """A draft in its own process: prints its port and nonce, then serves until killed."""
    server = StreamServer(FrameServer(EchoApp(), vocab_size=VOCAB, block=BLOCK), "127.0.0.1")
    endpoint = await server.start()
    sys.stdout.write(f"{endpoint.port} {endpoint.nonce}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve_for_ever())
