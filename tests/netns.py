"""Nodes on one machine that really have different networks: a namespace, an address and a host name each.

Knows namespaces, links and processes; nothing of Ray. What runs in a namespace sees the machine's files and CPUs, its
own loopback and one device, `link0`, to the other nodes. A janitor process removes it all: it is asked to at the end,
and does so as well when the test process just disappears.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import relay

DEVICE = "link0"
NAMESPACES = Path("/run/netns")
TOOLS = ("ip", "nsenter", "unshare")
END_TIMEOUT_S = 30.0
POLL_S = 0.05
# A closed port refuses after one round trip, so nobody needs to answer. The fastest of the first ones warm up.
ROUND_TRIPS = """
import socket, sys, time
for _ in range(int(sys.argv[2])):
    began = time.perf_counter()
    try:
        socket.create_connection((sys.argv[1], 9), 5).close()
    except ConnectionRefusedError:
        print(1e3 * (time.perf_counter() - began))
"""
_counter = itertools.count()


@dataclass(frozen=True)
class Node:
    """A network namespace. `folder` is its own, with a name short enough for sockets; gone with it."""

    name: str
    address: str
    folder: Path

    def command(self, *argv: str) -> list[str]:
        """`argv` as it is started in here, under this node's host name. /sys and /proc stay the machine's."""
        inside = ["unshare", "--uts", "sh", "-c", 'echo "$0" >/proc/sys/kernel/hostname && exec "$@"', self.name]
        return ["nsenter", f"--net={NAMESPACES / self.name}", *inside, *argv]

    def run(
        self, *argv: str, timeout_s: float = 60.0, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end. Raises RuntimeError, with what was written, where that is not a success."""
        return _run(self.command(*argv), timeout_s, env)

    def popen(self, *argv: str, **settings: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(self.command(*argv), text=True, **settings)

    def pids(self) -> list[int]:
        """Every process that is in this namespace."""
        return [int(pid) for pid in _run(["ip", "netns", "pids", self.name]).stdout.split()]

    def kill_all(self) -> None:
        """kill -9 of everything in here, as a power cut would; returns when it is gone."""
        deadline = time.monotonic() + END_TIMEOUT_S
        while pids := self.pids():
            if time.monotonic() > deadline:
                raise RuntimeError(f"processes {pids} of {self.name} did not end within {END_TIMEOUT_S:g} s")
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_S)

    def round_trip_ms(self, other: Node, count: int = 9) -> float:
        """Median of TCP round trips to `other`."""
        lines = self.run(sys.executable, "-c", ROUND_TRIPS, other.address, str(count)).stdout.split()
        return median(float(line) for line in lines)

    def cut(self) -> None:
        """Take the link down. The other end sees silence: no reset, no end of file."""
        _run(["ip", "-n", self.name, "link", "set", DEVICE, "down"])

    def restore(self) -> None:
        _run(["ip", "-n", self.name, "link", "set", DEVICE, "up"])


@dataclass(frozen=True)
class Network:
    """Some nodes with a link between them."""

    nodes: tuple[Node, ...]
    _relay: subprocess.Popen[str] | None

    def delay(self, one_way_ms: float) -> None:
        """Delay every packet by so much from now on; a round trip takes twice that. Only with a relay."""
        if self._relay is None or self._relay.stdin is None:
            raise ValueError("only a network with a relay can delay")
        self._relay.stdin.write(f"{one_way_ms}\n")
        self._relay.stdin.flush()


def why_not(*, with_relay: bool) -> str | None:
    """What is missing here for `network`, if anything: the reason to skip."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"network namespaces need {' and '.join(missing)}"
    if with_relay and not os.access(relay.TUN, os.R_OK | os.W_OK):
        return f"a relay needs {relay.TUN}"
    trial = _new_name()
    try:
        _run(["ip", "netns", "add", trial])
        _run(["ip", "netns", "del", trial])
    except RuntimeError as error:
        return f"network namespaces are not permitted here ({error})"
    return None


@contextmanager
def network(count: int = 2, *, with_relay: bool = False) -> Iterator[Network]:
    """`count` nodes on a bridge, or on a relay that can delay. They, and what runs in them, are gone afterwards."""
    run = _new_name()
    subnet = f"10.77.{(os.getpid() + next(_counter)) % 256}"
    nodes = tuple(
        Node(f"{run}{letter}", f"{subnet}.{i}", Path(f"/tmp/{run}{letter}"))
        for i, letter in enumerate("abcdefgh"[:count], start=1)
    )
    bridge = None if with_relay else f"{run}-bridge"
    with ExitStack() as stack:
        stack.enter_context(_janitor([node.name for node in nodes] + ([bridge] if bridge else [])))
        for node in nodes:
            node.folder.mkdir()
            _run(["ip", "netns", "add", node.name])
        carrier = None
        if bridge is None:
            carrier = stack.enter_context(_relay(nodes))
        else:
            _plug_into_bridge(bridge, nodes)
        for node in nodes:
            _run(["ip", "-n", node.name, "address", "add", f"{node.address}/24", "dev", DEVICE])
            _run(["ip", "-n", node.name, "link", "set", "lo", "up"])
            _run(["ip", "-n", node.name, "link", "set", DEVICE, "up"])
        yield Network(nodes, carrier)


def _plug_into_bridge(bridge: str, nodes: Sequence[Node]) -> None:
    """A namespace that holds a bridge, and a veth pair from it to each node."""
    _run(["ip", "netns", "add", bridge])
    _run(["ip", "-n", bridge, "link", "add", "bridge0", "type", "bridge"])
    _run(["ip", "-n", bridge, "link", "set", "bridge0", "up"])
    for i, node in enumerate(nodes):
        end = ["peer", "name", f"port{i}", "netns", bridge]
        _run(["ip", "-n", node.name, "link", "add", DEVICE, "type", "veth", *end])
        _run(["ip", "-n", bridge, "link", "set", f"port{i}", "master", "bridge0", "up"])


@contextmanager
def _relay(nodes: Sequence[Node]) -> Iterator[subprocess.Popen[str]]:
    places = [f"{node.address}={NAMESPACES / node.name}" for node in nodes]
    argv = [sys.executable, str(Path(relay.__file__)), DEVICE, *places]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"the relay ended with {process.wait()} instead of getting ready")
        yield process
    finally:
        with suppress(BrokenPipeError):
            process.stdin.close()
        process.wait(END_TIMEOUT_S)


@contextmanager
def _janitor(names: Sequence[str]) -> Iterator[None]:
    """Removes the namespaces `names` afterwards, with their processes and folders, or when this process is gone."""
    argv = [sys.executable, __file__, *names]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True)
    assert process.stdin is not None
    try:
        yield
    finally:
        process.stdin.close()
        if process.wait(2 * END_TIMEOUT_S) != 0:
            raise RuntimeError(f"the namespaces {', '.join(names)} could not be removed")


def clean_up(names: Sequence[str]) -> None:
    """The janitor's work. What was never made is no matter."""
    for name in names:
        node = Node(name, "", Path(f"/tmp/{name}"))
        if (NAMESPACES / name).exists():
            node.kill_all()
            _run(["ip", "netns", "del", name])
        shutil.rmtree(node.folder, ignore_errors=True)


def _new_name() -> str:
    return f"tw{os.getpid()}-{next(_counter)}"


def _run(
    argv: Sequence[str], timeout_s: float = 60.0, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, env=env, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return done


if __name__ == "__main__":
    sys.stdin.read()
    clean_up(sys.argv[1:])
