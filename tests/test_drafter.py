"""The draft's sessions: what they propose depends on the token ids so far and on nothing else."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from small_engine import ask

from twinspark.actors.draft.drafter import CATCH_UP_ROWS, Drafter, Wish
from twinspark.actors.loading import Progress, load_drafter
from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.specs import ActorSpec, DraftSettings, DraftSpec, TargetSpec
from twinspark.actors.target.host import TargetHost

SLOTS = 3
CONTEXT = 400
BLOCK = 7
SAMPLINGS = [Sampling(), Sampling.of(temperature=0.8, top_p=0.95, seed=9)]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


def make(shared: Path, variant: str = "deepspec/shallow_b4", verify_length: int = 4) -> Drafter:
    spec = DraftSpec(
        ActorSpec(str(shared / "golden/deepspec/targets/untied"), "cpu", CONTEXT, SLOTS, 1),
        DraftSettings(str(shared / "golden" / variant / "draft"), "float32", verify_length),
    )
    with torch.inference_mode():
        return load_drafter(spec, Progress())[0]


@pytest.fixture(scope="module")
def drafter(shared: Path) -> Drafter:
    return make(shared)


@pytest.fixture(scope="module")
def other(shared: Path) -> Drafter:
    return make(shared)


def text(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(500), k=length)


def rebuilt(drafter: Drafter, ids: list[int], sampling: Sampling, cap: int = BLOCK) -> tuple[int, ...]:
    """What a draft that has just been given `ids` proposes, once it has caught up."""
    drafter.clear()
    drafter.open(1, ids, sampling, CONTEXT)
    for _ in range(len(ids) // CATCH_UP_ROWS + 1):
        proposals, behind = drafter.step([Wish(1, (), cap)])
    assert not behind
    return proposals[1]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_session_proposes_what_a_rebuilt_one_does(
    drafter: Drafter, other: Drafter, sampling: Sampling, data: st.DataObject
) -> None:
    ids = text(60, data.draw(st.integers(0, 5)))
    cuts = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=8))
    have = data.draw(st.integers(0, 20))
    drafter.clear()
    drafter.open(7, ids[:have], sampling, CONTEXT)
    for cut in cuts:
        if have + cut > len(ids):
            break
        proposals, behind = drafter.step([Wish(7, tuple(ids[have : have + cut]), BLOCK)])
        have += cut
        assert behind == 0
        assert len(proposals[7]) == 4
        assert proposals[7] == rebuilt(other, ids[:have], sampling)


@pytest.mark.parametrize(
    "variant", ["deepspec/vanilla", "deepspec/rnn", "speculators/reduced_vocab_anchor", "speculators/full_vocab_dflash"]
)
def test_the_first_block_is_that_of_the_original_code(shared: Path, variant: str) -> None:
    drafter = make(shared, variant, verify_length=7)
    golden = load_file(shared / "golden" / variant / "golden.safetensors")
    for i in range(7):
        ids = [*golden[f"p{i}.prompt_ids"][0].tolist(), int(golden[f"p{i}.anchor_id"])]
        assert rebuilt(drafter, ids, Sampling()) == tuple(golden[f"p{i}.draft_tokens"][0].tolist())


def test_a_long_text_is_caught_up_in_chunks_and_the_others_go_on(drafter: Drafter, other: Drafter) -> None:
    long, short = text(3 * CATCH_UP_ROWS + 1, 1), text(50, 2)
    drafter.clear()
    drafter.open(1, short[:10], Sampling(), CONTEXT)
    assert drafter.step([Wish(1, (), BLOCK)])[1] == 0
    drafter.open(2, long[:-5], Sampling(), CONTEXT)
    have = 10
    told = []
    for new in ((), tuple(long[-5:]), (), ()):
        proposals, behind = drafter.step([Wish(1, tuple(short[have : have + 3]), BLOCK), Wish(2, new, BLOCK)])
        have += 3
        assert proposals[1] == rebuilt(other, short[:have], Sampling())
        told.append((len(proposals[2]), behind))
    assert told == [(0, 1), (0, 1), (4, 0), (4, 0)]
    assert proposals[2] == rebuilt(other, long, Sampling())


def test_two_long_texts_share_the_rows_the_shorter_first(drafter: Drafter, other: Drafter) -> None:
    longer, shorter = text(CATCH_UP_ROWS + 101, 1), text(CATCH_UP_ROWS + 1, 2)
    drafter.clear()
    drafter.open(1, longer, Sampling(), CONTEXT)
    drafter.open(2, shorter, Sampling(), CONTEXT)
    told = []
    for _ in range(3):
        proposals, behind = drafter.step([Wish(1, (), BLOCK), Wish(2, (), BLOCK)])
        told.append((len(proposals[1]), len(proposals[2]), behind))
    assert told == [(0, 4, 1), (0, 4, 1), (4, 4, 0)]
    assert proposals[1] == rebuilt(other, longer, Sampling())


def test_what_a_round_commits_is_never_put_off(
    drafter: Drafter, other: Drafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions that are in step do not wait for rows, however many there are of them."""
    monkeypatch.setattr("twinspark.actors.draft.drafter.CATCH_UP_ROWS", 4)
    texts = {n: text(40, n) for n in (1, 2)}
    drafter.clear()
    for n, ids in texts.items():
        drafter.open(n, ids[:1], Sampling(), CONTEXT)
    drafter.open(3, text(200, 3), Sampling(), CONTEXT)
    for have in range(1, 36, 5):
        wishes = [Wish(n, tuple(ids[have : have + 5]), BLOCK) for n, ids in texts.items()]
        proposals, behind = drafter.step([*wishes, Wish(3, (), BLOCK)])
        assert behind == 1
        assert [len(proposals[n]) for n in (1, 2, 3)] == [4, 4, 0]
    assert drafter.sessions[3].num_done == 7 * 4


def test_slots_are_used_again(drafter: Drafter, other: Drafter) -> None:
    drafter.clear()
    rng = random.Random(4)
    live: dict[int, list[int]] = {}
    for number in range(30):
        if len(live) == SLOTS:
            assert not drafter.room
            gone = rng.choice(list(live))
            del live[gone]
            drafter.close(gone)
        assert drafter.room
        live[number] = text(rng.randrange(2, 60), number)
        drafter.open(number, live[number], SAMPLINGS[number % 2], CONTEXT)
        assert len({session.slot for session in drafter.sessions.values()}) == len(live)
        proposals, _ = drafter.step([Wish(n, (), BLOCK) for n in live])
        for n, ids in live.items():
            assert proposals[n] == rebuilt(other, ids, SAMPLINGS[n % 2])
    with pytest.raises(KeyError):
        drafter.close(999)
    drafter.clear()
    assert drafter.room
    assert not drafter.sessions


@pytest.mark.parametrize("seed", range(3))
def test_several_sessions_at_once_propose_as_one_at_a_time(drafter: Drafter, other: Drafter, seed: int) -> None:
    rng = random.Random(seed)
    texts = {n: text(80, seed * 10 + n) for n in range(SLOTS)}
    have = {n: rng.randrange(1, 30) for n in texts}
    drafter.clear()
    for n, ids in texts.items():
        drafter.open(n, ids[: have[n]], SAMPLINGS[n % 2], CONTEXT)
    for _ in range(5):
        numbers = rng.sample(list(texts), k=rng.randrange(1, SLOTS + 1))
        new = {n: texts[n][have[n] : have[n] + rng.randrange(8)] for n in numbers}
        caps = {n: rng.randrange(8) for n in numbers}
        proposals, behind = drafter.step([Wish(n, tuple(new[n]), caps[n]) for n in numbers])
        assert not behind
        assert proposals.keys() == set(numbers)
        for n in numbers:
            have[n] += len(new[n])
            assert len(proposals[n]) == min(4, caps[n])
            assert proposals[n] == rebuilt(other, texts[n][: have[n]], SAMPLINGS[n % 2], caps[n])


def test_caps_verify_length_and_context_bound_a_proposal(shared: Path) -> None:
    drafter = make(shared, verify_length=3)
    ids = text(40)
    for cap in range(6):
        assert len(rebuilt(drafter, ids, Sampling(), cap)) == min(cap, 3)
    drafter.clear()
    drafter.open(1, ids[:37], Sampling(), 40)
    lengths = []
    for i in range(4):
        proposals, _ = drafter.step([Wish(1, tuple(ids[36 + i : 36 + i + (i > 0)]), BLOCK)])
        lengths.append(len(proposals[1]))
    assert lengths == [3, 2, 1, 0]
    drafter.open(2, [], Sampling(), CONTEXT)
    assert drafter.step([Wish(2, (), BLOCK)]) == ({2: ()}, 0)
    assert drafter.step([]) == ({}, 0)
    full = text(CONTEXT)
    assert rebuilt(drafter, full[:-1], Sampling()) == rebuilt(drafter, full[:-1], Sampling(), 1)
    assert rebuilt(drafter, full, Sampling()) == ()


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("variant", ["deepspec/shallow_b4", "deepspec/vanilla"])
def test_recomputed_taps_give_the_drafts_that_read_ones_give(shared: Path, variant: str, sampling: Sampling) -> None:
    """A colocated draft, in a batch of requests that join and leave, against a draft rebuilt from token ids alone."""
    target = str(shared / "golden/deepspec/targets/untied")
    colocated = DraftSettings(str(shared / "golden" / variant / "draft"), "float32", 4)
    host = TargetHost(TargetSpec(ActorSpec(target, "cpu", CONTEXT, 2, 1), "float32", "fast"))
    requests = {n: ask(n, text(3 + 60 * n, n), 25, sampling) for n in range(4)}

    async def body() -> dict[int, list[tuple[int, tuple[int, ...], tuple[int, ...]]]]:
        await host.load()
        await host.colocate(colocated)
        await host.submit(list(requests.values()))
        rounds: dict[int, list[tuple[int, tuple[int, ...], tuple[int, ...]]]] = {}
        while len(rounds) < len(requests):
            for commit in await host.commits():
                if commit.finish_reason is not None:
                    report = await host.collect(commit.number)
                    rounds[commit.number] = [
                        (r.anchor_position, r.draft_tokens, report.token_ids) for r in report.rounds
                    ]
        return rounds

    rounds = asyncio.run(body())
    host.compute.close()
    drafter = make(shared, variant)
    num_compared = 0
    for number, request in requests.items():
        for anchor_position, drafted, token_ids in rounds[number]:
            ids = [*request.prompt, *token_ids][: anchor_position + 1]
            cap = len(request.prompt) + 25 - len(ids) - 1
            assert drafted == rebuilt(drafter, ids, sampling, cap)
            num_compared += len(drafted)
    assert num_compared > 100
