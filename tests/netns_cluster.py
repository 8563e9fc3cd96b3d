"""A real Ray over the nodes of tests/netns.py: each with its own address, host name, temp folder and raylet.

Also the test's end of tests/netns_driver.py, which runs on the head's node and spawns the actors.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from netns import Node

DRIVER = Path(__file__).with_name("netns_driver.py")
RAY = Path(sys.executable).with_name("ray")
PORT = 6379
STORE_BYTES = 80 * 2**20
MEMORY_BYTES = 4 * 2**30
START_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 180.0
END_TIMEOUT_S = 30.0
Told = dict[str, Any]


class Cluster:
    """A head on the first node; `join` adds others. Its processes end by a node's `kill_all`, or with the network."""

    def __init__(self, head: Node, *, num_cpus: int = 3) -> None:
        self.head, self.num_cpus = head, num_cpus
        self.address = f"{head.address}:{PORT}"
        token = head.folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        # `ray start --head` asks for a token where one lies about in the home folder, but what joins by an explicit
        # address never does of itself, and is refused: so tell them all, with a token of our own.
        self.env = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            # A raylet that is gone refuses at once, and five refusals make a dead node: after 2 s, not 15.
            "RAY_health_check_period_ms": "300",
        }
        self._num_starts = 0

    def start(self) -> None:
        self._start(self.head, "--head", f"--port={PORT}", "--include-dashboard=false", "--no-monitor")

    def join(self, node: Node) -> None:
        """`node` is part of the cluster from now on; it may have been before, and been killed."""
        self._start(node, f"--address={self.address}")

    def _start(self, node: Node, *role: str) -> None:
        self._num_starts += 1
        settings = {
            "node-ip-address": node.address,
            "temp-dir": node.folder / str(self._num_starts),
            "num-cpus": self.num_cpus,
            "num-gpus": 0,
            "memory": MEMORY_BYTES,  # each node would take the whole machine's for its own
            "object-store-memory": STORE_BYTES,
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        node.run(str(RAY), "start", *role, *options, "--disable-usage-stats", timeout_s=START_TIMEOUT_S, env=self.env)


class Driver:
    """A running netns_driver.py. A command that fails there raises RuntimeError here."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, do: str, on_tokens: Callable[[int], None] | None = None, **settings: Any) -> Told:
        """The answer to one command. `on_tokens` hears how many tokens were committed so far."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **settings}) + "\n")
        self._process.stdin.flush()
        while True:
            told = self._next()
            if "tokens" not in told:
                return told
            if on_tokens is not None:
                on_tokens(told["tokens"])

    def _next(self) -> Told:
        line = self._lines.get(timeout=ANSWER_TIMEOUT_S)
        if line is None:
            raise RuntimeError(f"the driver ended with {self._process.wait(END_TIMEOUT_S)}")
        told: Told = json.loads(line)
        if "error" in told:
            raise RuntimeError(f"{told['error']}: {told['why']}")
        return told

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)


@contextmanager
def driver(cluster: Cluster) -> Iterator[Driver]:
    """A driver on the head's node. It is ended afterwards, and with it what it spawned."""
    process = cluster.head.popen(
        sys.executable, str(DRIVER), cluster.address, env=cluster.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    try:
        yield Driver(process)
    finally:
        process.stdin.close()
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until(holds: Callable[[], bool], within_s: float, what: str, poll_s: float = 0.2) -> float:
    """Seconds until `holds`. Raises TimeoutError, naming `what`, where it does not."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > within_s:
            raise TimeoutError(f"{what} did not come about within {within_s:g} s")
        time.sleep(poll_s)
    return time.monotonic() - began
