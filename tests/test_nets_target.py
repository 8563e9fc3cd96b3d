"""The target network against transformers: logits, taps, a cache of many slots, the trunk that reads only its part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_targets import CASES, NUM_LAYERS, VOCAB, save_tiny
from torch import Tensor

from twinspark.actors.checkpoint.opening import open_target
from twinspark.actors.checkpoint.source import TargetCheckpoint
from twinspark.actors.nets.decoder import Decoder, Numerics
from twinspark.actors.nets.rows import Rows, Span

ATOL = 1e-4
CPU = torch.device("cpu")
CONTEXT = 128
SLOTS = 3
EVERY_TAP = (-1, *range(NUM_LAYERS))


@dataclass(frozen=True)
class Tiny:
    """The same model twice: opened by us, and in transformers."""

    checkpoint: TargetCheckpoint
    reference: Any

    def decoder(self, numerics: Numerics = "fast") -> Decoder:
        return Decoder(
            self.checkpoint.config,
            self.checkpoint.tensors.load,
            precision="float32",
            numerics=numerics,
            num_slots=SLOTS,
            context=CONTEXT,
            device=CPU,
        )

    def logits(self, ids: Sequence[int]) -> Tensor:
        """transformers' logits [tokens, vocab]."""
        with torch.no_grad():
            logits: Tensor = self.reference(torch.tensor([ids])).logits[0]
        return logits


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def _tiny(name: str, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder: Path = tmp_path_factory.mktemp(name)
    reference = save_tiny(name, folder)
    return Tiny(open_target(folder), reference)


@pytest.fixture(scope="module", params=CASES)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return _tiny(request.param, tmp_path_factory)


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return _tiny("qwen3", tmp_path_factory)


def text(length: int, seed: int = 0) -> list[int]:
    ids: list[int] = torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    return ids


def run(decoder: Decoder, *parts: tuple[int, int, Sequence[int]]) -> list[Tensor]:
    """One pass over (slot, start, ids) parts: the logits of each part."""
    rows = Rows(
        [Span(slot, start, len(ids)) for slot, start, ids in parts], [i for _, _, ids in parts for i in ids], CPU
    )
    hidden, _ = decoder.forward(rows)
    return list(torch.split(decoder.logits(hidden), [len(ids) for _, _, ids in parts]))


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=ATOL, rtol=0)


@pytest.mark.parametrize("numerics", ["fast", "exact"])
def test_logits_equal_those_of_transformers(tiny: Tiny, numerics: Numerics) -> None:
    ids = text(100)  # far past the original positions of the scaled ropes
    expected = tiny.logits(ids)
    assert expected.std() > 1  # logits that hardly vary would agree with anything
    (logits,) = run(tiny.decoder(numerics), (0, 0, ids))
    close(logits, expected)


def test_taps_are_hidden_states_before_the_final_norm(tiny: Tiny) -> None:
    ids = text(40)
    raw: list[Tensor] = []
    hook = tiny.reference.model.layers[-1].register_forward_hook(lambda _m, _i, out: raw.append(out))
    with torch.no_grad():
        states = tiny.reference(torch.tensor([ids]), output_hidden_states=True).hidden_states
    hook.remove()
    last = raw[0].view(len(ids), -1)
    normed = states[-1][0]
    hidden, taps = tiny.decoder().forward(Rows([Span(0, 0, len(ids))], ids, CPU), EVERY_TAP)
    assert taps is not None
    parts = torch.split(taps, hidden.shape[1], dim=1)
    assert len(parts) == NUM_LAYERS + 1
    for ours, theirs in zip(parts[:-1], states[:-1], strict=True):  # [0] is the embedding output, [i + 1] of layer i
        close(ours, theirs[0])
    close(parts[-1], last)
    close(hidden, last)
    assert (parts[-1] - normed).abs().max() > 0.1


def test_taps_come_in_the_order_asked_for(qwen3: Tiny) -> None:
    rows = Rows([Span(0, 0, 9)], text(9), CPU)
    decoder = qwen3.decoder()
    _, every = decoder.forward(rows, EVERY_TAP)
    _, some = decoder.forward(rows, (2, -1, 0))
    assert every is not None
    assert some is not None
    parts = dict(zip(EVERY_TAP, torch.split(every, decoder.config.hidden_size, dim=1), strict=True))
    assert torch.equal(some, torch.cat([parts[2], parts[-1], parts[0]], dim=1))
    assert decoder.forward(rows)[1] is None


@pytest.mark.parametrize("numerics", ["fast", "exact"])
def test_prefill_in_chunks_then_decoding(tiny: Tiny, numerics: Numerics) -> None:
    ids = text(60)
    decoder = tiny.decoder(numerics)
    pieces = [*range(0, 33, 11), 33, 34, 35, 41, 60]  # three chunks, three single tokens, two blocks
    got = [run(decoder, (1, a, ids[a:b]))[0] for a, b in pairwise(pieces)]
    close(torch.cat(got), tiny.logits(ids))


@pytest.mark.parametrize("numerics", ["fast", "exact"])
def test_several_slots_of_different_lengths_in_one_pass(qwen3: Tiny, numerics: Numerics) -> None:
    texts = [text(50, 1), text(31, 2), text(70, 3)]
    expected = [qwen3.logits(ids) for ids in texts]
    decoder = qwen3.decoder(numerics)
    done, got = [0, 0, 0], [[], [], []]  # type: tuple[list[int], list[list[Tensor]]]
    steps = [(20, 0, 33), (1, 17, 5), (6, 0, 32), (8, 1, 0), (15, 13, 0)]  # tokens of each slot in a pass
    for number, counts in enumerate(steps):
        order = [slot for slot in (2, 0, 1) if counts[slot]] if number % 2 else [s for s in (0, 1, 2) if counts[s]]
        parts = [(slot, done[slot], texts[slot][done[slot] : done[slot] + counts[slot]]) for slot in order]
        for slot, logits in zip(order, run(decoder, *parts), strict=True):
            got[slot].append(logits)
            done[slot] += counts[slot]
    assert done == [50, 31, 70]
    for ours, theirs in zip(got, expected, strict=True):
        close(torch.cat(ours), theirs)


def test_rejected_rows_and_earlier_tenants_of_a_slot_do_not_matter(qwen3: Tiny) -> None:
    decoder = qwen3.decoder()
    run(decoder, (0, 0, text(90, 4)))  # an earlier request, longer than the next
    ids = text(40, 5)
    run(decoder, (0, 0, ids[:30]))
    run(decoder, (0, 30, [ids[30], *text(7, 6)]))  # a block whose drafts were all wrong
    (logits,) = run(decoder, (0, 31, ids[31:]))
    close(logits, qwen3.logits(ids)[31:])


def test_other_slots_are_left_alone(qwen3: Tiny) -> None:
    decoder = qwen3.decoder("exact")  # with its padding rows
    run(decoder, (0, 0, text(20, 1)), (2, 0, text(20, 2)))
    kept = [[cache[slot].clone() for cache in decoder.cache.keys + decoder.cache.values] for slot in (0, 2)]
    run(decoder, (1, 0, text(31, 3)))
    for slot, before in zip((0, 2), kept, strict=True):
        after = [cache[slot] for cache in decoder.cache.keys + decoder.cache.values]
        assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize("numerics", ["fast", "exact"])
def test_a_context_shorter_than_a_tile(qwen3: Tiny, numerics: Numerics) -> None:
    ids = text(3)
    checkpoint = qwen3.checkpoint
    decoder = Decoder(
        checkpoint.config,
        checkpoint.tensors.load,
        precision="float32",
        numerics=numerics,
        num_slots=1,
        context=3,
        device=CPU,
    )
    close(run(decoder, (0, 0, ids))[0], qwen3.logits(ids))


@pytest.mark.parametrize("name", ["llama-tied", "llama-llama3", "qwen2", "qwen3"])
@pytest.mark.parametrize("num_layers", [0, 2])
def test_a_trunk_reads_its_own_names_only(name: str, num_layers: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    tiny = _tiny(name, tmp_path_factory)
    asked: list[str] = []

    def load(tensor: str) -> Tensor:
        asked.append(tensor)
        return tiny.checkpoint.tensors.load(tensor)

    trunk = Decoder(
        tiny.checkpoint.config,
        load,
        num_layers=num_layers,
        head=False,
        precision="float32",
        num_slots=SLOTS,
        context=CONTEXT,
        device=CPU,
    )
    layers = tuple(f"model.layers.{i}." for i in range(num_layers))
    own = [n for n in tiny.checkpoint.tensors.infos() if n == "model.embed_tokens.weight" or n.startswith(layers)]
    assert sorted(asked) == sorted(own)

    taps = EVERY_TAP[: num_layers + 1]
    ids = text(30)
    full, shallow = tiny.decoder(), trunk
    for start, end in ((0, 20), (20, 30)):
        rows = Rows([Span(1, start, end - start)], ids[start:end], CPU)
        _, expected = full.forward(rows, taps)
        _, got = shallow.forward(rows, taps)
        assert got is not None
        assert expected is not None
        assert torch.equal(got, expected)
