"""What a link is, whatever carries it, and where its other end is found. Knows no transport."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from twinspark.actors.errors import LinkLost, WireError
from twinspark.actors.wire import FAULTS, FROM_DRAFT, WIRE_VERSION, Frame, Hello, Refused, Welcome, decode, framed

Transport = Literal["stream", "ray"]
Recorder = Callable[[Literal["out", "in"], bytes], None]
"""Told of every frame that crosses, behind its length, as seen from the target."""

NONCE_BITS = 128
_HALF = 64


@dataclass(frozen=True)
class Endpoint:
    """Where a draft listens, handed over through Ray. `host` and `port` serve "stream", `actor` (a handle) "ray".

    The nonce opens one link, once, and is kept out of the printed form.
    """

    transport: Transport
    nonce: int = field(repr=False)
    host: str = ""
    port: int = 0
    actor: Any = None


class Link(Protocol):
    """The target's end. One caller at a time sends, one receives. After LinkLost the link is of no more use."""

    @property
    def welcome(self) -> Welcome:
        """The draft's answer to the greeting."""
        ...

    @property
    def bytes_out(self) -> int:
        """Bytes sent, lengths included."""
        ...

    @property
    def bytes_in(self) -> int:
        """Bytes received, lengths included."""
        ...

    async def send(self, frame: Frame) -> None:
        """Raises WireError, with nothing sent, where `frame` cannot be encoded; LinkLost where the peer is gone."""
        ...

    async def receive(self, timeout_s: float) -> Frame:
        """The next frame from the draft. Raises LinkLost on the peer's death, its silence, or a malformed frame.

        May be cancelled and called again: no frame is lost by that.
        """
        ...

    async def close(self) -> None:
        """Ends the link; never raises."""
        ...


class Meter:
    """Counts and records what crosses."""

    def __init__(self, record: Recorder | None) -> None:
        self.bytes_out = 0
        self.bytes_in = 0
        self._record = record

    def sent(self, data: bytes) -> bytes:
        """Notes `data` as going out; returns it behind its length."""
        whole = framed(data)
        self.bytes_out += len(whole)
        if self._record is not None:
            self._record("out", whole)
        return whole

    def received(self, data: bytes) -> None:
        """Notes `data`, a frame without its length, as having come in."""
        whole = framed(data)
        self.bytes_in += len(whole)
        if self._record is not None:
            self._record("in", whole)


class MeteredLink:
    """What every transport's Link keeps: the greeting's answer, what crossed, and whether and why it has ended."""

    welcome: Welcome

    def __init__(self, vocab_size: int, record: Recorder | None) -> None:
        self._vocab_size = vocab_size
        self._meter = Meter(record)
        self._ended: str | None = None

    @property
    def bytes_out(self) -> int:
        return self._meter.bytes_out

    @property
    def bytes_in(self) -> int:
        return self._meter.bytes_in

    def _check_open(self) -> None:
        if self._ended is not None:
            raise LinkLost(f"the link has ended: {self._ended}")


def fresh_nonce() -> int:
    """A nonce nobody can guess."""
    return secrets.randbits(NONCE_BITS)


def hello(nonce: int, epoch: int, vocab_size: int) -> Hello:
    """The greeting that shows `nonce`."""
    return Hello(WIRE_VERSION, nonce >> _HALF, nonce & ((1 << _HALF) - 1), epoch, vocab_size)


def nonce_of(frame: Hello) -> int:
    return frame.nonce_high << _HALF | frame.nonce_low


def from_draft(data: bytes, vocab_size: int) -> Frame:
    """Decodes what a draft sent. Raises LinkLost, since nothing after a bad frame can be trusted."""
    try:
        frame = decode(data, vocab_size)
    except WireError as fault:
        raise LinkLost(f"the draft sent a bad frame ({fault})") from fault
    if not isinstance(frame, FROM_DRAFT):
        raise LinkLost(f"the draft sent a {type(frame).__name__}, which only a target sends")
    return frame


def check_welcome(frame: Frame, epoch: int, vocab_size: int) -> Welcome:
    """`frame` as the Welcome that was asked for. Raises WireError where the draft refused or answers something else."""
    if isinstance(frame, Refused):
        raise WireError(FAULTS[frame.fault], "the draft refused the greeting")
    if not isinstance(frame, Welcome):
        raise WireError("unexpected", f"a greeting must be answered by Welcome, got {type(frame).__name__}")
    expected = (WIRE_VERSION, epoch, vocab_size)
    if (frame.version, frame.epoch, frame.vocab_size) != expected:
        raise WireError("foreign", f"Welcome must carry version, epoch, vocabulary {expected}, got {frame}")
    return frame
