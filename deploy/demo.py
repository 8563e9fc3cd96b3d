"""`twinspark demo`: one real answer, streamed, then the same prompts under each placement side by side."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from twinspark.actors.target.request import requests_for
from twinspark.cluster.pair import Pair
from twinspark.cluster.survey import survey_cluster, survey_here
from twinspark.deploy.compare import Lane, compare, row_of
from twinspark.deploy.completion import complete, metrics_of
from twinspark.deploy.opening import Opened, open_pair
from twinspark.deploy.options import Options
from twinspark.deploy.plan_pair import plan_pair
from twinspark.deploy.planned import session
from twinspark.deploy.progress import loading_bars, note
from twinspark.deploy.prompts import Prompt, encode_prompts
from twinspark.deploy.tokenizer import Tokenizer, open_tokenizer
from twinspark.planner.nodes import Node

QUESTION = "Why do the leaves of many trees turn red in autumn?"
COMPARED = (
    "Write a Python function that returns the n-th Fibonacci number.",
    "A shop sells pens at 3 dollars each. How much do 7 pens and a 5 dollar notebook cost? Explain step by step.",
    "List five things to pack for a day of hiking, with one reason for each.",
)
PLACEMENTS = ("off", "cpu", "colocated")
COMPARED_TOKENS = 96
REPEATS = 2


async def demo(options: Options, *, as_json: bool) -> None:
    """The streamed answer goes to stdout, the table too; with `as_json` one document with both."""
    opened = open_pair(options, note)
    tokenizer = open_tokenizer(opened.target.path)
    here = survey_here()
    with session(options, here):
        nodes = here if options.address is None else await survey_cluster()
        answer = await _stream_answer(options, opened, nodes, tokenizer, as_json=as_json)
        note(f"\ncomparing {', '.join(PLACEMENTS)}: {len(COMPARED)} prompts, {REPEATS} turns each, interleaved")
        prompts = encode_prompts(tokenizer, [Prompt(text=text) for text in COMPARED], False)
        lanes = await compare(
            options.model_copy(update={"max_new_tokens": COMPARED_TOKENS}),
            PLACEMENTS,
            opened,
            nodes,
            prompts,
            tokenizer,
            repeats=REPEATS,
        )
    if as_json:
        print(json.dumps({"answer": answer, "runs": [row_of(lane) for lane in lanes]}))
    else:
        print_table(lanes)


async def _stream_answer(
    options: Options, opened: Opened, nodes: Sequence[Node], tokenizer: Tokenizer, *, as_json: bool
) -> dict[str, Any]:
    """With the draft in an actor of its own, so that the demo shows what twinspark is about."""
    place = "cpu" if options.dspark_place == "auto" else options.dspark_place
    spec = plan_pair(options.model_copy(update={"dspark_place": place}), opened, nodes, max_seqs=1)
    note(f"placement: {spec.decision.placement} ({spec.decision.reason})")
    requests = requests_for(
        encode_prompts(tokenizer, [Prompt(text=QUESTION)], False),
        [options.sampling()],
        max_new_tokens=min(options.max_new_tokens, 160),
        stop_token_ids=tokenizer.eos_ids,
    )

    def show(_: int, text: str) -> None:
        if not as_json:
            sys.stdout.write(text)
            sys.stdout.flush()

    async with Pair.start(spec, loading_bars()) as pair:
        for name, report in (await pair.reports()).items():
            note(f"{name}: process {report.pid} on {report.device}, {report.num_threads} threads, {report.dtype}")
        note(f"\n> {QUESTION}\n")
        [completion] = await complete(pair, requests, tokenizer, options.stop, show)
    if not as_json:
        print()
    return {"prompt": QUESTION, "text": completion.text, "metrics": metrics_of(completion.report)}


def print_table(lanes: list[Lane]) -> None:
    """The comparison for people."""
    table = Table(title="The same prompts, target and seed under each placement (medians)")
    for column in ("placement", "tokens/s", "over off", "accept. length", "draft ms", "verify ms", "link ms"):
        table.add_column(column, justify="left" if column == "placement" else "right")
    for column in ("bytes/token", "same tokens as off", "CPU s", "RAM MB", "threads"):
        table.add_column(column, justify="right")
    rows = [row_of(lane) for lane in lanes]
    for row in rows:
        table.add_row(
            row["placement"],
            f"{row['tokens_per_s']:.1f}",
            f"{row['tokens_per_s'] / rows[0]['tokens_per_s']:.2f}x",
            f"{row['acceptance_length']:.2f}",
            *(f"{row[name]:.1f}" for name in ("draft_ms", "verify_ms", "link_ms")),
            f"{row['bytes_per_token']:.1f}",
            _same(row),
            *(_by_actor(row[name]) for name in ("cpu_s", "resident_mb", "threads")),
        )
    Console(width=max(Console().width, 150)).print(table)


def _same(row: dict[str, Any]) -> str:
    if row["identical_to_off"]:
        return "yes"
    worst = max(row["first_difference"].values(), key=lambda d: float(d["margin"]))
    verdict = "rounding" if worst["is_rounding"] else "NO"
    return f"{verdict}: token {worst['index']}, margin {worst['margin']:.1e}"


def _by_actor(values: dict[str, float]) -> str:
    return " + ".join(f"{values[name]:g}" for name in ("target", "draft") if name in values)
