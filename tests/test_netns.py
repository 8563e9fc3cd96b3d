"""The nodes that other tests stand on: apart, linked, delayed, cut, and gone without a trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from netns import NAMESPACES, Network, Node, network, why_not

LEAVES_WITHOUT_A_WORD = """
import sys, time
from netns import network
with network(2, with_relay=True) as nodes:
    nodes.nodes[1].popen("sleep", "1000")
    print(*[node.name for node in nodes.nodes], flush=True)
    time.sleep(1000)
"""


@pytest.fixture(params=[False, True], ids=["bridge", "relay"])
def net(request: pytest.FixtureRequest) -> Iterator[Network]:
    reason = why_not(with_relay=request.param)
    if reason is not None:
        pytest.skip(reason)
    with network(3, with_relay=request.param) as three:
        yield three


def is_gone(name: str, folder: Path) -> bool:
    return not (NAMESPACES / name).exists() and not folder.exists()


def test_every_node_reaches_every_other(net: Network) -> None:
    assert all(a.round_trip_ms(b) < 50 for a in net.nodes for b in net.nodes)


def test_a_node_has_its_own_address_and_host_name(net: Network) -> None:
    assert len({node.address for node in net.nodes}) == 3
    first = net.nodes[0]
    assert first.run(sys.executable, "-c", "import socket; print(socket.gethostname())").stdout.strip() == first.name
    assert os.uname().nodename != first.name


def test_a_cut_link_carries_nothing_until_it_is_restored(net: Network) -> None:
    first, second, third = net.nodes
    second.cut()
    with pytest.raises(RuntimeError, match=r"timed out|No route|unreachable"):
        first.round_trip_ms(second, 1)
    assert first.round_trip_ms(third) < 50
    second.restore()
    assert first.round_trip_ms(second) < 50


def test_all_processes_of_a_node_can_be_killed(net: Network) -> None:
    first, second, _ = net.nodes
    processes = [node.popen("sleep", "1000") for node in (first, second)]
    while not all(node.pids() for node in (first, second)):
        time.sleep(0.01)
    second.kill_all()
    assert processes[1].wait(10) == -signal.SIGKILL
    assert second.pids() == []
    assert processes[0].poll() is None
    assert first.round_trip_ms(second) < 50
    first.kill_all()
    assert processes[0].wait(10) == -signal.SIGKILL


@pytest.mark.parametrize("one_way_ms", [0, 2, 20])
def test_a_relay_delays_both_ways(one_way_ms: float) -> None:
    reason = why_not(with_relay=True)
    if reason is not None:
        pytest.skip(reason)
    with network(2, with_relay=True) as net:
        net.delay(one_way_ms)
        took_ms = net.nodes[0].round_trip_ms(net.nodes[1])
    assert 2 * one_way_ms <= took_ms < 2 * one_way_ms + 10


def test_only_a_relay_delays() -> None:
    with pytest.raises(ValueError, match="relay"):
        Network((), None).delay(1)


def test_nothing_is_left_after_an_error(net: Network) -> None:
    left: list[Node] = []

    def fail() -> None:
        with network(2) as two:
            left.extend(two.nodes)
            left[0].popen("sleep", "1000")
            raise KeyError("on purpose")

    with pytest.raises(KeyError):
        fail()
    assert all(is_gone(node.name, node.folder) for node in left)


def test_nothing_is_left_by_a_test_that_was_killed() -> None:
    reason = why_not(with_relay=True)
    if reason is not None:
        pytest.skip(reason)
    argv = [sys.executable, "-c", LEAVES_WITHOUT_A_WORD]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        names = process.stdout.readline().split()
        assert len(names) == 2
        process.kill()
    for _ in range(400):
        if all(is_gone(name, Path(f"/tmp/{name}")) for name in names):
            break
        time.sleep(0.05)
    assert all(is_gone(name, Path(f"/tmp/{name}")) for name in names)
