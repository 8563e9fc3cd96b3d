"""How long the target waits for a proposal: a multiple of what rounds have taken, catching up apart. No clock here."""

from __future__ import annotations

from collections import deque
from statistics import median

FIRST_S = 10.0  # before anything was measured: the draft's first pass also warms its caches
LEAST_S = 2.0  # a busy machine stalls a process for a second; taking that for a hang costs a new draft, 5 s without any
MOST_S = 10.0
TIMES = 10  # a round ten times slower than usual is a hung peer, not a busy one
ENOUGH = 5
CATCH_UP_S = 10.0  # a round that prefills has its own allowance, so that a long prompt never looks like a hang


class RoundDeadline:
    """Fed with every answered round; `wait_s` says how long to wait for the next."""

    def __init__(self) -> None:
        self._recent_s: deque[float] = deque(maxlen=64)

    def observe(self, elapsed_s: float, *, catching_up: bool) -> None:
        if not catching_up:
            self._recent_s.append(elapsed_s)

    def wait_s(self, *, catching_up: bool) -> float:
        if catching_up:
            return CATCH_UP_S
        if len(self._recent_s) < ENOUGH:
            return FIRST_S
        return min(MOST_S, max(LEAST_S, TIMES * median(self._recent_s)))
