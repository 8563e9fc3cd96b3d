"""How a signal ends a run: at once before Ray is there; afterwards by cancelling the task once, leaving nothing.

Ray cannot be left in the middle of starting, nor may cleaning up be cut short by a second Ctrl-C.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from twinspark.cluster.errors import Interrupted

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Handler = Callable[[int, FrameType | None], None]


@contextmanager
def raising_signals() -> Iterator[None]:
    """Each of ENDING raises Interrupted wherever the main thread is. What is ignored (nohup) stays ignored."""

    def strike(number: int, _: FrameType | None) -> NoReturn:
        raise Interrupted(number)

    with _handled(strike):
        yield


@contextmanager
def cancelling_signals() -> Iterator[Callable[[], None]]:
    """The first of ENDING cancels the task that is inside, later ones do nothing; Interrupted leaves the block.

    Gives a function that takes the signals back from whoever took them meanwhile. Outside a task nothing is changed.
    """
    task = _current_task()
    if task is None:
        yield lambda: None
        return
    received: list[int] = []

    def cancel(number: int, _: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:
            task.get_loop().call_soon_threadsafe(task.cancel)

    try:
        with _handled(cancel):
            yield lambda: _install(cancel)
    except (Exception, asyncio.CancelledError):
        if received:  # whatever failed then, failed because everything was being ended
            raise Interrupted(received[0]) from None
        raise
    if received:
        raise Interrupted(received[0])


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


@contextmanager
def _handled(handler: Handler) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in ENDING}
    _install(handler)
    try:
        yield
    finally:
        if _can_install():
            for number, old in before.items():
                signal.signal(number, signal.SIG_DFL if old is None else old)


def _install(handler: Handler) -> None:
    if _can_install():
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)


def _can_install() -> bool:
    """Python allows it in the main thread only."""
    return threading.current_thread() is threading.main_thread()
