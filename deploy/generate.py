"""`twinspark generate`: prompts in, text on stdout as it comes, or one JSON document."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from twinspark.actors.target.request import requests_for
from twinspark.cluster.pair import Pair
from twinspark.deploy.completion import Completion, complete, document, trace_lines
from twinspark.deploy.opening import open_pair
from twinspark.deploy.options import Options
from twinspark.deploy.plan_pair import recipe_of
from twinspark.deploy.planned import planned
from twinspark.deploy.progress import loading_bars, note
from twinspark.deploy.prompts import Prompt, encode_prompts
from twinspark.deploy.tokenizer import open_tokenizer


async def generate(
    options: Options,
    prompts: Sequence[Prompt],
    *,
    raw: bool,
    as_json: bool,
    trace: Path | None,
    record: Path | None,
) -> None:
    """Run the prompts as one batch and print. Raises ValueError (one line) for what cannot be served."""
    _check_writable("--trace", trace)
    for end in ("out", "in"):
        _check_writable("--record", None if record is None else Path(f"{record}.{end}"))
    opened = open_pair(options, note)
    tokenizer = open_tokenizer(opened.target.path)
    encoded = encode_prompts(tokenizer, prompts, raw)
    context = recipe_of(options, opened).context
    for number, ids in enumerate(encoded, 1):
        if len(ids) >= context:
            raise ValueError(f"prompt {number} must be shorter than the context of {context} tokens, got {len(ids)}")
    requests = requests_for(
        encoded,
        [options.sampling() for _ in encoded],
        max_new_tokens=options.max_new_tokens,
        stop_token_ids=() if options.ignore_eos else tokenizer.eos_ids,
    )
    alone = len(requests) == 1 and not as_json

    def show(index: int, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    record_path = None if record is None else str(record)
    async with planned(options, opened, max_seqs=len(encoded), record_path=record_path) as plan:
        decision = plan.spec.decision
        note(f"placement: {decision.placement} ({decision.reason})")
        async with Pair.start(plan.spec, loading_bars()) as pair:
            completions = await complete(pair, requests, tokenizer, options.stop, show if alone else None)
            site = None if pair.moves or pair.num_draft_restarts else pair.current.site
            plan.remember([completion.report for completion in completions], site)
            reports = await pair.reports()
            documents = [document(completion, pair, reports) for completion in completions]
    if trace is not None:
        _write_trace(trace, completions)
    _print(documents, completions, alone=alone, as_json=as_json)


def _check_writable(option: str, path: Path | None) -> None:
    """Empties the file. A path that cannot be written is told before the work, not after it."""
    if path is None:
        return
    try:
        path.write_bytes(b"")
    except OSError as error:
        raise ValueError(f"{option} must be a file that can be written, got {path} ({error.strerror})") from error


def _write_trace(path: Path, completions: Sequence[Completion]) -> None:
    lines = [line for i, c in enumerate(completions) for line in trace_lines(i, c.report)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _print(documents: list[dict[str, Any]], completions: Sequence[Completion], *, alone: bool, as_json: bool) -> None:
    if as_json:
        print(json.dumps(documents[0] if len(documents) == 1 else documents, ensure_ascii=False))
        return
    if alone:
        print()
    else:
        for i, completion in enumerate(completions, 1):
            print(f"--- {i} ---\n{completion.text}")
    for i, (doc, completion) in enumerate(zip(documents, completions, strict=True), 1):
        metrics = doc["metrics"]
        note(
            f"[{i}] {len(completion.report.token_ids)} tokens ({doc['finish_reason']}), "
            f"{metrics['tokens_per_s']} tokens/s, acceptance length {metrics['acceptance_length']}, "
            f"draft {metrics['draft_ms']} ms, verify {metrics['verify_ms']} ms, link {metrics['link_ms']} ms, "
            f"seed {doc['seed']}"
        )
