"""The embedded pair on a real local Ray, in every placement that needs no GPU: the same tokens whatever drafts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from pairs import check_same, demo_tokenizer, expected_greedy, ids_of, run_all, sixteen, spec_of

from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.target.request import Report, Request
from twinspark.actors.wire.account import TOKEN_ID, account_recording
from twinspark.cluster.pair import Pair
from twinspark.cluster.ray_session import ray_session
from twinspark.deploy.tokenizer import Tokenizer

VOCAB_SIZE = 49152
SETTINGS: dict[str, tuple[str, str]] = {
    "off": ("off", "stream"),
    "cpu over stream": ("cpu", "stream"),
    "cpu over ray": ("cpu", "ray"),
    "colocated": ("colocated", "stream"),
}
DRAFTING = [name for name in SETTINGS if name != "off"]
REMOTE = [name for name in SETTINGS if name.startswith("cpu")]
Work = Callable[[Tokenizer], list[Request]]


def greedy(tokenizer: Tokenizer) -> list[Request]:
    return [Request(i, e.prompt_ids, Sampling(), 96, tokenizer.eos_ids) for i, e in enumerate(expected_greedy())]


# As many prompts as a draft catches up with in its first round: beyond that it would draft nothing in it.
AT_ONCE: dict[Work, int] = {greedy: 2}


def twenty_seeds(tokenizer: Tokenizer) -> list[Request]:
    """More than there are slots: the last ones wait for the first to end."""
    prompts = [e.prompt_ids for e in expected_greedy()]
    return [
        Request(seed, prompts[seed % len(prompts)], Sampling.of(temperature=0.8, seed=seed), 24, tokenizer.eos_ids)
        for seed in range(1, 21)
    ]


def sixteen_at_once(tokenizer: Tokenizer) -> list[Request]:
    """All end where their text ends or earlier, but the greedy first one: 512 tokens, whatever they are."""
    requests = sixteen(tokenizer, num_tokens=lambda i: 6 + 2 * i, stop=tokenizer.eos_ids)
    return [Request(0, requests[0].prompt, Sampling(), 512), *requests[1:]]


class Lab:
    """The pairs, each up for the whole module, and what each answered to each work so far."""

    def __init__(self, runner: asyncio.Runner, pairs: dict[str, Pair]) -> None:
        self.runner, self.pairs, self.tokenizer = runner, pairs, demo_tokenizer()
        self._answers: dict[tuple[str, Work], list[Report]] = {}

    def answers(self, name: str, work: Work) -> list[Report]:
        if (name, work) not in self._answers:
            requests = work(self.tokenizer)
            at_once = AT_ONCE.get(work, len(requests))
            self._answers[name, work] = [
                report
                for first in range(0, len(requests), at_once)
                for report in self.runner.run(run_all(self.pairs[name], requests[first : first + at_once]))
            ]
        return self._answers[name, work]

    def check_same_as_off(self, name: str, work: Work) -> None:
        plain, drafted = self.answers("off", work), self.answers(name, work)
        requests = work(self.tokenizer)
        self.runner.run(check_same(self.pairs["off"], requests, plain, drafted, f"{name}, {work.__name__}"))
        assert sum(r.num_accepted for report in drafted for r in report.rounds) > 0


@pytest.fixture(scope="module")
def session(demo_model: Path) -> Iterator[None]:
    with ray_session(None, num_cpus=8, num_gpus=0):
        yield


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recordings")


@pytest.fixture(scope="module")
def lab(session: None, recordings: Path) -> Iterator[Lab]:
    async def bring_up(stack: AsyncExitStack) -> dict[str, Pair]:
        return {
            name: await stack.enter_async_context(
                Pair.start(spec_of(place, str(recordings / name) if place == "cpu" else None, transport=transport))
            )
            for name, (place, transport) in SETTINGS.items()
        }

    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            yield Lab(runner, runner.run(bring_up(stack)))
        finally:
            runner.run(stack.aclose())


@pytest.mark.parametrize("name", SETTINGS)
def test_greedy_ids_are_those_of_the_reference(lab: Lab, name: str) -> None:
    assert ids_of(lab.answers(name, greedy)) == [e.greedy_ids for e in expected_greedy()]


@pytest.mark.parametrize("name", DRAFTING)
def test_greedy_rounds_are_those_of_the_reference(lab: Lab, name: str) -> None:
    answers = lab.answers(name, greedy)
    assert lab.pairs[name].num_draft_restarts == 0, "this machine is so busy that a draft was taken for hung"
    for report, expected in zip(answers, expected_greedy(), strict=True):
        num_new = 1  # the first token comes from the prefill
        assert len(report.rounds) == len(expected.rounds)
        for ours, theirs in zip(report.rounds, expected.rounds, strict=True):
            # Only here the reference drafts more: it does not cap to what is left of the request.
            length = min(7, 96 - num_new - 1)
            assert ours.anchor_position == theirs["anchor_position"]
            assert ours.draft_tokens == tuple(theirs["draft_tokens"][:length])
            assert ours.num_accepted == min(theirs["accepted"], length)
            num_new += ours.num_committed
        assert num_new == len(expected.greedy_ids)


def test_off_drafts_nothing(lab: Lab) -> None:
    assert {r.draft_tokens for report in lab.answers("off", greedy) for r in report.rounds} == {()}


@pytest.mark.parametrize("name", DRAFTING)
def test_seeded_samples_are_those_of_off(lab: Lab, name: str) -> None:
    lab.check_same_as_off(name, twenty_seeds)


def test_other_seeds_give_other_samples(lab: Lab) -> None:
    by_prompt: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for request, report in zip(twenty_seeds(lab.tokenizer), lab.answers("off", twenty_seeds), strict=True):
        by_prompt.setdefault(request.prompt, []).append(report.token_ids)
    assert all(len(set(samples)) == len(samples) == 5 for samples in by_prompt.values())


@pytest.mark.parametrize("name", DRAFTING)
def test_sixteen_requests_and_a_long_one_are_those_of_off(lab: Lab, name: str) -> None:
    lab.check_same_as_off(name, sixteen_at_once)
    assert len(lab.answers(name, sixteen_at_once)[0].token_ids) == 512


def test_alone_and_in_company_are_the_same(lab: Lab) -> None:
    """Off, one request at a time, against all sixteen at once."""
    off = lab.pairs["off"]

    async def one_by_one() -> list[Report]:
        return [report for request in sixteen_at_once(lab.tokenizer)[1:4] for report in await run_all(off, [request])]

    together = lab.answers("off", sixteen_at_once)[1:4]
    alone = lab.runner.run(one_by_one())
    lab.runner.run(check_same(off, sixteen_at_once(lab.tokenizer)[1:4], together, alone, "alone"))


@pytest.mark.parametrize("name", REMOTE)
def test_every_byte_between_the_actors_is_a_token_id_or_a_named_integer(lab: Lab, recordings: Path, name: str) -> None:
    num_tokens = sum(
        len(report.token_ids) for work in (greedy, twenty_seeds, sixteen_at_once) for report in lab.answers(name, work)
    )
    names: set[str] = set()
    totals = {}
    for direction in ("out", "in"):
        data = (recordings / f"{name}.{direction}").read_bytes()
        ranges = account_recording(data, VOCAB_SIZE)
        end = 0
        for r in ranges:
            assert r.start == end < r.end
            assert r.low <= r.value <= r.high
            assert r.meaning
            assert not r.meaning.startswith(TOKEN_ID) or (r.low, r.high) == (0, VOCAB_SIZE - 1)
            end = r.end
        assert end == len(data) > num_tokens
        id_bytes = sum(r.end - r.start for r in ranges if r.meaning.startswith(TOKEN_ID))
        totals[direction] = (len(data), id_bytes)
        names |= {r.name.split("[")[0].split(".")[0] for r in ranges}
    assert names == {"frame_bytes", "frame", "Hello", "Welcome", "Open", "Close", "Round", "Proposal"}
    for direction, (all_bytes, id_bytes) in totals.items():
        per_token = all_bytes / num_tokens
        print(f"{name} {direction}: {per_token:.1f} bytes per generated token, {id_bytes / num_tokens:.1f} of them ids")


@pytest.mark.parametrize("name", REMOTE)
def test_the_bytes_told_are_the_bytes_recorded(lab: Lab, recordings: Path, name: str) -> None:
    """Told per request and round; greetings, goodbyes and nothing else are not part of a round."""
    works = (greedy, twenty_seeds, sixteen_at_once)
    rounds = [r for work in works for report in lab.answers(name, work) for r in report.rounds]
    told = {"out": sum(r.bytes_to_draft for r in rounds), "in": sum(r.bytes_to_target for r in rounds)}
    for direction, count in told.items():
        data = (recordings / f"{name}.{direction}").read_bytes()
        assert 0 <= len(data) - count < 40 * (4 + 20 + 16)


@pytest.mark.parametrize(
    ("dtype", "place", "draft_dtype"), [("float32", "colocated", "bfloat16"), ("bfloat16", "cpu", "int8")]
)
def test_exact_numerics_are_strictly_equal(session: None, dtype: str, place: str, draft_dtype: str) -> None:
    """Alone without a draft, or in company with one of any precision: not a token differs."""

    async def run() -> None:
        tokenizer = demo_tokenizer()
        requests = sixteen(tokenizer, num_tokens=lambda i: 8 + 4 * (i % 4), stop=tokenizer.eos_ids)[:4]
        async with Pair.start(spec_of("off", dtype=dtype, numerics="exact")) as pair:
            plain = [ids for request in requests for ids in ids_of(await run_all(pair, [request]))]
        async with Pair.start(spec_of(place, dtype=dtype, numerics="exact", dspark_dtype=draft_dtype)) as pair:
            reports = await run_all(pair, requests)
        assert ids_of(reports) == plain
        assert sum(r.num_accepted for report in reports for r in report.rounds) > 0

    asyncio.run(run())
