"""Texts that the target writes of itself: whose turn it is, what is forced, and what of it survives a stop."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_engine import answer as decode
from small_engine import ask, engine_of, golden_target, tiny_target

from twinspark.actors.errors import CheckpointError
from twinspark.deploy.distill.anchors import first_run, random_anchors
from twinspark.deploy.distill.batch_net import BatchNet
from twinspark.deploy.distill.corpus import HELD_OUT_EVERY, About, Corpus
from twinspark.deploy.distill.run import _pools, _prompt
from twinspark.deploy.distill.settings import TextSettings
from twinspark.deploy.distill.turns import Turns, turns_of
from twinspark.deploy.distill.writer import Writer
from twinspark.deploy.tokenizer import open_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")
ABOUT = About("t" * 64, "m" * 64, 50, 12, 4, (0.0, 0.8), "", 3)
NO_TURNS = Turns((7, 8), (1, 2, 3), (4, 5), ())


def test_the_turns_of_the_embedded_model(demo_model: Path) -> None:
    tokenizer = open_tokenizer(demo_model)
    turns = turns_of(tokenizer)
    assert tokenizer.decode(turns.opening, skip_special=False).endswith("<|im_end|>\n<|im_start|>user\n")
    assert tokenizer.decode(turns.after_user, skip_special=False) == "\n<|im_start|>assistant\n"
    assert tokenizer.decode(turns.after_answer, skip_special=False) == "\n<|im_start|>user\n"
    conversation = [("user", "Hi!"), ("assistant", "Hello."), ("user", "Bye")]
    end = turns.end_ids[0]
    parts = [turns.opening, (turns.after_user), (turns.after_answer)]
    ids = [
        i
        for (_, text), before in zip(conversation, parts, strict=True)
        for i in (*before, *tokenizer.encode(text), end)
    ]
    expected = tokenizer.chat([{"role": role, "content": text} for role, text in conversation])
    assert [*ids, *turns.after_user] == expected


def test_answers_at_temperature_zero_are_the_targets_own(shared: Path) -> None:
    target = golden_target(shared, num_slots=4)
    prompts = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7], [400]]
    writer = Writer(BatchNet(target), NO_TURNS, num_texts=4, length=40)
    ids = writer.write(prompts, [0.0] * 4, 5)
    assert ids.dtype == torch.int32
    requests = [ask(i, prompt, 40 - len(prompt)) for i, prompt in enumerate(prompts)]
    for i, report in decode(engine_of(target), requests).items():
        assert ids[i].tolist() == [*prompts[i], *report.token_ids]


def test_turns_change_hands_where_one_ends() -> None:
    """A target that only looks at the last token, with an end that comes soon."""
    target = tiny_target(memoryless=True, num_slots=1, context=200)
    turns = Turns((30, 31), (40, 41, 42), (43,), (10, 11, 12, 13, 14))
    writer = Writer(BatchNet(target), turns, num_texts=64, length=200)
    ids = writer.write([()] * 32 + [(20, 21)] * 32, [1.0] * 64, 1)
    assert ids[:32, :2].tolist() == [[30, 31]] * 32
    assert ids[32:, :2].tolist() == [[20, 21]] * 32
    num_turns = 0
    for number, row in enumerate(ids.tolist()):
        at, role = 2, 0 if number < 32 else 1
        forced = (turns.after_user, turns.after_answer)
        while True:
            end = next((i for i in range(at, 200) if row[i] in turns.end_ids), None)
            if end is None:
                break
            said = row[end + 1 : end + 1 + len(forced[role])]
            assert tuple(said) == forced[role][: len(said)], (number, end)
            at, role = end + 1 + len(forced[role]), 1 - role
            num_turns += 1
    assert num_turns > 200


def test_which_tokens_are_answers() -> None:
    turns = Turns((30, 31), (40, 41), (50,), (9,))
    rows = [
        #  opening, user      , forced, answer , forced, user, forced, answer is cut
        ([30, 31, 1, 2, 9, 40, 41, 3, 4, 9, 50, 5, 9, 40, 41, 6], range(7, 10), range(15, 16)),
        #  a prompt whose words look like half of what is forced; an empty answer
        ([30, 31, 40, 1, 9, 40, 41, 9, 50, 41, 2, 9, 40, 41, 7, 9], range(7, 8), range(14, 16)),
        ([30, 31] + [1] * 14, range(0), range(0)),
    ]
    found = turns.answers(torch.tensor([ids for ids, *_ in rows]))
    for (_, *spans), row in zip(rows, found.tolist(), strict=True):
        assert [i for i, is_answer in enumerate(row) if is_answer] == [i for span in spans for i in span]


@settings(max_examples=200, deadline=None)
@given(st.integers(12, 40), st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**31))
def test_anchors_are_where_answers_are(length: int, count: int, block_size: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    wanted = torch.rand(5, length, generator=random) < 0.3
    anchors = random_anchors(wanted, count, block_size, random)
    assert anchors.min() >= 1
    assert anchors.max() + block_size < length
    for row, places in zip(wanted, anchors, strict=True):
        assert len(set(places.tolist())) == len(places) == min(count, length - block_size - 1)
        assert places.tolist() == sorted(places.tolist())
        there = int(row[2 : length - block_size + 1].sum())
        assert int(row[places + 1].sum()) == min(there, len(places))


def test_a_run_of_anchors_is_where_the_first_answer_is_long_enough() -> None:
    rows = ["..xxxxxx..", "xxxx......", "..xxx.xxxx", ".....xxxxx", "..........", "xxxxxxxxxx"]
    wanted = torch.tensor([[mark == "x" for mark in row] for row in rows])
    texts, anchors = first_run(wanted, 3, 2)
    assert texts.tolist() == [0, 3, 5]
    assert anchors.tolist() == [[2, 3, 4], [5, 6, 7], [0, 1, 2]]
    assert [len(part) for part in first_run(wanted, 9, 2)] == [0, 0]


def test_prompts_of_held_out_texts_are_no_others() -> None:
    prompts = [[i] for i in range(100)]
    texts = TextSettings(prompts="p", prompts_share=0.25, temperatures=(0.0, 0.5))
    opened = [tuple(_prompt(i, _pools(prompts), texts, 1)) for i in range(31 * 400)]
    assert opened == [tuple(_prompt(i, _pools(prompts), texts, 1)) for i in range(31 * 400)]
    held_out = {ids for ids in opened[::HELD_OUT_EVERY] if ids}
    others = {ids for i, ids in enumerate(opened) if ids and i % HELD_OUT_EVERY}
    assert held_out == {(0,), (31,), (62,), (93,)}
    assert held_out | others == {(i,) for i in range(100)}
    assert not held_out & others
    assert sum(bool(ids) for ids in opened) == len(opened) // 4
    assert {i % 2 for i, ids in enumerate(opened) if ids} == {0, 1}
    assert {tuple(_prompt(i, _pools([[5]]), texts, 1)) for i in range(62)} == {(), (5,)}
    assert _prompt(3, _pools([]), texts, 1) == ()


def test_temperatures_are_the_answers_and_seeds_are_kept() -> None:
    target = tiny_target(num_slots=1, context=40)
    writer = Writer(BatchNet(target), NO_TURNS, num_texts=8, length=40)
    prompts = [(5,)] * 8
    cold_and_hot = writer.write(prompts, [0.0, 1.0] * 4, 1)
    assert len({tuple(row) for row in cold_and_hot[::2].tolist()}) == 1
    assert len({tuple(row) for row in cold_and_hot[1::2].tolist()}) == 4
    assert torch.equal(cold_and_hot, writer.write(prompts, [0.0, 1.0] * 4, 1))
    assert not torch.equal(cold_and_hot, writer.write(prompts, [0.0, 1.0] * 4, 2))
    with pytest.raises(ValueError, match="8 prompts shorter than 40"):
        writer.write([(5,) * 40] * 8, [0.0] * 8, 1)


def some_texts(seed: int) -> torch.Tensor:
    return torch.randint(0, 50, (4, 12), dtype=torch.int32, generator=torch.Generator().manual_seed(seed))


def test_a_corpus_goes_on_where_it_stopped(tmp_path: Path) -> None:
    corpus = Corpus.create(tmp_path / "c", ABOUT)
    for seed in range(9):
        corpus.add(some_texts(seed))
    (tmp_path / "c" / ".texts-00009.safetensors.77").write_bytes(b"half of one")
    again = Corpus.create(tmp_path / "c", ABOUT)
    assert again.num_shards == 9
    again.add(some_texts(9))
    train, held_out = Corpus.open(tmp_path / "c").texts()
    whole = torch.cat([some_texts(seed) for seed in range(10)])
    assert torch.equal(held_out, whole[::HELD_OUT_EVERY])
    assert len(train) + len(held_out) == 40
    assert not {tuple(r) for r in train.tolist()} & {tuple(r) for r in held_out.tolist()}


@pytest.mark.parametrize(
    ("change", "words"),
    [({"tokenizer": "u" * 64}, "tokenizer"), ({"length": 13}, "length 13, got 12"), ({"seed": 4}, "seed 4, got 3")],
)
def test_a_corpus_of_something_else(tmp_path: Path, change: dict[str, object], words: str) -> None:
    Corpus.create(tmp_path, ABOUT)
    with pytest.raises(CheckpointError, match=words):
        Corpus.create(tmp_path, replace(ABOUT, **change))  # type: ignore[arg-type]


def test_damaged_shards(tmp_path: Path) -> None:
    corpus = Corpus.create(tmp_path, ABOUT)
    with pytest.raises(CheckpointError, match="at least one shard"):
        corpus.texts()
    corpus.add(some_texts(1) + 50)
    with pytest.raises(CheckpointError, match="ids from 0 to 49"):
        corpus.texts()
    [shard] = tmp_path.glob("*.safetensors")
    shard.write_bytes(shard.read_bytes()[:-7])
    with pytest.raises(CheckpointError, match="damaged"):
        corpus.texts()
    (tmp_path / "corpus.json").write_text("{}")
    with pytest.raises(CheckpointError, match="must describe a corpus"):
        Corpus.open(tmp_path)


FULL = """
import resource, signal, sys, torch
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_distill_texts import ABOUT, some_texts
from twinspark.deploy.distill.corpus import Corpus
corpus = Corpus.create(Path(sys.argv[1]), ABOUT)
corpus.add(some_texts(0))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    corpus.add(some_texts(1))
except OSError as error:
    print("OSError", error)
"""


def test_a_disk_that_is_full_leaves_no_half_shard(tmp_path: Path) -> None:
    """Stood for by a limit on the size of files, which a process may set itself."""
    code = FULL.format(tests=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("OSError"), done.stdout + done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.json", "texts-00000.safetensors"]
    assert torch.equal(torch.cat(Corpus.open(tmp_path).texts()).sort(dim=0).values, some_texts(0).sort(dim=0).values)
