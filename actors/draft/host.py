"""The draft actor: loads, listens, answers rounds. A plain class; Ray appears where it is spawned."""

from __future__ import annotations

from typing import Any

from twinspark.actors.compute import ComputeThread
from twinspark.actors.draft.app import DrafterApp
from twinspark.actors.draft.drafter import Drafter
from twinspark.actors.link.base import Endpoint, Transport
from twinspark.actors.link.frame_server import FrameServer
from twinspark.actors.link.ray_call import RayServer
from twinspark.actors.link.stream_server import StreamServer
from twinspark.actors.loading import Progress, load_drafter
from twinspark.actors.rehearsal import draft_step
from twinspark.actors.report import report_of
from twinspark.actors.specs import ActorReport, DraftSpec


class DraftHost:
    """`load`, then `listen` for each new link. Lives until its actor is killed."""

    def __init__(self, spec: DraftSpec) -> None:
        self.spec = spec
        self.compute = ComputeThread(spec.actor.num_threads)
        self._progress = Progress()
        self._drafter: Drafter | None = None
        self._stream: StreamServer | None = None
        self._ray: RayServer | None = None

    async def load(self) -> ActorReport:
        """Read the checkpoints. Raises CheckpointError or ValueError for what cannot be loaded."""
        drafter, vocab_size = await self.compute(lambda: load_drafter(self.spec, self._progress))
        app = DrafterApp(drafter, self.compute)
        self._gate = FrameServer(app, vocab_size=vocab_size, block=drafter.verify_length)
        self._drafter = drafter
        return await self.report()

    async def progress(self) -> tuple[int, int]:
        """Bytes loaded, and of how many."""
        return self._progress.done_bytes, self._progress.total_bytes

    async def listen(self, transport: Transport, host: str, actor: Any = None) -> Endpoint:
        """Arm one transport for one link; what was open before is ended. `host` is the node's own address."""
        if transport == "ray":
            self._ray = self._ray or RayServer(self._gate)
            return self._ray.arm(actor)
        if self._stream is None:
            self._stream = StreamServer(self._gate, host)
            return await self._stream.start()
        return self._stream.arm()

    async def link_frame(self, data: bytes) -> bytes:
        """A frame of the `ray` transport; silence before it is armed."""
        return b"" if self._ray is None else await self._ray.link_frame(data)

    async def report(self) -> ActorReport:
        if self._drafter is None:
            raise ValueError("the draft must be loaded first")
        return report_of(self._drafter.trunk.embedding, self.spec.settings.dtype, self.compute)

    async def rehearse(self, num_requests: int, length: int, position: int) -> float:
        """Milliseconds of a round of `num_requests` without requests, as `rehearsal.draft_step`.

        Raises ValueError where sessions are open: their contexts would be written over.
        """
        drafter = self._drafter
        if drafter is None:
            raise ValueError("the draft must be loaded first")
        if drafter.sessions:
            raise ValueError(f"a rehearsal needs an idle draft, got one with {len(drafter.sessions)} sessions")
        return await self.compute(
            lambda: draft_step(drafter, num_requests=num_requests, length=length, position=position)
        )

    async def laps_ms(self) -> dict[str, float]:
        """Milliseconds spent in each part so far."""
        if self._drafter is None:
            return {}
        return {name: 1e3 * seconds for name, seconds in self._drafter.proposer.watch.total_s.items()}
