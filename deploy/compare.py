"""The same prompts under several placements, interleaved and repeated: `demo` prints it, benchmarks build on it.

A lane is a placement with its own pair, brought up for its turn and gone before the next: `off` runs with no draft
process on the machine. Prompts go one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from twinspark.actors.specs import ActorReport
from twinspark.actors.target.request import Report, requests_for
from twinspark.cluster.pair import Pair
from twinspark.deploy.completion import complete
from twinspark.deploy.identity import Difference, audit
from twinspark.deploy.opening import Opened
from twinspark.deploy.options import Options
from twinspark.deploy.plan_pair import plan_pair
from twinspark.deploy.progress import note
from twinspark.deploy.tokenizer import Tokenizer
from twinspark.planner.nodes import Node


@dataclass
class Turn:
    """One lane's turn: a report a prompt, what the actors said afterwards, where the draft's time went."""

    reports: list[Report]
    actors: dict[str, ActorReport]
    cpu_s: dict[str, float]
    laps_ms: dict[str, float]

    @property
    def tokens_per_s(self) -> float:
        """All tokens after each first one, over the time they took."""
        tokens = sum(len(report.token_ids) - 1 for report in self.reports)
        return tokens / max(1e-9, sum(report.decode_us for report in self.reports) / 1e6)


@dataclass
class Lane:
    """A placement and its turns."""

    name: str
    options: Options
    turns: list[Turn] = field(default_factory=list)
    differences: dict[int, Difference] = field(default_factory=dict)


async def take_turn(
    lane: Lane,
    opened: Opened,
    nodes: Sequence[Node],
    prompts: Sequence[Sequence[int]],
    tokenizer: Tokenizer,
    *,
    first: Lane,
) -> None:
    """Bring the lane's pair up, run every prompt, audit against the `first` lane's first turn, end the pair."""
    baseline = () if lane is first else first.turns[0].reports
    options = lane.options
    spec = plan_pair(options, opened, nodes, max_seqs=1)
    eos = () if options.ignore_eos else tokenizer.eos_ids
    async with Pair.start(spec) as pair:
        requests = requests_for(
            prompts,
            [options.sampling() for _ in prompts],
            max_new_tokens=options.max_new_tokens,
            stop_token_ids=eos,
            first_number=1,
        )
        warm_up = requests_for(prompts[:1], [options.sampling()], max_new_tokens=16, stop_token_ids=eos, first_number=0)
        await complete(pair, warm_up, tokenizer, ())
        before, laps_before = await pair.reports(), await pair.laps_ms()
        reports = []
        for request in requests:
            reports += [c.report for c in await complete(pair, [request], tokenizer, options.stop)]
        after, laps = await pair.reports(), await pair.laps_ms()
        for i, plain in enumerate(baseline):
            difference = await audit(pair, requests[i], plain.token_ids, reports[i].token_ids)
            if difference is not None:
                lane.differences[i] = difference
    turn = Turn(
        reports,
        after,
        {name: after[name].cpu_s - before[name].cpu_s for name in after if name in before},
        {name: value - laps_before.get(name, 0.0) for name, value in laps.items()},
    )
    lane.turns.append(turn)
    note(f"turn {len(lane.turns)} {lane.name}: {turn.tokens_per_s:.1f} tokens/s")


def lanes_for(options: Options, placements: Sequence[str]) -> list[Lane]:
    """A lane a placement; the first is the baseline of identity."""
    return [Lane(name, options.model_copy(update={"dspark_place": name})) for name in placements]


async def compare(
    options: Options,
    placements: Sequence[str],
    opened: Opened,
    nodes: Sequence[Node],
    prompts: Sequence[Sequence[int]],
    tokenizer: Tokenizer,
    *,
    repeats: int,
) -> list[Lane]:
    """A lane a placement, `repeats` turns each, interleaved; the first of `placements` is the baseline of identity."""
    lanes = lanes_for(options, placements)
    for _ in range(repeats):
        for lane in lanes:
            await take_turn(lane, opened, nodes, prompts, tokenizer, first=lanes[0])
    return lanes


def row_of(lane: Lane) -> dict[str, Any]:
    """One lane's figures: medians over its turns; times are means over the rounds of a turn."""

    def over_turns(figure: Callable[[Turn], float]) -> float:
        return round(float(median(figure(turn) for turn in lane.turns)), 3)

    def per_round(name: str) -> float:
        return over_turns(
            lambda t: sum(getattr(r, name) for q in t.reports for r in q.rounds) / max(1, _num_rounds(t)) / 1e3
        )

    def per_token(name: str) -> float:
        return over_turns(lambda t: sum(getattr(r, name) for q in t.reports for r in q.rounds) / max(1, _num_tokens(t)))

    last = lane.turns[-1]
    return {
        "placement": lane.name,
        "tokens_per_s": over_turns(lambda t: t.tokens_per_s),
        "tokens_per_s_of_turns": [round(turn.tokens_per_s, 2) for turn in lane.turns],
        "acceptance_length": over_turns(lambda t: (_num_tokens(t) - len(t.reports)) / max(1, _num_rounds(t))),
        "draft_ms": per_round("draft_us"),
        "verify_ms": per_round("verify_us"),
        "link_ms": per_round("link_us"),
        "bytes_per_token": round(per_token("bytes_to_draft") + per_token("bytes_to_target"), 1),
        "identical_to_off": not lane.differences,
        "first_difference": {
            str(i): {"index": d.index, "margin": min(d.top_two, d.edge), "is_rounding": d.is_rounding}
            for i, d in lane.differences.items()
        },
        "cpu_s": {name: round(value, 2) for name, value in last.cpu_s.items()},
        "resident_mb": {name: round(report.resident_bytes / 1e6) for name, report in last.actors.items()},
        "threads": {name: report.num_threads for name, report in last.actors.items()},
        "draft_laps_ms": {name: round(v / max(1, _num_rounds(last)), 3) for name, v in last.laps_ms.items()},
    }


def _num_rounds(turn: Turn) -> int:
    return sum(len(report.rounds) for report in turn.reports)


def _num_tokens(turn: Turn) -> int:
    return sum(len(report.token_ids) for report in turn.reports)
