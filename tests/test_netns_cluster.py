"""Target and draft on nodes with different networks: a real Ray over a link that is slow, cut, or ends at a corpse."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median

import psutil
import pytest
from netns import Network, Node, network, why_not
from netns_cluster import Cluster, Driver, Told, driver, wait_until

pytestmark = pytest.mark.timeout(600)

NUM_TOKENS = 32
STRIKE_AFTER = 16  # tokens of both requests, out of 64: some rounds with drafts are over, and many are to come
SILENT_DEATH_S = 120.0  # five unanswered health checks of 10 s each, and some more on a busy machine


class Site:
    """Two nodes, a Ray over both, and a target on the first; the second, and the draft on it, come and go."""

    def __init__(self, net: Network, cluster: Cluster, driver: Driver, off: Told) -> None:
        self.net, self.cluster, self.driver, self.off = net, cluster, driver, off
        self.here, self.there = net.nodes
        self._attached = False

    def alive(self) -> list[str]:
        addresses: list[str] = self.driver.ask("nodes")["alive"]
        return addresses

    def draft_there(self) -> None:
        """See that a draft is attached, and the node for it there."""
        if not self.there.pids():
            self._attached = False
            wait_until(lambda: self.there.address not in self.alive(), 60, "Ray's notice of the node's death")
            self.cluster.join(self.there)
        if not self._attached:
            actors = self.driver.ask("attach", draft=self.there.address)
            assert (actors["target"]["node"], actors["draft"]["node"]) == (self.here.name, self.there.name)
            self._attached = True

    def run(self) -> Told:
        """A run with drafts to its end."""
        told = self.driver.ask("run")
        assert told["num_accepted"] > 0
        assert told["num_rounds"] < self.off["num_rounds"]
        return told

    def run_and_strike(self, strike: str) -> str:
        """A run in which `there` is struck: the tokens come all the same. Returns why the draft was lost."""
        struck = False

        def on_tokens(count: int) -> None:
            nonlocal struck
            if count >= STRIKE_AFTER and not struck:
                struck = True
                getattr(self.there, strike)()

        told = self.driver.ask("run", on_tokens)
        self._attached = False
        assert told["num_accepted"] > 0
        assert 0 < told["last_drafted"] < told["last_round"]
        why: str = self.driver.ask("lost")["why"]
        return why


@pytest.fixture(scope="module")
def site(demo_model: Path) -> Iterator[Site]:
    reason = why_not(with_relay=True)
    if reason is not None:
        pytest.skip(reason)
    with ExitStack() as stack:
        net = stack.enter_context(network(2, with_relay=True))
        here, there = net.nodes
        cluster = Cluster(here)
        cluster.start()
        with ThreadPoolExecutor() as pool:
            joining = pool.submit(cluster.join, there)
            asked = stack.enter_context(driver(cluster))
            asked.ask("start", target=here.address, draft=None)
            off = asked.ask("run_off", num_tokens=NUM_TOKENS)
            joining.result()
        yield Site(net, cluster, asked, off)


@pytest.mark.parametrize("one_way_ms", [0, 2, 20])
def test_the_stream_crosses_and_its_latency_is_told(site: Site, one_way_ms: float) -> None:
    """Same tokens as without a draft; every round's link time holds a round trip, and the best of them little more."""
    site.draft_there()
    site.net.delay(one_way_ms)
    try:
        link_ms = site.run()["link_ms"]
    finally:
        site.net.delay(0)
    print(f"{one_way_ms} ms one way: link {min(link_ms):.1f} ms at best, {median(link_ms):.1f} ms at the median")
    assert 2 * one_way_ms <= min(link_ms) < 2 * one_way_ms + 10


def test_requests_finish_when_the_link_is_cut(site: Site) -> None:
    """Nothing resets the connection: the target notices by its deadline. A node that was away shortly is used again."""
    site.draft_there()
    try:
        assert "sent nothing" in site.run_and_strike("cut")
    finally:
        site.there.restore()
    assert site.there.address in site.alive()
    site.draft_there()


def test_requests_finish_when_the_node_is_killed(site: Site) -> None:
    site.draft_there()
    assert "is gone" in site.run_and_strike("kill_all")


@pytest.mark.slow
def test_a_killed_node_joins_again(site: Site) -> None:
    site.there.kill_all()
    site.draft_there()
    site.run()


@pytest.mark.slow
def test_actor_calls_cross_too(site: Site) -> None:
    site.draft_there()
    site.driver.ask("attach", draft=site.there.address, transport="ray")
    site.net.delay(2)
    try:
        assert min(site.run()["link_ms"]) >= 4
    finally:
        site.net.delay(0)
        site.driver.ask("attach", draft=site.there.address)


@pytest.mark.slow
def test_a_node_that_was_away_for_long_is_dead_to_ray_and_joins_again(site: Site) -> None:
    site.draft_there()
    try:
        site.run_and_strike("cut")
        took_s = wait_until(lambda: site.there.address not in site.alive(), SILENT_DEATH_S, "the node's death")
        print(f"a node behind a cut link was dead to Ray {took_s:.0f} s after the run had ended")
    finally:
        site.there.restore()
    took_s = wait_until(lambda: not raylets(site.there), SILENT_DEATH_S, "the end of its raylet")
    print(f"its raylet ended {took_s:.0f} s after the link was back")
    site.there.kill_all()  # Ray's log monitor would stay for ever
    site.draft_there()
    site.run()


def raylets(node: Node) -> list[int]:
    running = []
    for pid in node.pids():
        with suppress(psutil.Error):
            if psutil.Process(pid).name() == "raylet":
                running.append(pid)
    return running
