"""Signals to this very process: they end a task once, strike at once outside, and leave the handlers as they were."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from twinspark.cluster.errors import Interrupted
from twinspark.cluster.signals import ENDING, cancelling_signals, raising_signals


@pytest.fixture(autouse=True)
def handlers_stay() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in ENDING}
    yield
    assert {number: signal.getsignal(number) for number in ENDING} == before


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def ended_by(work: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Runs `work` as the command line does; the signal that ended it."""
    with pytest.raises(Interrupted) as ended, raising_signals():
        asyncio.run(work())
    return ended.value.number


@pytest.mark.parametrize("number", ENDING)
def test_outside_of_a_session_a_signal_strikes_at_once(number: signal.Signals) -> None:
    steps: list[str] = []

    def work() -> None:
        with raising_signals():
            send(number)
            steps.append("never")

    with pytest.raises(Interrupted) as ended:
        work()
    assert ended.value.number == number
    assert steps == []
    assert not isinstance(ended.value, Exception)


def test_what_is_ignored_stays_ignored() -> None:
    """As after nohup, or in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with raising_signals():
            send(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_inside_a_task_the_first_signal_cancels_and_cleaning_up_is_left_alone() -> None:
    steps: list[str] = []

    async def work() -> None:
        with cancelling_signals():
            try:
                send(signal.SIGTERM)
                steps.append("a step that must not be torn")
                await asyncio.sleep(60)
                steps.append("never")
            finally:
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
                    send(number)
                    await asyncio.sleep(0.01)
                steps.append("cleaned up")

    assert ended_by(work) == signal.SIGTERM
    assert steps == ["a step that must not be torn", "cleaned up"]


def test_a_signal_after_the_last_wait_is_not_lost() -> None:
    async def work() -> None:
        with cancelling_signals():
            send(signal.SIGINT)

    assert ended_by(work) == signal.SIGINT


def test_what_fails_because_everything_is_ending_is_no_failure() -> None:
    """A terminal's Ctrl-C reaches the actors too."""

    async def work() -> None:
        with cancelling_signals():
            send(signal.SIGINT)
            raise RuntimeError("an actor died")

    assert ended_by(work) == signal.SIGINT


def test_other_cancellations_and_failures_pass() -> None:
    async def fail(error: BaseException) -> None:
        with cancelling_signals():
            raise error

    with pytest.raises(RuntimeError, match="of its own"):
        asyncio.run(fail(RuntimeError("of its own")))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(fail(asyncio.CancelledError()))


def test_signals_are_taken_back_from_whoever_took_them() -> None:
    async def work() -> None:
        with cancelling_signals() as take_back:
            signal.signal(signal.SIGTERM, lambda number, frame: None)
            take_back()
            send(signal.SIGTERM)
            await asyncio.sleep(60)

    assert ended_by(work) == signal.SIGTERM


def test_outside_of_a_task_nothing_changes() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with cancelling_signals() as take_back:
        take_back()
        assert signal.getsignal(signal.SIGTERM) is before
