"""Small targets, and an engine driven without a host: for tests that need real decoding, but not a large model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from twinspark.actors.checkpoint.configs import DecoderConfig, RopeConfig
from twinspark.actors.checkpoint.expected_tensors import target_shapes
from twinspark.actors.checkpoint.opening import open_target
from twinspark.actors.nets.decoder import Decoder, Numerics
from twinspark.actors.nets.linear import Precision
from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.target.engine import NOTHING, Engine, Proposed, Stepped
from twinspark.actors.target.request import Active, Report, Request

CPU = torch.device("cpu")
VOCAB = 50
MOST_STEPS = 5000
FILTERS: list[dict[str, Any]] = [
    {},
    {"top_k": 12},
    {"top_p": 0.9},
    {"min_p": 0.05},
    {"top_k": 20, "top_p": 0.95, "min_p": 0.02},
]

Moves = list[tuple[int, list[int]]]
Propose = Callable[[Sequence[Active], int], Proposed]


def tiny_target(
    seed: int = 0,
    *,
    vocab: int = VOCAB,
    layers: int = 1,
    num_slots: int = 4,
    context: int = 64,
    memoryless: bool = False,
    precision: Precision = "float32",
    numerics: Numerics = "fast",
) -> Decoder:
    """A random target of hidden size 16. A `memoryless` one looks at nothing but the last token."""
    config = DecoderConfig("llama", vocab, 16, 32, layers, 2, 1, 8, 1e-5, RopeConfig(), context)
    generator = torch.Generator().manual_seed(seed)
    weights = {name: torch.randn(shape, generator=generator) for name, shape in target_shapes(config)[0].items()}
    for name, weight in weights.items():
        if name == "lm_head.weight":
            weight *= 0.4  # a spread that leaves several tokens a chance
        elif name.endswith("o_proj.weight") and memoryless:
            weight.zero_()
        elif weight.ndim == 2 and "embed" not in name:
            weight *= 0.3
    return Decoder(
        config,
        weights.__getitem__,
        precision=precision,
        numerics=numerics,
        num_slots=num_slots,
        context=context,
        device=CPU,
    )


def golden_target(shared: Path, *, num_slots: int, context: int = 256) -> Decoder:
    """The target of the reference vectors."""
    opened = open_target(shared / "golden/deepspec/targets/untied")
    return Decoder(
        opened.config, opened.tensors.load, precision="float32", num_slots=num_slots, context=context, device=CPU
    )


def engine_of(target: Decoder) -> Engine:
    return Engine(target, max_seqs=target.scratch_slot, context=target.cache.capacity)


GREEDY = Sampling()


def ask(
    number: int, prompt: Sequence[int], new: int, sampling: Sampling = GREEDY, *, stop: int | None = None
) -> Request:
    return Request(number, tuple(prompt), sampling, new, () if stop is None else (stop,))


class Scripted:
    """Proposes some right tokens, then a tail, by `moves` in turn. Knows the answers."""

    def __init__(self, answers: dict[int, tuple[int, ...]], moves: Moves) -> None:
        self.answers, self.moves = answers, moves
        self.num_calls = 0

    def __call__(self, decoding: Sequence[Active], context: int) -> Proposed:
        tokens = {}
        for active in decoding:
            num_right, tail = self.moves[self.num_calls % len(self.moves)]
            self.num_calls += 1
            right = self.answers[active.number][active.num_new : active.num_new + num_right]
            tokens[active.number] = (*right, *tail)
        return Proposed(tokens, draft_us=7, link_us=3)


def no_proposals(decoding: Sequence[Active], context: int) -> Proposed:
    return NOTHING


def step(engine: Engine, propose: Propose = no_proposals) -> Stepped:
    """One round. Afterwards the cache holds every position but the last of each request that is past its prompt."""
    engine.admit()
    stepped = engine.step(propose(engine.decoding(), engine.context))
    for active in engine.active.values():
        if active.num_new:
            assert active.num_done == len(active.ids) - 1
    return stepped


def answer(engine: Engine, requests: Sequence[Request], propose: Propose = no_proposals) -> dict[int, Report]:
    """Run `requests` to their ends, each taken out when it ends."""
    for request in requests:
        engine.check(request)
        engine.add(request, 0.0)
    reports: dict[int, Report] = {}
    for _ in range(MOST_STEPS):
        if len(reports) == len(requests):
            return reports
        for commit in step(engine, propose).commits:
            if commit.finish_reason is not None:
                active = engine.remove(commit.number)
                assert active is not None
                reports[commit.number] = active.report()
    raise AssertionError(f"requests must end within {MOST_STEPS} steps")


def tokens_of(reports: dict[int, Report]) -> dict[int, tuple[int, ...]]:
    return {number: report.token_ids for number, report in reports.items()}
