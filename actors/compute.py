"""The one thread of an actor that computes: torch used from two Python threads of a process is slower for good."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


class ComputeThread:
    """`await compute(function)` runs it in the thread, without autograd, with `num_threads` of OpenMP."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        # The count belongs to the thread that sets it, so it is set there.
        self._pool = ThreadPoolExecutor(1, "compute", initializer=torch.set_num_threads, initargs=(num_threads,))

    async def __call__(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._without_autograd, function)

    @staticmethod
    def _without_autograd(function: Callable[[], T]) -> T:
        with torch.inference_mode():
            return function()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
