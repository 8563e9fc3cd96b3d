"""Attention and rope against slow, plain re-derivations written here: masks, windows, grouped heads, rotation."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from twinspark.actors.checkpoint.configs import RopeConfig
from twinspark.actors.nets.attention import Attention, BlockMask, CausalMask, Mask
from twinspark.actors.nets.cache import SlotCache
from twinspark.actors.nets.rope import rope_tables, rotate
from twinspark.actors.nets.rows import Rows, Span

CPU = torch.device("cpu")
CAPACITY, SLOTS = 24, 3
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
MASKS = st.one_of(
    st.just(CausalMask()),
    st.just(BlockMask()),
    st.builds(BlockMask, window=st.integers(1, 9), causal=st.booleans()),
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def sees(mask: Mask, span: Span, row: int, key: int) -> bool:
    """Whether the row at position `row` of `span` sees position `key`, straight from golden/README.md, Conventions."""
    if isinstance(mask, CausalMask):
        return key <= row
    anchor = span.start
    if key < anchor:  # context: every row of the block sees the same part of it
        return mask.window is None or key >= anchor - mask.window
    if mask.window is not None and mask.causal:
        return key <= row
    return key < span.end


def slowly(mask: Mask, spans: list[Span], queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One query of one head at a time, over a list of visible positions, in float64."""
    group = queries.shape[1] // keys.shape[1]
    out = torch.zeros(queries.shape, dtype=torch.float64)
    row = 0
    for span in spans:
        for position in range(span.start, span.end):
            seen = [key for key in range(CAPACITY) if sees(mask, span, position, key)]
            for head in range(queries.shape[1]):
                k = keys[span.slot, head // group, seen].double()
                v = values[span.slot, head // group, seen].double()
                scores = k @ queries[row, head].double() / math.sqrt(queries.shape[2])
                out[row, head] = torch.softmax(scores, dim=0) @ v
            row += 1
    return out.flatten(1)


@st.composite
def some_spans(draw: st.DrawFn) -> list[Span]:
    slots = draw(st.permutations(range(SLOTS)))[: draw(st.integers(1, SLOTS))]
    spans = []
    for slot in slots:
        start = draw(st.integers(0, CAPACITY - 1))
        spans.append(Span(slot, start, draw(st.integers(1, min(8, CAPACITY - start)))))
    return spans


@given(
    mask=MASKS,
    spans=some_spans(),
    kv_heads=st.sampled_from([1, 2, 3]),
    group=st.sampled_from([1, 2, 4]),
    head_dim=st.sampled_from([8, 16]),
    dtype=st.sampled_from(list(TOLERANCES)),
    row_by_row=st.booleans(),
    seed=st.integers(0, 2**16),
)
@settings(deadline=None, max_examples=150)
def test_attention_is_what_the_masks_say(
    mask: Mask,
    spans: list[Span],
    kv_heads: int,
    group: int,
    head_dim: int,
    dtype: torch.dtype,
    row_by_row: bool,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    cache = SlotCache(
        2, num_slots=SLOTS, capacity=CAPACITY, num_kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, device=CPU
    )
    for tensor in cache.keys + cache.values:  # also where nothing should be read from: it would show
        tensor.copy_(2 * torch.randn(tensor.shape, generator=generator))
    num_rows = sum(span.count for span in spans)
    queries = torch.randn(num_rows, kv_heads * group, head_dim, generator=generator).to(dtype)
    rows = Rows(spans, [0] * num_rows, CPU)
    attend = Attention(rows, mask, group=group, dtype=dtype, row_by_row=row_by_row)
    for layer in (0, 1):
        got = attend(layer, queries, cache)
        assert got.dtype == dtype
        expected = slowly(mask, spans, queries, cache.keys[layer], cache.values[layer])
        torch.testing.assert_close(got.double(), expected, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])


@pytest.mark.parametrize(
    ("window", "start", "first"), [(None, 20, 0), (8, 20, 12), (8, 8, 0), (8, 7, 0), (1, 5, 4), (8, 0, 0)]
)
@pytest.mark.parametrize("causal", [False, True])
def test_a_window_is_counted_from_the_anchor(window: int | None, start: int, first: int, causal: bool) -> None:
    """Context positions N-window .. N-1 for every row alike, so the last row sees as far back as the anchor's."""
    mask = BlockMask(window, causal=causal)
    span = Span(0, start, 4)
    assert mask.first_key(span) == first
    visible = mask.visible(span, CPU)
    if window is None or not causal:
        assert visible is None
        return
    assert visible is not None
    context = start - first
    assert visible.shape == (4, context + 4)
    assert visible[:, :context].all()
    assert torch.equal(visible[:, context:], torch.ones(4, 4, dtype=torch.bool).tril())


@given(spans=some_spans(), seed=st.integers(0, 2**16))
@settings(deadline=None, max_examples=30)
def test_the_cache_is_written_where_the_spans_say_and_nowhere_else(spans: list[Span], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    cache = SlotCache(
        2, num_slots=SLOTS, capacity=CAPACITY, num_kv_heads=2, head_dim=4, dtype=torch.float32, device=CPU
    )
    num_rows = sum(span.count for span in spans)
    keys, values = (torch.randn(num_rows, 2, 4, generator=generator) for _ in range(2))
    cache.write(1, tuple(spans), keys, values)
    expected = [torch.zeros(SLOTS, 2, CAPACITY, 4) for _ in range(2)]
    places = [(span.slot, position) for span in spans for position in range(span.start, span.end)]
    for row, (slot, position) in enumerate(places):
        expected[0][slot, :, position] = keys[row]
        expected[1][slot, :, position] = values[row]
    assert torch.equal(cache.keys[1], expected[0])
    assert torch.equal(cache.values[1], expected[1])
    assert not cache.keys[0].any()
    assert not cache.values[0].any()


@given(spans=some_spans(), size=st.integers(1, 9), seed=st.integers(0, 2**16))
@settings(deadline=None, max_examples=60)
def test_tiles_hold_every_row_once_and_pad_in_the_scratch_slot(spans: list[Span], size: int, seed: int) -> None:
    num_rows = sum(span.count for span in spans)
    ids: list[int] = torch.randint(1, 99, (num_rows,), generator=torch.Generator().manual_seed(seed)).tolist()
    rows = Rows(spans, ids, CPU)
    got = []
    for tile in rows.tiles(size, SLOTS):
        assert tile.num_rows == size == len(tile.token_ids) == len(tile.positions)
        slots = [span.slot for span in tile.spans for _ in range(span.count)]
        got += [*zip(slots, tile.positions.tolist(), tile.token_ids.tolist(), strict=True)]
    places = [(span.slot, position) for span in spans for position in range(span.start, span.end)]
    assert got[:num_rows] == [(*place, token) for place, token in zip(places, ids, strict=True)]
    assert len(got) - num_rows < size
    assert all(place == (SLOTS, 0, 0) for place in got[num_rows:])


def test_spans_must_cover_the_rows() -> None:
    with pytest.raises(ValueError, match="spans must cover 3 rows, got 2"):
        Rows([Span(0, 0, 2)], [1, 2, 3], CPU)


@pytest.mark.parametrize("head_dim", [2, 8, 64])
def test_rotation_turns_each_pair_by_its_angle(head_dim: int) -> None:
    """Pair (i, i + head_dim/2) is a complex number, multiplied by e^(i * position * theta^(-2i/head_dim))."""
    theta, positions = 500.0, 40
    x = torch.randn(positions, 3, head_dim, generator=torch.Generator().manual_seed(1))
    cos, sin = rope_tables(RopeConfig(theta=theta), head_dim, positions, CPU)
    got = rotate(x, cos[:, None], sin[:, None]).double()
    half = head_dim // 2
    for i in range(half):
        angles = torch.arange(positions, dtype=torch.float64) * theta ** (-2 * i / head_dim)
        turned = (
            torch.complex(x[..., i].double(), x[..., i + half].double())
            * torch.polar(torch.ones_like(angles), angles)[:, None]
        )
        torch.testing.assert_close(got[..., i], turned.real, atol=1e-5, rtol=0)
        torch.testing.assert_close(got[..., i + half], turned.imag, atol=1e-5, rtol=0)
