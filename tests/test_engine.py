"""The engine: whatever is proposed, whoever is in the batch, the tokens are the target's own; limits and stops hold."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from small_engine import (
    CPU,
    FILTERS,
    GREEDY,
    VOCAB,
    Moves,
    Scripted,
    answer,
    ask,
    engine_of,
    golden_target,
    step,
    tiny_target,
    tokens_of,
)

from twinspark.actors.nets.decoder import Decoder
from twinspark.actors.nets.rows import Rows, Span
from twinspark.actors.sampling.draw import margin
from twinspark.actors.sampling.noise import Noise
from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.target.engine import PREFILL_ROWS_ALONE, PREFILL_ROWS_BESIDE

SAMPLINGS = [GREEDY] + [
    Sampling.of(temperature=temperature, **filters)
    for temperature, filters in zip((0.7, 1.0, 1.5, 1.0, 0.7), FILTERS, strict=True)
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


moves_strategy = st.lists(
    st.tuples(st.integers(0, 9), st.lists(st.integers(0, VOCAB - 1), max_size=4)), min_size=1, max_size=12
)


@pytest.fixture(scope="module")
def tiny() -> Decoder:
    return tiny_target(1, layers=2, num_slots=3)


@pytest.fixture(scope="module")
def golden(shared: Path) -> Decoder:
    return golden_target(shared, num_slots=4)


def golden_texts(shared: Path) -> list[tuple[list[int], tuple[int, ...]]]:
    """Prompts, and the 48 tokens the original code made of each."""
    tensors = load_file(shared / "golden/deepspec/vanilla/golden.safetensors")
    texts = []
    for i in range(7):
        prompt = tensors[f"p{i}.prompt_ids"][0].tolist()
        texts.append((prompt, tuple(tensors[f"p{i}.greedy_output_ids"][0].tolist()[len(prompt) :])))
    return texts


@pytest.mark.parametrize("verify_length", [0, 1, 2, 3, 4, 5, 6, 7])
def test_greedy_equals_the_original_code_at_every_verify_length(
    shared: Path, golden: Decoder, verify_length: int
) -> None:
    texts = golden_texts(shared)
    requests = [ask(i, prompt, 48) for i, (prompt, _) in enumerate(texts)]
    expected = {i: ids for i, (_, ids) in enumerate(texts)}
    draft = Scripted(expected, [(verify_length, []), (verify_length // 2, [9] * (verify_length - verify_length // 2))])
    reports = answer(engine_of(golden), requests, draft)
    assert tokens_of(reports) == expected
    lengths = {len(record.draft_tokens) for report in reports.values() for record in report.rounds}
    assert max(lengths) == verify_length


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(moves=moves_strategy)
def test_no_proposal_changes_the_tokens(tiny: Decoder, sampling: Sampling, moves: Moves) -> None:
    requests = [ask(i, [i + 1, 2 * i, 3], 14 + i, replace(sampling, seed=i)) for i in range(5)]
    expected = tokens_of(answer(engine_of(tiny), requests))
    reports = answer(engine_of(tiny), requests, Scripted(expected, moves))
    assert tokens_of(reports) == expected
    for request in requests:
        report = reports[request.number]
        assert 1 + sum(r.num_committed for r in report.rounds) == len(report.token_ids) == request.max_new_tokens
        for record in report.rounds:
            assert record.num_committed == record.num_accepted + 1
            place = record.anchor_position + 1 - len(request.prompt)
            kept = report.token_ids[place : place + record.num_accepted]
            assert record.draft_tokens[: record.num_accepted] == kept


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@settings(max_examples=15, deadline=None, derandomize=True)
@given(moves=moves_strategy)
def test_exact_numerics_leave_no_room_for_rounding(precision: str, moves: Moves) -> None:
    target = tiny_target(2, layers=2, num_slots=3, precision=precision, numerics="exact")  # type: ignore[arg-type]
    requests = [ask(i, range(1, 4 + 5 * i), 9, Sampling.of(temperature=i / 2, seed=i)) for i in range(4)]
    alone: dict[int, tuple[int, ...]] = {}
    for request in requests:
        alone |= tokens_of(answer(engine_of(target), [request]))
    assert tokens_of(answer(engine_of(target), requests, Scripted(alone, moves))) == alone


@pytest.mark.parametrize("seed", range(6))
def test_requests_join_and_leave_at_any_moment(tiny: Decoder, seed: int) -> None:
    rng = random.Random(seed)
    requests = {
        n: ask(n, rng.choices(range(VOCAB), k=rng.randrange(1, 40)), rng.randrange(1, 20), rng.choice(SAMPLINGS))
        for n in range(14)
    }
    alone = {n: answer(engine_of(tiny), [request])[n].token_ids for n, request in requests.items()}
    engine = engine_of(tiny)
    draft = Scripted(alone, [(rng.randrange(8), [rng.randrange(VOCAB)]) for _ in range(10)])
    todo = list(requests)
    told: dict[int, tuple[int, ...]] = dict.fromkeys(requests, ())
    left: set[int] = set()
    while todo or engine.active or engine.waiting:
        for _ in range(rng.randrange(3)):
            if todo:
                request = requests[todo.pop()]
                engine.check(request)
                engine.add(request, 0.0)
        for commit in step(engine, draft).commits if not engine.idle else ():
            told[commit.number] += commit.ids
            assert commit.number not in left
            if commit.finish_reason is not None:
                assert told[commit.number] == alone[commit.number]
                engine.remove(commit.number)
                left.add(commit.number)
        if engine.active and rng.random() < 0.05:
            number = rng.choice([*engine.active, *engine.waiting])
            removed = engine.remove(number)
            assert removed is not None
            assert removed.report().token_ids == alone[number][: removed.num_new]
            left.add(number)
        assert len(engine.active) <= 3
        assert len({active.slot for active in engine.active.values()}) == len(engine.active)
    assert left == set(requests)
    assert engine.remove(0) is None


def test_a_finished_request_that_nobody_took_out_stalls_no_loop(tiny: Decoder) -> None:
    engine = engine_of(tiny)
    for n in range(4):
        engine.add(ask(n, [n], 2), 0.0)
    while not engine.idle:
        assert step(engine).commits
    assert sorted(engine.active) == [0, 1, 2]
    engine.remove(1)
    idle: bool = engine.idle
    assert not idle
    assert [commit.number for commit in step(engine).commits] == [3]


def test_a_long_prompt_does_not_stall_the_others(golden: Decoder, shared: Path) -> None:
    (prompt, expected), long = golden_texts(shared)[3], golden_texts(shared)[6]
    engine = engine_of(golden)
    engine.add(ask(0, prompt, 48), 0.0)
    step(engine)
    for n in (1, 2):
        engine.add(ask(n, long[0], 48), 0.0)
    num_beside = 0
    while 2 not in engine.active or not engine.active[2].num_new:
        before = sum(a.num_done for n, a in engine.active.items() if n)
        commits = step(engine).commits
        assert 0 in {commit.number for commit in commits}
        prefilled = sum(a.num_done for n, a in engine.active.items() if n) - before
        assert prefilled <= PREFILL_ROWS_BESIDE + 1
        num_beside += 1
    assert num_beside == -(-2 * len(long[0]) // PREFILL_ROWS_BESIDE)
    while not engine.idle:
        step(engine)
    assert engine.active[0].report().token_ids == expected
    assert {engine.active[n].report().token_ids for n in (1, 2)} == {long[1]}


def test_a_prompt_alone_is_prefilled_in_large_chunks() -> None:
    target = tiny_target(3, num_slots=1, context=600)
    prompt = [i % VOCAB for i in range(PREFILL_ROWS_ALONE + 10)]
    engine = engine_of(target)
    engine.add(ask(0, prompt, 1), 0.0)
    assert step(engine).commits == ()
    assert engine.active[0].num_done == PREFILL_ROWS_ALONE
    (commit,) = step(engine).commits
    hidden, _ = target.forward(Rows([Span(target.scratch_slot, 0, len(prompt))], prompt, CPU))
    assert commit.ids == (int(target.logits(hidden[-1:]).argmax()),)
    assert engine.active[0].records == []


@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling.of(temperature=1.0, top_k=9, top_p=0.8, seed=4)], ids=str)
def test_the_margin_of_a_draw_is_that_of_its_logits(numerics: str, sampling: Sampling) -> None:
    target = tiny_target(4, layers=2, num_slots=2, numerics=numerics)  # type: ignore[arg-type]
    for ids in ([1, 2, 3], [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]):
        hidden, _ = target.forward(Rows([Span(0, 0, len(ids))], ids, CPU))
        expected = margin(target.logits(hidden[-1:])[0], sampling, len(ids), Noise(VOCAB))
        assert engine_of(target).margin(ids, sampling) == pytest.approx(expected, abs=1e-4)
