"""The target's steps over a batch of requests that join and leave: which rows to run, what to commit.

Knows the network, slots and drawing. Where proposals come from, and who is told of commits, is the host's business.
A step never depends on a draft for anything but speed: with no proposals it is plain decoding.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from twinspark.actors.errors import RequestError
from twinspark.actors.nets.decoder import Decoder
from twinspark.actors.nets.rows import Rows, Span
from twinspark.actors.sampling.draw import Margin, draw, draw_one, margin
from twinspark.actors.sampling.noise import Noise
from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.target.counts import Judged
from twinspark.actors.target.request import MAX_NUMBER, Active, Commit, Request, RoundRecord

PREFILL_ROWS_ALONE = 256  # prompt rows a step takes when nobody is decoding
PREFILL_ROWS_BESIDE = 32  # and when others are: their tokens come at most this much later


@dataclass(frozen=True)
class Proposed:
    """What a draft offers for one round: draft tokens by request number, and what that cost."""

    tokens: Mapping[int, tuple[int, ...]]
    draft_us: int = 0
    link_us: int = 0
    bytes_to_draft: Mapping[int, int] | None = None
    bytes_to_target: Mapping[int, int] | None = None


NOTHING = Proposed({})


@dataclass(frozen=True)
class Stepped:
    """What a step did: `kept` are the spans whose positions are now final, with `taps` rows for each (if asked for).
    `judged` has the requests that were decoding; `prefilled` says that the step ran prompt rows too.
    """

    commits: tuple[Commit, ...]
    verify_us: int
    kept: tuple[tuple[Span, int], ...]
    taps: Tensor | None
    judged: tuple[Judged, ...] = ()
    prefilled: bool = False


class Engine:
    """Owns the target's slots. Not thread-safe: the compute thread runs `step`, everything else goes between steps."""

    def __init__(self, target: Decoder, *, max_seqs: int, context: int, taps: tuple[int, ...] = ()) -> None:
        self.target, self.context, self.taps = target, context, taps
        self.noise = Noise(target.config.vocab_size, target.device)
        self.active: dict[int, Active] = {}
        self.waiting: OrderedDict[int, tuple[Request, float]] = OrderedDict()
        self.num_rounds = 0
        self._free = list(range(max_seqs - 1, -1, -1))

    def check(self, request: Request) -> None:
        """Raises RequestError unless the request can be served."""
        vocab = self.target.config.vocab_size
        if not request.prompt:
            raise RequestError("a prompt must have at least one token, got none")
        if len(request.prompt) >= self.context:
            raise RequestError(
                f"a prompt must be shorter than the context of {self.context}, got {len(request.prompt)}"
            )
        if not 0 <= request.number <= MAX_NUMBER:
            raise RequestError(f"a request number must be from 0 to {MAX_NUMBER}, got {request.number}")
        if request.max_new_tokens < 1:
            raise RequestError(f"max_new_tokens must be at least 1, got {request.max_new_tokens}")
        if not all(0 <= token < vocab for token in request.prompt):
            raise RequestError(f"token ids must be from 0 to {vocab - 1}, got others")
        if request.number in self.active or request.number in self.waiting:
            raise RequestError(f"request numbers must be unique, got {request.number} twice")

    def add(self, request: Request, now_s: float) -> None:
        """Queue a checked request; it starts when a slot is free."""
        self.waiting[request.number] = (request, now_s)

    def remove(self, number: int) -> Active | None:
        """Take a request out, wherever it is, and free its slot. None if it is unknown."""
        active = self.active.pop(number, None)
        if active is not None:
            self._free.append(active.slot)
            return active
        waiting = self.waiting.pop(number, None)
        return None if waiting is None else Active(waiting[0], -1, waiting[1])

    def admit(self) -> None:
        """Give waiting requests the free slots."""
        while self.waiting and self._free:
            _, (request, submitted_s) = self.waiting.popitem(last=False)
            self.active[request.number] = Active(request, self._free.pop(), submitted_s)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to run: what waits for a slot waits until a finished request is removed."""
        starting = self.waiting and self._free
        return not starting and all(a.finish_reason is not None for a in self.active.values())

    def decoding(self) -> list[Active]:
        """Requests whose next tokens may be drafted now."""
        return [active for active in self.active.values() if active.decoding]

    def step(self, proposed: Proposed) -> Stepped:
        """Run anchors with their proposals, and a chunk of what is still to be prefilled; commit."""
        began = time.perf_counter()
        decoding = self.decoding()
        spans, ids, wanted = self._assemble(decoding, proposed)
        hidden, taps = self.target.forward(Rows(spans, ids, self.target.device), self.taps)
        logits = self.target.logits(hidden[wanted])
        prefilled = [a for a in self.active.values() if a.finish_reason is None and not a.decoding]
        drawn = self._draw(decoding, prefilled, spans[len(decoding) :], proposed, logits)
        now_s = time.monotonic()
        verify_us = int((time.perf_counter() - began) * 1e6)
        commits, kept, judged = self._commit(decoding, spans, drawn, proposed, verify_us, now_s)
        if decoding:
            self.num_rounds += 1
        return Stepped(tuple(commits), verify_us, tuple(kept), taps, tuple(judged), len(spans) > len(decoding))

    def margin(self, ids: Sequence[int], sampling: Sampling) -> Margin:
        """How firm the draw of the token after `ids` is; computed afresh, in slot 0: nobody may be decoding."""
        for start in range(0, len(ids), PREFILL_ROWS_ALONE):
            part = ids[start : start + PREFILL_ROWS_ALONE]
            span = Span(0, start, len(part))
            hidden, _ = self.target.forward(Rows([span], part, self.target.device))
        return margin(self.target.logits(hidden[-1:])[0], sampling, len(ids), self.noise)

    def _assemble(self, decoding: Sequence[Active], proposed: Proposed) -> tuple[list[Span], list[int], list[int]]:
        """Spans and ids of the rows to run, and the indices of those whose logits are needed."""
        spans: list[Span] = []
        ids: list[int] = []
        wanted: list[int] = []
        for active in decoding:
            draft = proposed.tokens.get(active.number, ())[: active.cap(self.context)]
            spans.append(Span(active.slot, len(active.ids) - 1, 1 + len(draft)))
            wanted += range(len(ids), len(ids) + 1 + len(draft))
            ids += (active.ids[-1], *draft)
        room = PREFILL_ROWS_BESIDE if decoding else PREFILL_ROWS_ALONE
        for active in self.active.values():
            if active.finish_reason is None and not active.decoding and room:
                start = active.num_done
                count = min(room, len(active.ids) - start)
                spans.append(Span(active.slot, start, count))
                ids += active.ids[start : start + count]
                room -= count
                if start + count == len(active.ids):
                    wanted.append(len(ids) - 1)
        return spans, ids, wanted

    def _draw(
        self,
        decoding: Sequence[Active],
        prefilled: Sequence[Active],
        prefill_spans: Sequence[Span],
        proposed: Proposed,
        logits: Tensor,
    ) -> dict[int, list[int]]:
        """The target's own draws by request number: accepted drafts, then the first that differs or the bonus."""
        asks: list[tuple[Active, int, tuple[int, ...]]] = [
            (a, len(a.ids), proposed.tokens.get(a.number, ())[: a.cap(self.context)]) for a in decoding
        ]
        asks += [(a, span.end, ()) for a, span in zip(prefilled, prefill_spans, strict=False) if span.end == len(a.ids)]
        drawn: dict[int, list[int]] = {}
        on_host = logits.device.type == "cpu"
        ahead: list[int] = []
        if not on_host:
            samplings = [a.request.sampling for a, _, draft in asks for _ in range(len(draft) + 1)]
            positions = [first + i for _, first, draft in asks for i in range(len(draft) + 1)]
            ahead = draw(logits, samplings, positions, self.noise)
        row = 0
        for active, first, draft in asks:
            tokens: list[int] = []
            for i in range(len(draft) + 1):
                # On the host a row is drawn only when it is reached: a sampled draw costs, and most are not needed.
                sampling = active.request.sampling
                token = draw_one(logits[row + i], sampling, first + i, self.noise) if on_host else ahead[row + i]
                tokens.append(token)
                if i < len(draft) and token != draft[i]:
                    break
            drawn[active.number] = tokens
            row += len(draft) + 1
        return drawn

    def _commit(
        self,
        decoding: Sequence[Active],
        spans: Sequence[Span],
        drawn: Mapping[int, list[int]],
        proposed: Proposed,
        verify_us: int,
        now_s: float,
    ) -> tuple[list[Commit], list[tuple[Span, int]], list[Judged]]:
        judged: list[Judged] = []
        commits: list[Commit] = []
        kept: list[tuple[Span, int]] = []
        by_slot = {active.slot: active for active in self.active.values()}
        row = 0
        for i, span in enumerate(spans):
            active = by_slot[span.slot]
            tokens = drawn.get(active.number)
            anchor_position = len(active.ids) - 1
            commit = active.commit(tokens, self.context, now_s) if tokens is not None else None
            # Nothing after a stop token is final: of the rows behind an anchor, as many as were committed.
            final = len(commit.ids) if commit is not None and i < len(decoding) else span.count
            kept.append((Span(span.slot, span.start, final), row))
            active.num_done = span.start + final
            row += span.count
            if commit is None or tokens is None:
                continue
            commits.append(commit)
            if i < len(decoding):
                draft = proposed.tokens.get(active.number, ())[: span.count - 1]
                num_accepted = min(len(tokens) - 1, len(commit.ids))
                judged.append(Judged(len(draft), num_accepted, len(commit.ids), len(commit.ids) < len(tokens)))
                active.records.append(
                    RoundRecord(
                        round=self.num_rounds,
                        anchor_position=anchor_position,
                        draft_tokens=draft,
                        num_accepted=num_accepted,
                        num_committed=len(commit.ids),
                        draft_us=proposed.draft_us,
                        link_us=proposed.link_us,
                        verify_us=verify_us,
                        bytes_to_draft=(proposed.bytes_to_draft or {}).get(active.number, 0),
                        bytes_to_target=(proposed.bytes_to_target or {}).get(active.number, 0),
                    )
                )
        return commits, kept, judged
