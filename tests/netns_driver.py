"""A Ray driver that tests start on a node of their own: pairs on chosen nodes, asked for by lines of JSON.

    python netns_driver.py RAY_ADDRESS

Each line on stdin is a command, `{"do": NAME, ...}`, answered by one line on stdout, `{"done": NAME, ...}` or
`{"error": TYPE, "why": TEXT}`. While requests run, a line `{"tokens": N}` says how many were committed so far. What
anything else prints goes to stderr.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import ray
from pairs import check_same, expected_greedy, run_all
from placed_pair import place_draft, start_pair

from twinspark.actors.link.base import Transport
from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.target.request import Commit, Report, Request
from twinspark.cluster.pair import Pair
from twinspark.cluster.ray_session import ray_session

NUM_REQUESTS = 2
LOST_TIMEOUT_S = 30.0
Told = dict[str, Any]
Say = Callable[..., None]


def node_at(address: str) -> str:
    """The id of the living node with this address. Raises ValueError where there is none."""
    living = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeManagerAddress"] == address]
    if not living:
        raise ValueError(f"a living node at {address} is needed, there is none")
    return str(living[-1])


def requests_of(num_tokens: int) -> list[Request]:
    """Greedy and seeded ones, all of this length."""
    prompts = [expected.prompt_ids for expected in expected_greedy()]
    samplings = [Sampling.of() if i % 2 == 0 else Sampling.of(temperature=0.8, seed=i) for i in range(NUM_REQUESTS)]
    return [Request(i, prompts[i % len(prompts)], samplings[i], num_tokens) for i in range(NUM_REQUESTS)]


class Driver:
    """The commands, by name."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._stack = AsyncExitStack()
        self._pair: Pair | None = None
        self._off: list[Report] = []

    @property
    def pair(self) -> Pair:
        if self._pair is None:
            raise ValueError("a pair must be started first")
        return self._pair

    async def nodes(self) -> Told:
        """Addresses of the nodes that Ray takes for living."""
        return {"alive": sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"])}

    async def start(self, target: str, draft: str | None, transport: Transport = "stream") -> Told:
        await self.stop()
        there = None if draft is None else node_at(draft)
        self._pair = await self._stack.enter_async_context(
            start_pair(target=node_at(target), draft=there, transport=transport)
        )
        return await self.where()

    async def stop(self) -> Told:
        self._pair = None
        await self._stack.aclose()
        return {}

    async def attach(self, draft: str, transport: Transport = "stream") -> Told:
        """A new draft, on the node with this address."""
        await place_draft(self.pair, node_at(draft), transport)
        return await self.where()

    async def where(self) -> Told:
        """Host name and process of each actor."""
        return {name: {"node": r.node, "pid": r.pid} for name, r in (await self.pair.reports()).items()}

    async def run_off(self, num_tokens: int) -> Told:
        """Run without a draft (one that is attached is lost), and remember the answers."""
        await self.pair.target.detach_draft.remote()
        self._off = await run_all(self.pair, requests_of(num_tokens))
        return told(self._off)

    async def run(self) -> Told:
        """Run the same again, with whatever drafts. An error where the tokens are not those of `run_off`."""
        tokens = 0

        def count(commit: Commit) -> None:
            nonlocal tokens
            tokens += len(commit.ids)
            self._say(tokens=tokens)

        requests = requests_of(len(self._off[0].token_ids))
        reports = await run_all(self.pair, requests, count)
        await check_same(self.pair, requests, self._off, reports, "on another node")
        return told(reports)

    async def lost(self) -> Told:
        """Why the draft was lost."""
        async with asyncio.timeout(LOST_TIMEOUT_S):
            return {"why": await self.pair.target.draft_lost.remote()}


def told(reports: Sequence[Report]) -> Told:
    """What requests got, and what their rounds were like; `link_ms` of every round with drafts, in order."""
    rounds = [record for report in reports for record in report.rounds]
    by_number = {record.round: record for record in rounds if record.draft_tokens}
    return {
        "ids": [report.token_ids for report in reports],
        "num_rounds": len({record.round for record in rounds}),
        "last_drafted": max(by_number, default=0),
        "last_round": max(record.round for record in rounds),
        "num_accepted": sum(record.num_accepted for record in rounds),
        "link_ms": [by_number[number].link_us / 1e3 for number in sorted(by_number)],
    }


async def obey(say: Say) -> None:
    driver = Driver(say)
    try:
        while line := await asyncio.to_thread(sys.stdin.readline):
            command = json.loads(line)
            name = command.pop("do")
            try:
                answer = await getattr(driver, name)(**command)
                say(done=name, **answer)
            except Exception as error:  # noqa: BLE001 - the edge: the test is told
                say(error=type(error).__name__, why=str(error))
    finally:
        await driver.stop()


def main(address: str) -> None:
    lines, sys.stdout = sys.stdout, sys.stderr

    def say(**fields: Any) -> None:
        print(json.dumps(fields), file=lines, flush=True)

    with ray_session(address, num_cpus=0, num_gpus=0):
        asyncio.run(obey(say))


if __name__ == "__main__":
    main(sys.argv[1])
