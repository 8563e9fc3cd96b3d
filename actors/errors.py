"""Named exceptions of the actors package. Each text says what must hold, then what was got."""

from __future__ import annotations


class CheckpointError(ValueError):
    """A checkpoint is missing, damaged, of an unsupported kind, or has an unknown configuration."""


class MismatchError(CheckpointError):
    """A head and a target do not belong together; both values are named."""


class WireError(ValueError):
    """A frame between the actors is malformed, oversized, stale or foreign.

    `name` is the short, stable name of the fault (one of `twinspark.actors.wire.FAULTS`).
    """

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name


class LinkLost(ConnectionError):
    """The peer is gone, hung past its deadline, or sent something that ends the connection."""


class RequestError(ValueError):
    """A generation request cannot be served as asked (prompt too long, settings out of range)."""
