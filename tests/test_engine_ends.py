"""Where a request ends: limits, stop tokens, reports cut by a stop string; and what is not begun at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from small_engine import VOCAB, Scripted, answer, ask, engine_of, step, tiny_target, tokens_of

from twinspark.actors.errors import RequestError
from twinspark.actors.nets.decoder import Decoder
from twinspark.actors.nets.rows import Span
from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.target.engine import Proposed
from twinspark.actors.target.request import MAX_NUMBER, Request
from twinspark.actors.wire import MAX_SESSION


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tiny() -> Decoder:
    return tiny_target(1, layers=2, num_slots=3)


@pytest.mark.parametrize("verify_length", [0, 3, 9])
def test_the_limits_of_a_request_and_of_the_context(tiny: Decoder, verify_length: int) -> None:
    context = tiny.cache.capacity
    prompt = [1] * (context - 7)
    requests = [ask(0, prompt, 100), ask(1, [2], 1), ask(2, [2], 2), ask(3, [2], 10), ask(4, [0] * (context - 1), 5)]
    expected = tokens_of(answer(engine_of(tiny), [ask(r.number, r.prompt, 10) for r in requests]))
    expected[3] += (0,) * 9
    reports = answer(engine_of(tiny), requests, Scripted(expected, [(verify_length, [0])]))
    assert {n: len(report.token_ids) for n, report in reports.items()} == {0: 7, 1: 1, 2: 2, 3: 10, 4: 1}
    assert {report.finish_reason for report in reports.values()} == {"length"}
    for request in requests:
        for record in reports[request.number].rounds:
            made = record.anchor_position + 1 - len(request.prompt)
            left = min(request.max_new_tokens - made, context - record.anchor_position - 1)
            assert len(record.draft_tokens) <= left - 1


@pytest.fixture(scope="module")
def varied(tiny: Decoder) -> tuple[Request, tuple[int, ...]]:
    """A request whose twelve tokens are all different, so that each can be a stop token, and those tokens."""
    for seed in range(1000):
        request = ask(0, [7, 8], 12, Sampling.of(temperature=1.5, seed=seed))
        tokens = answer(engine_of(tiny), [request])[0].token_ids
        if len(set(tokens)) == 12:
            return request, tokens
    raise AssertionError("some seed must give twelve different tokens")


@pytest.mark.parametrize("place", range(8))
def test_a_stop_token_inside_an_accepted_block_ends_everything_there(
    tiny: Decoder, varied: tuple[Request, tuple[int, ...]], place: int
) -> None:
    """`place` 0 is the token of the prefill; 1 to 6 are drafts of one block, 7 is its bonus."""
    request, plain = varied
    engine = engine_of(tiny)
    engine.add(replace(request, stop_token_ids=(VOCAB - 1, plain[place])), 0.0)
    taken: tuple[int, ...] = ()
    while not engine.idle:
        (commit,) = step(engine, Scripted({0: plain}, [(6, [])])).commits
        taken += commit.ids
    assert taken == plain[: place + 1]
    assert commit.finish_reason == "stop"
    active = engine.active[0]
    assert active.ids == [7, 8, *plain[: place + 1]]
    assert active.num_done == 2 + place
    report = active.report()
    assert report.token_ids == taken
    assert sum(record.num_committed for record in report.rounds) == place
    assert sum(record.num_accepted for record in report.rounds) == min(place, 6)


def test_what_a_step_kept_is_what_was_committed(tiny: Decoder, varied: tuple[Request, tuple[int, ...]]) -> None:
    """The taps of these rows become a colocated draft's context: rows behind a mistake or a stop are not among them."""
    request, plain = varied
    engine = engine_of(tiny)
    engine.add(replace(request, stop_token_ids=(plain[6],)), 0.0)
    engine.add(replace(request, number=1), 0.0)
    assert [span for span, _ in step(engine).kept] == [Span(0, 0, 2), Span(1, 0, 2)]
    wrong = (plain[2] + 1) % VOCAB
    draft = Proposed({0: plain[1:4], 1: (plain[1], wrong, plain[3])})
    stepped = step(engine, lambda decoding, context: draft)
    assert stepped.kept == ((Span(0, 2, 4), 0), (Span(1, 2, 2), 4))
    draft = Proposed({0: plain[5:9]})
    stepped = step(engine, lambda decoding, context: draft)
    assert stepped.commits[0].ids == plain[5:7]
    assert stepped.kept == ((Span(0, 6, 2), 0), (Span(1, 4, 1), 5))


def test_a_report_is_cut_where_a_stop_string_was_found(tiny: Decoder) -> None:
    plain = answer(engine_of(tiny), [ask(0, [3], 21)])[0].token_ids
    engine = engine_of(tiny)
    engine.add(ask(0, [3], 21), 0.0)
    while not engine.idle:
        step(engine, Scripted({0: plain}, [(3, [])]))
    active = engine.active[0]
    assert [record.num_committed for record in active.report().rounds] == [4, 4, 4, 4, 4]
    for num_tokens in range(22):
        report = active.report(num_tokens)
        assert report.token_ids == plain[:num_tokens]
        assert report.finish_reason == "stop"
        assert sum(record.num_committed for record in report.rounds) == max(0, num_tokens - 1)
        assert len(report.rounds) == -(-max(0, num_tokens - 1) // 4)
        for record in report.rounds:
            assert record.num_accepted == min(3, record.num_committed)
    whole = active.report()
    assert whole.finish_reason == "length"
    assert active.report(22) == whole


def test_times_of_a_report_end_at_the_cut(tiny: Decoder) -> None:
    engine = engine_of(tiny)
    engine.add(ask(0, [3], 9), 0.0)
    while not engine.idle:
        step(engine)
    active = engine.active[0]
    active.submitted_s, active.commit_times_s = 10.0, [11.0 + i / 4 for i in range(9)]
    assert (active.report().ttft_us, active.report().decode_us) == (1_000_000, 2_000_000)
    assert active.report(5).decode_us == 1_000_000
    assert (active.report(0).ttft_us, active.report(0).decode_us) == (0, 0)


def test_what_a_round_cost_is_kept_with_it(tiny: Decoder) -> None:
    engine = engine_of(tiny)
    for n in (0, 1):
        engine.add(ask(n, [n], 9), 0.0)
    step(engine)
    offer = Proposed({0: (1,)}, draft_us=50, link_us=20, bytes_to_draft={0: 11, 1: 12}, bytes_to_target={0: 5})
    step(engine, lambda decoding, context: offer)
    first, second = engine.active[0].records[0], engine.active[1].records[0]
    assert (first.draft_us, first.link_us, first.bytes_to_draft, first.bytes_to_target) == (50, 20, 11, 5)
    assert (second.draft_us, second.bytes_to_draft, second.bytes_to_target) == (50, 12, 0)
    assert (first.round, second.draft_tokens, first.anchor_position) == (0, (), 1)
    assert first.verify_us == second.verify_us > 0


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (ask(1, [], 5), "at least one token"),
        (ask(1, [1] * 64, 5), "shorter than the context of 64, got 64"),
        (ask(1, [1], 0), "max_new_tokens must be at least 1, got 0"),
        (ask(1, [1, VOCAB], 5), "token ids must be from 0 to 49"),
        (ask(1, [-1], 5), "token ids must be from 0 to 49"),
        (ask(2, [1], 5), "unique, got 2 twice"),
        (ask(3, [1], 5), "unique, got 3 twice"),
        (ask(-1, [1], 5), "number must be from 0"),
        (ask(MAX_NUMBER + 1, [1], 5), "number must be from 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_served_is_refused(request_: Request, why: str) -> None:
    engine = engine_of(tiny_target(num_slots=1))
    engine.add(ask(2, [1], 9), 0.0)
    engine.add(ask(3, [1], 9), 0.0)
    step(engine)
    with pytest.raises(RequestError, match=why):
        engine.check(request_)
    engine.check(ask(MAX_NUMBER, [1] * 63, 1))
    assert MAX_NUMBER == MAX_SESSION, "a request's number is its session's on the wire"
