"""The planner on trial: for each configuration of a matrix its choice, what it predicted, what each placement measured.

    python benchmarks/placement_regret.py [--prompts FILE] [--repeats 3] [--tokens 64] [--only 1,5,9] [--json FILE]

Regret is the best measured speed over that of the chosen placement, less 1. Speeds are those of rounds with all of the
requests running: no prefill, no tail in which few are left. Placements are measured in turns on one target: the draft
is moved from one to the next. How drafts were accepted and what steps took is remembered from one configuration to the
next, as it is from one run of twinspark to the next. A side is slowed by its settings alone: fewer threads, another
dtype, more drafts to verify, the `ray` transport; nothing sleeps.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from twinspark.actors.target.counts import RoundCounts
from twinspark.actors.target.request import Report, Request
from twinspark.cluster.errors import SpawnError
from twinspark.cluster.pair import Pair
from twinspark.deploy.opening import open_pair
from twinspark.deploy.options import Options
from twinspark.deploy.planned import Plan, planned
from twinspark.deploy.progress import note
from twinspark.deploy.prompts import Prompt, encode_prompts, prompts_from_file
from twinspark.deploy.tokenizer import open_tokenizer
from twinspark.planner.placement import Candidate, Placement
from twinspark.planner.predict import Round

QUESTIONS = (
    "Why is the sky blue during the day and red at sunset?",
    "A train leaves at 9:40 and arrives at 13:05. How long does the journey take? Explain step by step.",
    "Write a Python function that counts the vowels in a string.",
    "Summarise in three sentences how a bill becomes a law.",
    "List five vegetables that grow well in the shade, with one tip for each.",
    "What is the difference between weather and climate?",
    "Solve for x: 3x + 7 = 25. Show each step.",
    "Write a SQL query that finds the ten customers with the most orders.",
    "Explain photosynthesis to a child of eight.",
    "Write a short letter that thanks a neighbour for watering the plants.",
    "How do I convert a list of strings to integers in Python?",
    "A recipe for 4 people needs 300 g of flour. How much is needed for 7 people?",
    "Name three causes of the First World War and explain one of them.",
    "Write a bash command that finds all files larger than 100 MB.",
    "What should I look at before buying a used bicycle?",
    "Describe the water cycle in five steps.",
)
WARM_UP_TOKENS = 12
MATRIX: tuple[tuple[str, dict[str, Any]], ...] = (
    ("1 request", {"max_seqs": 1}),
    ("4 requests", {"max_seqs": 4}),
    ("16 requests", {"max_seqs": 16}),
    ("1 request, 7 drafts", {"max_seqs": 1, "dspark_verify_len": 7}),
    ("1 request, 2 drafts", {"max_seqs": 1, "dspark_verify_len": 2}),
    ("4 requests, 7 drafts", {"max_seqs": 4, "dspark_verify_len": 7}),
    ("16 requests, 5 drafts", {"max_seqs": 16, "dspark_verify_len": 5}),
    ("16 requests, 7 drafts", {"max_seqs": 16, "dspark_verify_len": 7}),
    ("1 request, 1000 tokens of context", {"max_seqs": 1, "context": 2048}),
    ("1 request, target on 1 thread", {"max_seqs": 1, "threads": 1}),
    ("1 request, bfloat16 target", {"max_seqs": 1, "dtype": "bfloat16", "dspark_dtype": "int8"}),
    ("1 request, float32 draft, 7 drafts", {"max_seqs": 1, "dspark_dtype": "float32", "dspark_verify_len": 7}),
    ("1 request, draft over `ray`", {"max_seqs": 1, "transport": "ray"}),
    ("1 request, exact numerics", {"max_seqs": 1, "numerics": "exact"}),
    ("1 request, exact numerics, draft over `ray`", {"max_seqs": 1, "numerics": "exact", "transport": "ray"}),
    ("2 requests, exact numerics", {"max_seqs": 2, "numerics": "exact"}),
)


@dataclass
class Trial:
    """One configuration: the plan's choice, and the turns of each placement."""

    name: str
    choice: Placement
    reason: str
    measured: bool
    predicted: dict[str, float | None]
    lengths: dict[str, int]
    expected: dict[str, Round | None]
    turns: dict[str, list[float]] = field(default_factory=dict)
    counts: dict[str, RoundCounts] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        speeds = {name: median(turns) for name, turns in self.turns.items()}
        best = max(speeds, key=lambda name: speeds[name])
        second = max((value for name, value in speeds.items() if name != best), default=speeds[best])
        return {
            "configuration": self.name,
            "choice": self.choice,
            "best": best,
            "lead": round(speeds[best] / second - 1, 3),
            "regret": round(speeds[best] / speeds[self.choice] - 1, 3),
            "measured_tok_per_s": {name: round(value, 2) for name, value in speeds.items()},
            "predicted_tok_per_s": {n: None if v is None else round(v, 2) for n, v in self.predicted.items()},
            "verify_length": self.lengths,
            "rounds": {name: _beside(self.expected[name], counts) for name, counts in self.counts.items()},
            "turns": {name: [round(turn, 2) for turn in turns] for name, turns in self.turns.items()},
            "reason": self.reason,
        }


def _beside(expected: Round | None, counts: RoundCounts) -> dict[str, list[float | None]]:
    """Of a round without prefill: its tokens a request and its parts in milliseconds, measured and expected."""
    n = max(1, counts.num_rounds)
    steps_us = counts.draft_us + counts.link_us + counts.verify_us
    measured = {
        "length": counts.num_tokens / max(1, counts.num_requests),
        "draft_ms": counts.draft_us / n / 1e3,
        "link_ms": counts.link_us / n / 1e3,
        "verify_ms": counts.verify_us / n / 1e3,
        "beside_ms": (counts.round_us - steps_us) / n / 1e3,
    }
    return {
        name: [round(value, 2), None if expected is None else round(getattr(expected, name), 2)]
        for name, value in measured.items()
    }


async def try_configuration(name: str, changes: dict[str, Any], arguments: argparse.Namespace) -> Trial:
    """Plan, then measure every placement that fits."""
    options = Options(temperature=0.0, ignore_eos=True, max_new_tokens=arguments.tokens, **changes)
    opened = open_pair(options, note)
    tokenizer = open_tokenizer(opened.target.path)
    asked = prompts_from_file(Path(arguments.prompts)) if arguments.prompts else [Prompt(text=q) for q in QUESTIONS]
    prompts = encode_prompts(tokenizer, asked[: arguments.most_prompts], False)
    if "context" in name:
        notes = [token for prompt in prompts for token in prompt][:1000]
        prompts = [notes + list(prompt) for prompt in prompts]
    async with planned(options, opened) as plan:
        ways = _ways(plan)
        decision = plan.spec.decision
        trial = Trial(
            name,
            decision.placement,
            decision.reason,
            decision.measured,
            {c.placement: c.predicted_tok_per_s for c in ways},
            {c.placement: c.verify_length for c in ways},
            {c.placement: plan.spec.inputs.predictor.round(c.site, options.max_seqs, c.verify_length) for c in ways},
        )
        async with Pair.start(plan.spec, supervised=False) as pair:
            for repeat in range(arguments.repeats):
                some = [prompts[(repeat * options.max_seqs + i) % len(prompts)] for i in range(options.max_seqs)]
                for way in ways if repeat % 2 == 0 else reversed(ways):
                    with suppress(SpawnError):
                        if way != pair.current:
                            await pair.place(way)
                        counts = await _turn(pair, plan, some, options)
                        speed = counts.num_tokens / (counts.round_us / 1e6)
                        trial.turns.setdefault(way.placement, []).append(speed)
                        trial.counts[way.placement] = trial.counts.get(way.placement, RoundCounts()) + counts
    return trial


def _ways(plan: Plan) -> list[Candidate]:
    """The best candidate of each placement around the chosen target."""
    decision = plan.spec.decision
    found: dict[str, Candidate] = {}
    for candidate in decision.candidates:
        if candidate.feasible and candidate.target == decision.chosen.target:
            known = found.get(candidate.placement)
            if known is None or (candidate.predicted_tok_per_s or 0) > (known.predicted_tok_per_s or 0):
                found[candidate.placement] = candidate
    return list(found.values())


async def _turn(pair: Pair, plan: Plan, prompts: Sequence[Sequence[int]], options: Options) -> RoundCounts:
    """All of `prompts` at once: what rounds came to once the last one was prefilled, until `max_new_tokens` of
    each, on average, had followed. None of them ends before.
    """
    await _run(pair, prompts[:1], options, WARM_UP_TOKENS)
    counts, reports = await _run(pair, prompts, options, len(prompts) * options.max_new_tokens)
    plan.remember(reports, pair.current.site)
    return counts


async def _run(
    pair: Pair, prompts: Sequence[Sequence[int]], options: Options, num_tokens: int
) -> tuple[RoundCounts, list[Report]]:
    context = pair.spec.recipe.context
    requests = [
        Request(i, tuple(prompt), options.sampling(), context - len(prompt)) for i, prompt in enumerate(prompts)
    ]
    prefilling, left = set(range(len(prompts))), num_tokens
    async with aclosing(pair.commits()) as commits:
        await pair.submit(requests)
        async for commit in commits:
            if commit.number in prefilling:
                prefilling.discard(commit.number)
                if not prefilling:
                    await pair.counts()  # to be forgotten
            elif not prefilling:
                left -= len(commit.ids)
                if left <= 0:
                    break
    return await pair.counts(), [await pair.collect(request.number) for request in requests]


async def main(arguments: argparse.Namespace) -> None:
    chosen = [int(part) - 1 for part in arguments.only.split(",")] if arguments.only else range(len(MATRIX))
    rows = []
    for index in chosen:
        name, changes = MATRIX[index]
        began = time.monotonic()
        row = (await try_configuration(name, changes, arguments)).row()
        rows.append(row)
        if arguments.json:
            Path(arguments.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")
        speeds = ", ".join(
            f"{place} {value} (predicted {row['predicted_tok_per_s'][place]})"
            for place, value in row["measured_tok_per_s"].items()
        )
        print(
            f"{index + 1:2d} {name}: chose {row['choice']}, best {row['best']} by {row['lead']:.1%}, "
            f"regret {row['regret']:.1%}; {speeds}  [{time.monotonic() - began:.0f} s]",
            flush=True,
        )
    good = sum(row["regret"] <= 0.05 for row in rows)
    wins: dict[str, int] = {}
    for row in rows:
        wins[row["best"]] = wins.get(row["best"], 0) + (row["lead"] >= 0.10)
    print(f"regret at most 5% in {good} of {len(rows)}; wins by 10% or more: {wins}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompts", default="", help="jsonl of prompts; without it sixteen of its own")
    parser.add_argument("--most-prompts", type=int, default=16)
    parser.add_argument("--only", default="", help="numbers of configurations, from 1")
    parser.add_argument("--json", default="")
    asyncio.run(main(parser.parse_args()))
