"""The draft's gate: who may talk, which frames count, and what a bad one is answered.

Knows the nonce, the epoch and the last round. Knows neither sessions (the application does) nor how bytes arrive.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from dataclasses import dataclass
from typing import Protocol

from twinspark.actors.errors import WireError
from twinspark.actors.link.base import NONCE_BITS, fresh_nonce, nonce_of
from twinspark.actors.wire import (
    SESSION_FAULTS,
    WIRE_VERSION,
    Close,
    Frame,
    Hello,
    Open,
    Proposal,
    Refused,
    Round,
    SessionFault,
    Welcome,
    decode,
    encode,
    fault_index,
)

log = logging.getLogger(__name__)

NONCE_BYTES = NONCE_BITS // 8


class DraftApp(Protocol):
    """What a draft does with frames that passed the gate, one at a time.

    `open`, `close` and `round` may raise SessionFault (or, about a whole frame, WireError): the target is told. They
    should raise before they change anything. Any other exception ends the link.
    """

    def hello(self, epoch: int) -> None:
        """Another incarnation of the target: drop every session."""
        ...

    def open(self, frame: Open) -> None: ...

    def close(self, frame: Close) -> None: ...

    async def round(self, frame: Round) -> Proposal: ...


@dataclass(frozen=True)
class Answer:
    """What goes back (nothing where `data` is empty), and whether the link goes on."""

    data: bytes
    keep: bool


SILENCE = Answer(b"", keep=False)


class FrameServer:
    """Takes the bytes of frames from whatever transport, and gives bytes back. Lets nobody in before `arm`.

    `block` is the most draft tokens the application puts in a proposal.
    """

    def __init__(self, app: DraftApp, *, vocab_size: int, block: int) -> None:
        self._app = app
        self._vocab_size = vocab_size
        self._block = block
        self._lock = asyncio.Lock()
        self._arming = 0
        self._epoch: int | None = None
        self._newest_epoch = -1
        self._last_round: int | None = None
        self._nonce: bytes | None = None

    @property
    def greeted(self) -> bool:
        """Whether a link is open."""
        return self._epoch is not None

    def arm(self) -> int:
        """Ends the link there is, if any. Returns the nonce that opens one more."""
        nonce = fresh_nonce()
        self._arming += 1
        self._nonce = nonce.to_bytes(NONCE_BYTES, "big")
        self.hang_up()
        return nonce

    def hang_up(self) -> None:
        """The link has ended: nothing is accepted until somebody greets with a fresh nonce."""
        self._epoch = None

    async def greet(self, data: bytes) -> Answer:
        """Answers the first frame on a link. Silence for whoever does not show the nonce."""
        try:
            hello = decode(data, self._vocab_size)
        except WireError as error:
            log.info("ignored a stranger: %s", error.name)
            return SILENCE
        if not isinstance(hello, Hello) or not self._spend_nonce(nonce_of(hello)):
            log.info("ignored a stranger: wrong nonce")
            return SILENCE
        fault = self._fault_of(hello)
        if fault is not None:
            log.warning("refused a greeting: %s", fault)
            refused = Refused(hello.epoch, 0, 0, fault_index(fault.name))
            return Answer(encode(refused, self._vocab_size), keep=False)
        arming = self._arming
        async with self._lock:  # a round of the former incarnation may still be computing
            if arming != self._arming:
                return SILENCE
            self._app.hello(hello.epoch)
            self._epoch = self._newest_epoch = hello.epoch
            self._last_round = None
        welcome = Welcome(WIRE_VERSION, hello.epoch, self._block, self._vocab_size)
        return Answer(encode(welcome, self._vocab_size), keep=True)

    async def frame(self, data: bytes) -> Answer:
        """Answers any later frame. What is wrong with it is told by name; only a broken framing ends the link."""
        try:
            frame = decode(data, self._vocab_size)
        except WireError as fault:
            return self.refuse(fault)
        async with self._lock:
            try:
                self._admit(frame)
                reply = await self.handle(frame)
            except WireError as fault:
                return self.refuse(fault, frame)
        return Answer(b"" if reply is None else encode(reply, self._vocab_size), keep=True)

    async def handle(self, frame: Frame) -> Frame | None:
        """Gives an admitted frame to the application. Raises WireError where that refuses it."""
        match frame:
            case Open():
                self._app.open(frame)
            case Close():
                self._app.close(frame)
            case Round():
                return await self._app.round(frame)
            case _:
                raise WireError("unexpected", f"a target must not send {type(frame).__name__} here")
        return None

    def refuse(self, fault: WireError, frame: Frame | None = None) -> Answer:
        """The answer that tells `fault`; `frame` is the refused one where it could be read."""
        if self._epoch is None:
            return SILENCE
        log.warning("refused a frame: %s", fault)
        session = 0
        if fault.name in SESSION_FAULTS:
            if isinstance(fault, SessionFault):
                session = fault.session
            elif isinstance(frame, (Open, Close)):
                session = frame.session
            else:
                raise ValueError(f"{fault.name} must be raised as a SessionFault that names the session") from fault
        number = frame.round if isinstance(frame, Round) else self._last_round or 0
        refused = Refused(self._epoch, number, session, fault_index(fault.name))
        return Answer(encode(refused, self._vocab_size), keep=fault.name != "oversized")

    def _spend_nonce(self, shown: int) -> bool:
        """Whether `shown` is the nonce. It never is again."""
        expected = secrets.token_bytes(NONCE_BYTES) if self._nonce is None else self._nonce
        if not hmac.compare_digest(shown.to_bytes(NONCE_BYTES, "big"), expected):
            return False
        self._nonce = None
        return True

    def _fault_of(self, hello: Hello) -> WireError | None:
        ours = (WIRE_VERSION, self._vocab_size)
        if (hello.version, hello.vocab_size) != ours:
            return WireError("foreign", f"version, vocabulary must be {ours}, got {hello.version, hello.vocab_size}")
        if hello.epoch <= self._newest_epoch:
            return WireError("stale_epoch", f"epoch must be above {self._newest_epoch}, got {hello.epoch}")
        return None

    def _admit(self, frame: Frame) -> None:
        """Raises WireError for a frame of another epoch or a round that is not newer than the last."""
        if isinstance(frame, Hello) or frame.epoch != self._epoch:
            name = "unexpected" if isinstance(frame, Hello) else "stale_epoch"
            raise WireError(
                name, f"a frame must be of epoch {self._epoch}, got {type(frame).__name__} of {frame.epoch}"
            )
        if isinstance(frame, Round):
            if self._last_round is not None and frame.round <= self._last_round:
                raise WireError("stale_round", f"round must be above {self._last_round}, got {frame.round}")
            self._last_round = frame.round
