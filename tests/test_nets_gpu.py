"""The target network on a GPU: what the CPU computes in float32, exact numerics, and the fallback for int8."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tiny_targets import CASES, NUM_LAYERS, VOCAB, save_tiny
from torch import Tensor

from twinspark.actors.checkpoint.opening import open_target
from twinspark.actors.nets.decoder import Decoder, Numerics
from twinspark.actors.nets.linear import Precision
from twinspark.actors.nets.rows import Rows, Span

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SLOTS, CONTEXT, ATOL = 3, 128, 1e-4
TEXTS = [[(31 * i + 7 * slot) % VOCAB for i in range(60)] for slot in range(SLOTS)]
PASSES = [[(0, 20), (2, 33)], [(2, 1), (1, 17), (0, 8)], [(1, 5), (2, 6)], [(0, 7)]]  # (slot, tokens), in turn


def decoder_on(device: str, folder: Path, precision: Precision = "float32", numerics: Numerics = "fast") -> Decoder:
    torch.backends.cuda.matmul.allow_tf32 = False
    target = open_target(folder)
    return Decoder(
        target.config,
        target.tensors.load,
        precision=precision,
        numerics=numerics,
        num_slots=SLOTS,
        context=CONTEXT,
        device=torch.device(device),
    )


def run(decoder: Decoder, passes: Sequence[Sequence[tuple[int, int]]], taps: tuple[int, ...] = ()) -> list[Tensor]:
    """Logits (and taps beside them) of each slot, on the CPU."""
    done = [0] * SLOTS
    got: list[list[Tensor]] = [[] for _ in range(SLOTS)]
    for parts in passes:
        spans = [Span(slot, done[slot], count) for slot, count in parts]
        ids = [token for span in spans for token in TEXTS[span.slot][span.start : span.end]]
        hidden, tapped = decoder.forward(Rows(spans, ids, decoder.device), taps)
        out = decoder.logits(hidden)
        assert out.device.type == decoder.device.type
        if tapped is not None:
            out = torch.cat([out, tapped.float()], dim=1)
        for span, rows in zip(spans, torch.split(out.cpu(), [span.count for span in spans]), strict=True):
            got[span.slot].append(rows)
            done[span.slot] = span.end
    return [torch.cat(rows) for rows in got]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("numerics", ["fast", "exact"])
def test_logits_and_taps_are_the_cpus(name: str, numerics: Numerics, tmp_path: Path) -> None:
    save_tiny(name, tmp_path)
    taps = (-1, *range(NUM_LAYERS))
    on_cpu = run(decoder_on("cpu", tmp_path), PASSES, taps)
    on_gpu = run(decoder_on("cuda", tmp_path, numerics=numerics), PASSES, taps)
    for ours, expected in zip(on_gpu, on_cpu, strict=True):
        torch.testing.assert_close(ours, expected, atol=ATOL, rtol=0)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_exact_is_exact(precision: Precision, tmp_path: Path) -> None:
    save_tiny("qwen3", tmp_path)
    decoder = decoder_on("cuda", tmp_path, precision, "exact")
    mixed = run(decoder, PASSES)
    lengths = [len(rows) for rows in mixed]
    alone = run(decoder, [[(slot, 1)] for slot in range(SLOTS) for _ in range(lengths[slot])])
    for together, expected in zip(mixed, alone, strict=True):
        assert torch.equal(together, expected)


def test_int8_becomes_bfloat16(tmp_path: Path) -> None:
    save_tiny("qwen3", tmp_path)
    expected = run(decoder_on("cpu", tmp_path), PASSES)
    for ours, theirs in zip(run(decoder_on("cuda", tmp_path, "int8"), PASSES), expected, strict=True):
        assert (ours - theirs).norm() < 0.05 * theirs.norm()
