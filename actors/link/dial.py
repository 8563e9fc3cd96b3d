"""Opens a link to an endpoint, whichever transport it names."""

from __future__ import annotations

from twinspark.actors.link import ray_call, stream
from twinspark.actors.link.base import Endpoint, Link, Recorder


async def connect(
    endpoint: Endpoint, *, epoch: int, vocab_size: int, timeout_s: float, record: Recorder | None = None
) -> Link:
    """A link that was greeted and welcomed. Raises LinkLost where nobody answers, WireError where the draft refuses."""
    match endpoint.transport:
        case "stream":
            return await stream.connect(
                endpoint, epoch=epoch, vocab_size=vocab_size, timeout_s=timeout_s, record=record
            )
        case "ray":
            return await ray_call.connect(
                endpoint, epoch=epoch, vocab_size=vocab_size, timeout_s=timeout_s, record=record
            )
