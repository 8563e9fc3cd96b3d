"""For tests with a real Ray and the embedded pair: settings to pairs, requests to reports, and what may differ."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.target.request import Commit, Report, Request
from twinspark.cluster.pair import Pair, PairSpec
from twinspark.cluster.survey import survey_here
from twinspark.deploy.embedded import demo_head_path
from twinspark.deploy.identity import audit
from twinspark.deploy.opening import open_pair
from twinspark.deploy.options import Options
from twinspark.deploy.plan_pair import plan_pair
from twinspark.deploy.tokenizer import Tokenizer, open_tokenizer

BASE = Options.model_validate(
    {"dtype": "float32", "dspark_dtype": "float32", "dspark_verify_len": 7, "context": 1024, "max_seqs": 16}
)
DEADLINE_S = 600.0  # for a whole batch on a machine that others use too: a hang, not slowness
TEXTS = (
    "What is a prime number?",
    "Write a haiku about rain.",
    "Name three rivers in Europe and say where each of them ends.",
    "Count from one to twenty in words.",
    "Write a Python function that reverses a list.",
    "Is 221 a prime number? Think step by step.",
)


@dataclass(frozen=True)
class Expected:
    """One prompt of the head's expected_greedy.json."""

    prompt_ids: tuple[int, ...]
    greedy_ids: tuple[int, ...]
    rounds: tuple[dict[str, Any], ...]


def expected_greedy() -> list[Expected]:
    """What the tests' own loop (reference_loop.py) made of this head and the float32 target."""
    entries = json.loads((demo_head_path() / "expected_greedy.json").read_text(encoding="utf-8"))
    return [Expected(tuple(e["prompt_ids"]), tuple(e["greedy_ids"]), tuple(e["rounds"])) for e in entries]


def silently(_: str) -> None:
    return None


def spec_of(place: str, record_path: str | None = None, **changes: Any) -> PairSpec:
    """BASE with `changes`, at `place`."""
    options = BASE.model_copy(update={"dspark_place": place, **changes})
    return plan_pair(options, open_pair(options, silently), survey_here(), record_path=record_path)


def demo_tokenizer() -> Tokenizer:
    return open_tokenizer(open_pair(BASE, silently).target.path)


def sixteen(tokenizer: Tokenizer, *, num_tokens: Callable[[int], int], stop: tuple[int, ...]) -> list[Request]:
    """Sixteen requests over mixed prompts, greedy ones and every filter among them."""
    prompts = [e.prompt_ids for e in expected_greedy()]
    prompts += [tuple(tokenizer.chat([{"role": "user", "content": text}])) for text in TEXTS]
    samplings = [
        Sampling.of(),
        Sampling.of(temperature=0.8, seed=11),
        Sampling.of(temperature=1.0, top_p=0.9, seed=12),
        Sampling.of(temperature=0.7, top_k=40, seed=13),
        Sampling.of(temperature=1.2, min_p=0.05, seed=2**53 - 1),
    ]
    return [
        Request(i, prompts[i % len(prompts)], samplings[i % len(samplings)], num_tokens(i), stop) for i in range(16)
    ]


async def run_all(
    pair: Pair, requests: Sequence[Request], on_commit: Callable[[Commit], None] | None = None
) -> list[Report]:
    """Reports in the order of `requests`, run as one batch. What was streamed is what is reported, token for token."""
    streamed: dict[int, list[int]] = {request.number: [] for request in requests}
    reports: dict[int, Report] = {}
    async with asyncio.timeout(DEADLINE_S), aclosing(pair.commits(0.05)) as commits:
        await pair.submit(requests)
        async for commit in commits:
            streamed[commit.number] += commit.ids
            if on_commit is not None:
                on_commit(commit)
            if commit.finish_reason is not None:
                reports[commit.number] = await pair.collect(commit.number)
                if len(reports) == len(requests):
                    break
    for number, report in reports.items():
        assert list(report.token_ids) == streamed[number]
    return [reports[request.number] for request in requests]


def ids_of(reports: Sequence[Report]) -> list[tuple[int, ...]]:
    return [report.token_ids for report in reports]


async def check_same(
    idle: Pair, requests: Sequence[Request], a: Sequence[Report], b: Sequence[Report], what: str
) -> None:
    """Both runs are the same but for what rounding explains, which `idle` judges and which is printed (DESIGN 7.1)."""
    for request, one, other in zip(requests, a, b, strict=True):
        difference = await audit(idle, request, one.token_ids, other.token_ids)
        if difference is not None:
            print(f"{what}: request {request.number} parts at {difference}")
            assert difference.is_rounding, f"{what}: request {request.number} parts at {difference}"
