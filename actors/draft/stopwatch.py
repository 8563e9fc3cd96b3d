"""Where a draft's milliseconds go: named laps, summed. On a GPU they measure launches, not kernels."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """`with watch("trunk"): ...` adds to `total_s["trunk"]`."""

    def __init__(self) -> None:
        self.total_s: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.total_s[name] += time.perf_counter() - began
