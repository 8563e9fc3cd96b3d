"""A request as the target sees it: token ids, settings, and what each round did to it. Knows no text and no network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from twinspark.actors.sampling.settings import Sampling

FinishReason = Literal["stop", "length"]
MAX_NUMBER = 2**31 - 1  # what a session number may be on the wire


@dataclass(frozen=True)
class Request:
    """What is asked: token ids and integers only. `number` is the caller's name for it, unique among live ones."""

    number: int
    prompt: tuple[int, ...]
    sampling: Sampling
    max_new_tokens: int
    stop_token_ids: tuple[int, ...] = ()


def requests_for(
    prompts: Sequence[Sequence[int]],
    samplings: Sequence[Sampling],
    *,
    max_new_tokens: int,
    stop_token_ids: tuple[int, ...],
    first_number: int = 0,
) -> list[Request]:
    """One request a prompt, numbered from `first_number`."""
    return [
        Request(first_number + i, tuple(ids), sampling, max_new_tokens, stop_token_ids)
        for i, (ids, sampling) in enumerate(zip(prompts, samplings, strict=True))
    ]


@dataclass(frozen=True)
class RoundRecord:
    """One verify round of one request. Times are of the whole round, shared by the requests that were in it."""

    round: int
    anchor_position: int
    draft_tokens: tuple[int, ...]
    num_accepted: int
    num_committed: int
    draft_us: int
    link_us: int
    verify_us: int
    bytes_to_draft: int
    bytes_to_target: int


@dataclass(frozen=True)
class Commit:
    """Tokens a step added to a request, and whether it ended there."""

    number: int
    ids: tuple[int, ...]
    finish_reason: FinishReason | None


@dataclass(frozen=True)
class Report:
    """What happened to a request, cut after `num_tokens`: rounds that ran ahead of the cut are not counted."""

    number: int
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    rounds: tuple[RoundRecord, ...]
    ttft_us: int
    decode_us: int


@dataclass
class Active:
    """A request in a slot. `num_done` positions have their keys and values in the target's cache."""

    request: Request
    slot: int
    submitted_s: float
    ids: list[int] = field(init=False)
    num_done: int = 0
    finish_reason: FinishReason | None = None
    records: list[RoundRecord] = field(default_factory=list)
    commit_times_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ids = list(self.request.prompt)

    @property
    def number(self) -> int:
        return self.request.number

    @property
    def num_new(self) -> int:
        return len(self.ids) - len(self.request.prompt)

    @property
    def decoding(self) -> bool:
        """Whether only the anchor is left to run: its next token may be drafted."""
        return self.finish_reason is None and self.num_new > 0

    def cap(self, context: int) -> int:
        """Most draft tokens that could still be kept: the bonus takes one place of the request and of the context."""
        remaining = min(self.request.max_new_tokens - self.num_new, context - len(self.ids))
        return max(0, remaining - 1)

    def commit(self, drawn: list[int], context: int, now_s: float) -> Commit:
        """Append `drawn`, cut at a stop token and at the limits."""
        kept: list[int] = []
        for token in drawn:
            kept.append(token)
            self.ids.append(token)
            self.commit_times_s.append(now_s)
            if token in self.request.stop_token_ids:
                self.finish_reason = "stop"
            elif self.num_new >= self.request.max_new_tokens or len(self.ids) >= context:
                self.finish_reason = "length"
            if self.finish_reason is not None:
                break
        return Commit(self.number, tuple(kept), self.finish_reason)

    def report(self, num_tokens: int | None = None) -> Report:
        """The report, cut after `num_tokens` by a stop string found where the text is (None: not cut)."""
        tokens = tuple(self.ids[len(self.request.prompt) :])
        reason = self.finish_reason or "stop"
        if num_tokens is not None and num_tokens <= len(tokens):
            tokens, reason = tokens[:num_tokens], "stop"
        records, counted = [], 1  # token 1 comes from the prefill
        for record in self.records:
            left = len(tokens) - counted
            if left <= 0:
                break
            if record.num_committed > left:
                record = replace(record, num_committed=left, num_accepted=min(left, record.num_accepted))
            records.append(record)
            counted += record.num_committed
        times = self.commit_times_s[: len(tokens)]
        first, last = (times[0], times[-1]) if times else (self.submitted_s, self.submitted_s)
        return Report(
            self.number,
            tokens,
            reason,
            tuple(records),
            ttft_us=int((first - self.submitted_s) * 1e6),
            decode_us=int((last - first) * 1e6),
        )
