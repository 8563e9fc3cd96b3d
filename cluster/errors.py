"""Named exceptions of the cluster package."""

from __future__ import annotations

import signal


class SpawnError(RuntimeError):
    """An actor could not be started or did not come up in time; says what it waited for."""


class NoRoomError(SpawnError):
    """The memory that the plan counted on is not there any more, just before loading."""


class Interrupted(BaseException):
    """A signal asked the program to end. No Exception, so that nothing on the way out takes it for a failure."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number
