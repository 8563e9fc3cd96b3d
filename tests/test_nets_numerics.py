"""`exact` numerics: a row's logits are the same bits whatever else is in the pass. `fast`: close, same argmax."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
import torch
from tiny_targets import VOCAB, save_tiny
from torch import Tensor

from twinspark.actors.checkpoint.opening import open_target
from twinspark.actors.nets import linear
from twinspark.actors.nets.decoder import Decoder
from twinspark.actors.nets.linear import PackedLinear, PlainLinear, Precision
from twinspark.actors.nets.rows import Rows, Span
from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.target.engine import Engine
from twinspark.deploy.embedded import demo_head_path

CPU = torch.device("cpu")
SLOTS = 3
Pass = tuple[tuple[int, int], ...]  # (slot, tokens) parts in the order of the rows; a slot goes on where it was

TINY_LENGTH = 30
BLOCKS: dict[str, list[Pass]] = {
    f"blocks of {n}": [((0, min(n, TINY_LENGTH - at)),) for at in range(0, TINY_LENGTH, n)] for n in range(2, 10)
}
PREFILL: dict[str, list[Pass]] = {
    "at once": [((0, 30),)],
    "chunks of 13": [((0, 13),), ((0, 13),), ((0, 4),)],
}
MIXED: dict[str, list[Pass]] = {
    "joining and leaving": [((0, 5), (1, 30)), ((2, 3), (0, 4)), ((0, 1), (2, 1)), ((0, 20), (2, 26))],
    "other order": [((2, 11), (1, 2), (0, 7)), ((1, 1), (0, 1)), ((0, 22), (2, 19), (1, 27))],
    "decoding beside a prefill": [((0, 20),), ((0, 6), (2, 25)), ((0, 4), (1, 1), (2, 5)), ((1, 29),)],
}
SMOL_LENGTH = 10
SMOL: dict[str, list[Pass]] = {
    "blocks of 3": [((0, 3),), ((0, 3),), ((0, 3),), ((0, 1),)],
    "a block of 9": [((0, 9),), ((0, 1),)],
    "mixed": [((1, 3), (0, 4)), ((0, 2), (2, 4), (1, 2)), ((1, 1), (0, 4))],
}


@dataclass(frozen=True)
class Exact:
    """A network under exact numerics, a text for every slot, and the logits of each when run one row at a time."""

    decoder: Decoder
    texts: tuple[Sequence[int], ...]

    @cached_property
    def one_by_one(self) -> list[Tensor]:
        length = len(self.texts[0])
        return [self.run([((slot, 1),)] * length)[slot] for slot in range(len(self.texts))]

    def run(self, passes: Sequence[Pass]) -> dict[int, Tensor]:
        """Logits by slot."""
        done = dict.fromkeys(range(SLOTS), 0)
        got: dict[int, list[Tensor]] = {slot: [] for slot in done}
        for parts in passes:
            spans: list[Span] = []
            ids: list[int] = []
            for slot, count in parts:
                spans.append(Span(slot, done[slot], count))
                ids += self.texts[slot][done[slot] : done[slot] + count]
                done[slot] += count
            hidden, _ = self.decoder.forward(Rows(spans, ids, CPU))
            logits = torch.split(self.decoder.logits(hidden), [count for _, count in parts])
            for (slot, _), rows in zip(parts, logits, strict=True):
                got[slot].append(rows)
        return {slot: torch.cat(rows) for slot, rows in got.items() if rows}

    def check(self, passes: Sequence[Pass]) -> None:
        for slot, logits in self.run(passes).items():
            assert torch.equal(logits, self.one_by_one[slot][: len(logits)]), f"slot {slot}"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(1)


def some_ids(count: int, vocab: int, seed: int) -> list[int]:
    ids: list[int] = torch.randint(17, vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return ids


def tiny_exact(folder: Path, precision: Precision) -> Exact:
    target = open_target(folder)
    decoder = Decoder(
        target.config,
        target.tensors.load,
        precision=precision,
        numerics="exact",
        num_slots=SLOTS,
        context=64,
        device=CPU,
    )
    return Exact(decoder, tuple(some_ids(TINY_LENGTH, VOCAB, seed) for seed in range(SLOTS)))


@pytest.fixture(scope="module", params=["qwen3", "llama-biases"])
def tiny_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    save_tiny(request.param, folder)
    return folder


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def tiny(request: pytest.FixtureRequest, tiny_folder: Path) -> Exact:
    return tiny_exact(tiny_folder, request.param)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def smol(request: pytest.FixtureRequest, demo_model: Path) -> Exact:
    target = open_target(demo_model)
    decoder = Decoder(
        target.config,
        target.tensors.load,
        precision=request.param,
        numerics="exact",
        num_slots=SLOTS,
        context=64,
        device=CPU,
    )
    return Exact(decoder, tuple(some_ids(SMOL_LENGTH, target.config.vocab_size, seed) for seed in range(SLOTS)))


@pytest.mark.parametrize("name", [*BLOCKS, *PREFILL, *MIXED])
def test_tiny_is_exact(tiny: Exact, name: str) -> None:
    tiny.check({**BLOCKS, **PREFILL, **MIXED}[name])


@pytest.mark.parametrize("name", ["blocks of 5", "at once", "other order"])
def test_tiny_is_exact_with_another_thread_count(tiny: Exact, name: str) -> None:
    expected = tiny.one_by_one
    torch.set_num_threads(2)
    assert expected is tiny.one_by_one  # made with one thread
    tiny.check({**BLOCKS, **PREFILL, **MIXED}[name])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["blocks of 3", "blocks of 9", "chunks of 13", *MIXED])
def test_tiny_is_exact_without_packed_weights(
    tiny_folder: Path, precision: Precision, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "can_pack", lambda _dtype: False)
    plain = tiny_exact(tiny_folder, precision)
    assert isinstance(plain.decoder.lm_head, PlainLinear)
    plain.check({**BLOCKS, **PREFILL, **MIXED}[name])


def test_logits_of_some_rows_in_another_order(tiny: Exact) -> None:
    ids = tiny.texts[0]
    hidden, _ = tiny.decoder.forward(Rows([Span(0, 0, len(ids))], ids, CPU))
    some = [28, 3, 3, 11, 0, 29, 17, 5, 9, 1, 12]
    assert torch.equal(tiny.decoder.logits(hidden[some]), tiny.one_by_one[0][some])


def test_taps_are_exact_too(tiny: Exact) -> None:
    ids = tiny.texts[0]
    taps = (-1, 0, 2)
    _, together = tiny.decoder.forward(Rows([Span(0, 0, len(ids))], ids, CPU), taps)
    alone = [tiny.decoder.forward(Rows([Span(1, i, 1)], ids[i : i + 1], CPU), taps)[1] for i in range(len(ids))]
    assert together is not None
    assert torch.equal(together, torch.cat([rows for rows in alone if rows is not None]))


@pytest.mark.parametrize(("name", "threads"), [*((name, 1) for name in SMOL), ("a block of 9", 2), ("mixed", 2)])
def test_smollm2_is_exact(smol: Exact, name: str, threads: int) -> None:
    packed = linear.can_pack(smol.decoder.embedding.dtype)  # bfloat16 only with AVX-512
    assert isinstance(smol.decoder.lm_head, PackedLinear if packed else PlainLinear)
    assert len(smol.one_by_one) == SLOTS  # made with one thread
    torch.set_num_threads(threads)
    smol.check(SMOL[name])


@pytest.mark.parametrize("smol", ["float32"], indirect=True)
def test_fast_float32_is_close_and_agrees(smol: Exact, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = smol.decoder
    known = json.loads((demo_head_path() / "expected_greedy.json").read_text())[0]
    ids = [*known["prompt_ids"], *known["greedy_ids"]][:64]

    def run(size: int) -> Tensor:
        blocks = [range(i, min(i + size, 64)) for i in range(0, 64, size)]
        hidden = [decoder.forward(Rows([Span(0, b.start, len(b))], ids[b.start : b.stop], CPU))[0] for b in blocks]
        return decoder.logits(torch.cat(hidden))

    exact = run(64)
    assert exact[42:63].argmax(dim=-1).tolist() == known["greedy_ids"][:21]
    monkeypatch.setattr(decoder, "numerics", "fast")
    for size in (64, 8, 1):
        fast = run(size)
        assert (fast - exact).abs().max() < 1e-3
        assert torch.equal(fast.argmax(dim=-1), exact.argmax(dim=-1))


@pytest.mark.parametrize("length", [5, 13, 24, 63])
def test_the_margin_of_an_audit_is_that_of_the_logits(tiny: Exact, length: int) -> None:
    """Also where the last tile is padded: padding must not touch what the audit has in its slot."""
    ids = some_ids(length, VOCAB, 9)
    hidden, _ = tiny.decoder.forward(Rows([Span(1, 0, length)], ids, CPU))
    best, second = tiny.decoder.logits(hidden[-1:])[0].double().topk(2).values.tolist()
    engine = Engine(tiny.decoder, max_seqs=SLOTS, context=64)
    assert engine.margin(ids, Sampling()).top_two == pytest.approx(best - second, abs=1e-9)
