"""Prompts through a pair: token ids in, text out as it comes, a result a prompt. Where text and tokens meet."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from twinspark.actors.specs import ActorReport
from twinspark.actors.target.request import Commit, Report, Request
from twinspark.cluster.pair import GATHER_S, Pair
from twinspark.deploy.text_stream import TextStream
from twinspark.deploy.tokenizer import Tokenizer

UNWATCHED_GATHER_S = 2.0  # nobody reads along: the end of each request is still told at once
OnText = Callable[[int, str], None]


@dataclass(frozen=True)
class Completion:
    """One prompt's answer."""

    text: str
    prompt_token_count: int
    seed: int
    report: Report


async def complete(
    pair: Pair,
    requests: Sequence[Request],
    tokenizer: Tokenizer,
    stops: Sequence[str],
    on_text: OnText | None = None,
) -> list[Completion]:
    """Run `requests` to their ends, in one batch; `on_text(index, text)` as text becomes final. In the order given.

    Raises RequestError where one cannot be served: then none was started.
    """
    await pair.submit(requests)
    streams = {request.number: TextStream(tokenizer, stops) for request in requests}
    texts: dict[int, str] = {request.number: "" for request in requests}
    index = {request.number: i for i, request in enumerate(requests)}
    reports: dict[int, Report] = {}

    def emit(number: int, text: str) -> None:
        if text:
            texts[number] += text
            if on_text is not None:
                on_text(index[number], text)

    watched = on_text is not None or bool(stops)
    async with aclosing(pair.commits(GATHER_S if watched else UNWATCHED_GATHER_S)) as commits:
        async for commit in _only(commits, streams):
            stream = streams[commit.number]
            piece = stream.push(commit.ids)
            emit(commit.number, piece.text)
            if not piece.stopped and commit.finish_reason is not None:
                piece = stream.finish()
                emit(commit.number, piece.text)
            if piece.stopped or commit.finish_reason is not None:
                kept = piece.num_tokens_kept if piece.stopped else None
                reports[commit.number] = await pair.collect(commit.number, kept)
                del streams[commit.number]
                if not streams:
                    break
    return [Completion(texts[r.number], len(r.prompt), r.sampling.seed, reports[r.number]) for r in requests]


async def _only(commits: AsyncIterator[Commit], live: dict[int, TextStream]) -> AsyncIterator[Commit]:
    """Commits of requests that still run: what ran ahead of a stop string is dropped."""
    async for commit in commits:
        if commit.number in live:
            yield commit


def metrics_of(report: Report) -> dict[str, Any]:
    """The figures of one request, named as the field names them; None where nothing was measured."""
    rounds = report.rounds
    committed = sum(r.num_committed for r in rounds)

    def mean_ms(name: str) -> float | None:
        return round(sum(getattr(r, name) for r in rounds) / len(rounds) / 1e3, 3) if rounds else None

    return {
        "rounds": len(rounds),
        "draft_tokens": sum(len(r.draft_tokens) for r in rounds),
        "accepted_tokens": sum(r.num_accepted for r in rounds),
        "acceptance_length": round(committed / len(rounds), 4) if rounds else None,
        "tokens_per_s": round((len(report.token_ids) - 1) / report.decode_us * 1e6, 2) if report.decode_us else None,
        "ttft_ms": round(report.ttft_us / 1e3, 2),
        "draft_ms": mean_ms("draft_us"),
        "verify_ms": mean_ms("verify_us"),
        "link_ms": mean_ms("link_us"),
        "bytes_to_draft": sum(r.bytes_to_draft for r in rounds),
        "bytes_to_target": sum(r.bytes_to_target for r in rounds),
    }


def document(completion: Completion, pair: Pair, reports: dict[str, ActorReport]) -> dict[str, Any]:
    """The contract's document for one completion (DESIGN section 8)."""
    decision = pair.spec.decision
    drafting = reports.get("draft", reports["target"])
    return {
        "text": completion.text,
        "token_ids": list(completion.report.token_ids),
        "prompt_token_count": completion.prompt_token_count,
        "finish_reason": completion.report.finish_reason,
        "placement": {
            "name": pair.current.placement,
            "reason": pair.reason,
            "requested": decision.requested,
            "device": None if pair.current.placement == "off" else drafting.device,
            "node": drafting.node,
            "target_device": reports["target"].device,
            "threads": {name: report.num_threads for name, report in reports.items()},
        },
        "metrics": metrics_of(completion.report),
        "seed": completion.seed,
    }


def trace_lines(index: int, report: Report) -> list[dict[str, Any]]:
    """One line a round."""
    return [
        {
            "request": index,
            "round": r.round,
            "anchor_position": r.anchor_position,
            "draft_tokens": list(r.draft_tokens),
            "accepted": r.num_accepted,
            "committed": r.num_committed,
            "draft_ms": r.draft_us / 1e3,
            "verify_ms": r.verify_us / 1e3,
            "link_ms": r.link_us / 1e3,
        }
        for r in report.rounds
    ]
