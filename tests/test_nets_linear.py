"""Linear layers against `torch.nn.functional.linear`, and what is used where a build or device lacks the fast ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny_targets import VOCAB, save_tiny
from torch import Tensor
from torch.nn import functional

from twinspark.actors.checkpoint.opening import open_target
from twinspark.actors.nets import linear
from twinspark.actors.nets.decoder import Decoder
from twinspark.actors.nets.linear import (
    CastLinear,
    Int8Linear,
    PackedLinear,
    PlainLinear,
    Precision,
    can_int8,
    can_pack,
    make_linear,
)
from twinspark.actors.nets.rows import Rows, Span

CPU = torch.device("cpu")
ROW_COUNTS = (1, 2, 3, 7, 8, 9, 16, 33)
SHAPES = [(64, 48), (37, 51), (1, 16), (513, 96)]  # (out, in), multiples of the block width and not
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
PACKABLE = [dtype for dtype in TOLERANCES if can_pack(dtype)]


@pytest.fixture(autouse=True)
def _probes_afresh() -> Iterator[None]:
    """Probes remember what they found; a test that takes operators away must leave no memory of that."""
    torch.set_num_threads(1)
    for probe in (can_pack, can_int8):
        probe.cache_clear()
    yield
    for probe in (can_pack, can_int8):
        probe.cache_clear()


@pytest.fixture
def bare_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch build without the private operators."""
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace())
    monkeypatch.setattr(torch.ops, "quantized", SimpleNamespace())


def randoms(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def relative_error(got: Tensor, expected: Tensor) -> float:
    return float((got.float() - expected).norm() / expected.norm())


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kind", [PlainLinear, PackedLinear])
def test_plain_and_packed(
    kind: type[PlainLinear | PackedLinear], dtype: torch.dtype, shape: tuple[int, int], biased: bool
) -> None:
    if kind is PackedLinear and dtype not in PACKABLE:
        pytest.skip(f"this torch build has no blocked layout for {dtype}")
    weight, bias = (t.to(dtype) for t in randoms(1, shape, shape[:1]))
    layer = kind(weight, bias if biased else None)
    for rows in ROW_COUNTS:
        (x,) = (t.to(dtype) for t in randoms(rows, (rows, shape[1])))
        expected = functional.linear(x.float(), weight.float(), bias.float() if biased else None)
        got = layer(x)
        assert got.dtype == dtype
        assert got.shape == expected.shape
        assert relative_error(got, expected) < TOLERANCES[dtype], rows


@pytest.mark.parametrize("input_dtype", TOLERANCES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("biased", [False, True])
def test_int8(input_dtype: torch.dtype, shape: tuple[int, int], biased: bool) -> None:
    if not can_int8():
        pytest.skip("this torch build has no int8 product")
    weight, bias = randoms(2, shape, shape[:1])
    weight *= torch.logspace(-2, 2, shape[0])[:, None]  # a scale an output row: rows of any size are as exact
    bias *= torch.logspace(-2, 2, shape[0])
    layer = Int8Linear(weight, bias if biased else None)
    for rows in ROW_COUNTS:
        (x,) = (t.to(input_dtype) for t in randoms(rows, (rows, shape[1])))
        expected = functional.linear(x.float(), weight, bias if biased else None)
        got = layer(x)
        assert got.dtype == input_dtype
        assert got.shape == expected.shape
        errors = (got.float() - expected).norm(dim=0) / expected.norm(dim=0).clamp_min(1e-6)
        assert relative_error(got, expected) < 0.03
        if rows >= 16:
            assert errors.max() < 0.06


def test_int8_of_zeros_and_of_zero_rows() -> None:
    if not can_int8():
        pytest.skip("this torch build has no int8 product")
    (weight,) = randoms(3, (24, 16))
    weight[5] = 0
    (x,) = randoms(4, (3, 16))
    got = Int8Linear(weight, None)(x)
    assert torch.isfinite(got).all()
    assert torch.equal(got[:, 5], torch.zeros(3))
    assert torch.equal(Int8Linear(weight, None)(torch.zeros(2, 16)), torch.zeros(2, 24))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_cpu_gets_packed_weights_where_there_are_any(precision: Precision) -> None:
    dtype = linear.DTYPES[precision]
    weight, bias, x = randoms(5, (32, 16), (32,), (3, 16))
    layer = make_linear(weight, bias, precision=precision, device=CPU)
    assert isinstance(layer, PackedLinear if can_pack(dtype) else PlainLinear)
    assert isinstance(make_linear(weight, bias, precision=precision, device=CPU, pack=False), PlainLinear)
    assert relative_error(layer(x.to(dtype)), functional.linear(x, weight, bias)) < TOLERANCES[dtype]


def test_int8_on_a_cpu() -> None:
    weight, bias = randoms(5, (32, 16), (32,))
    layer = make_linear(weight, bias, precision="int8", device=CPU)
    assert isinstance(layer, Int8Linear) == can_int8()


@pytest.mark.parametrize(
    ("precision", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("int8", torch.bfloat16)]
)
def test_another_device_gets_plain_weights(precision: Precision, dtype: torch.dtype) -> None:
    """`meta` stands for any device that is not the CPU."""
    weight, bias = randoms(5, (32, 16), (32,))
    layer = make_linear(weight, bias, precision=precision, device=torch.device("meta"))
    assert isinstance(layer, CastLinear) == (precision == "int8")
    layer = layer.inner if isinstance(layer, CastLinear) else layer
    assert isinstance(layer, PlainLinear)
    assert layer.bias is not None
    assert (layer.weight.device.type, layer.weight.dtype, layer.bias.dtype) == ("meta", dtype, dtype)


@pytest.mark.usefixtures("bare_torch")
@pytest.mark.parametrize(
    ("precision", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("int8", torch.bfloat16)]
)
def test_a_torch_without_the_private_operators(precision: Precision, dtype: torch.dtype) -> None:
    assert not can_pack(torch.float32)
    assert not can_pack(torch.bfloat16)
    assert not can_int8()
    weight, bias, x = randoms(6, (32, 16), (32,), (5, 16))
    layer = make_linear(weight, bias, precision=precision, device=CPU)
    plain = layer.inner if isinstance(layer, CastLinear) else layer
    assert isinstance(plain, PlainLinear)
    assert plain.weight.dtype == dtype
    fed = torch.float32 if precision == "int8" else dtype  # what a network of that precision computes in between
    got = layer(x.to(fed))
    assert got.dtype == fed
    assert relative_error(got, functional.linear(x, weight, bias)) < TOLERANCES[dtype]


@pytest.mark.parametrize("error", [RuntimeError, NotImplementedError, AttributeError])
def test_operators_that_are_there_and_refuse(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def refuse(*_args: object) -> Tensor:
        raise error("not on this processor")

    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace(_reorder_linear_weight=refuse))
    monkeypatch.setattr(torch.ops, "quantized", SimpleNamespace(linear_prepack=refuse))
    assert not can_pack(torch.float32)
    assert not can_int8()


def test_operators_that_give_something_else_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: Callable[..., Tensor] = lambda x, *_rest: x + 1  # noqa: E731
    ops = SimpleNamespace(
        _reorder_linear_weight=lambda w, _rows: w,
        _linear_pointwise=wrong,
        linear_prepack=lambda w, _bias: w,
        linear_dynamic=wrong,
    )
    monkeypatch.setattr(torch.ops, "mkldnn", ops)
    monkeypatch.setattr(torch.ops, "quantized", ops)
    assert not can_pack(torch.float32)
    assert not can_int8()


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_a_network_runs_without_the_private_operators(
    precision: Precision, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    save_tiny("qwen3", tmp_path)
    target = open_target(tmp_path)
    rows = Rows([Span(0, 0, 20)], [i * 31 % VOCAB for i in range(20)], CPU)

    def logits(precision: Precision) -> Tensor:
        decoder = Decoder(target.config, target.tensors.load, precision=precision, num_slots=1, context=32, device=CPU)
        return decoder.logits(decoder.forward(rows)[0])

    expected = logits("float32")
    request.getfixturevalue("bare_torch")
    can_pack.cache_clear()
    can_int8.cache_clear()
    assert relative_error(logits(precision), expected) < (1e-5 if precision == "float32" else 0.05)
