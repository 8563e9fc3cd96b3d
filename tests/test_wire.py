"""The wire: every frame survives the trip, nothing else is accepted, and every byte has an account."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from twinspark.actors import wire
from twinspark.actors.errors import WireError
from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.wire.schema import Ids, Int, Layout, Many

VOCAB = 49152


def ids_strategy(max_size: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(0, VOCAB - 1), max_size=max_size).map(tuple)


def record_strategy(layout: Layout) -> st.SearchStrategy[Any]:
    """Records of any layout, drawn from its own table."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for field in layout.fields:
        match field:
            case Int():
                edges = st.sampled_from((field.low, field.high))
                fields[field.name] = st.one_of(edges, st.integers(field.low, field.high))
            case Ids():
                fields[field.name] = ids_strategy(min(field.max_count, 40))
            case Many():
                fields[field.name] = st.lists(
                    record_strategy(field.layout), max_size=5, unique_by=lambda r, key=field.unique: getattr(r, key)
                ).map(tuple)
    return st.builds(layout.record, **fields)


FRAMES = st.one_of([record_strategy(layout) for layout in wire.LAYOUTS.values()])


def outcome(data: bytes, vocab_size: int = VOCAB) -> str:
    """ "ok" or the fault's name; anything but a WireError fails the test."""
    try:
        frame = wire.decode(data, vocab_size)
    except WireError as fault:
        return wire.FAULTS[wire.fault_index(fault.name)]
    assert wire.encode(frame, vocab_size) == data
    return "ok"


def accounted(data: bytes, vocab_size: int = VOCAB) -> bool:
    try:
        ranges = wire.account(data, vocab_size)
    except WireError:
        return False
    assert [r.start for r in ranges] == [0, *(r.end for r in ranges[:-1])]
    assert ranges[-1].end == len(data)
    assert all(r.start < r.end and r.low <= r.value <= r.high and r.name and r.meaning for r in ranges)
    return True


def agree(data: bytes) -> None:
    """The walker is a second opinion. It looks at bytes only: it cannot see that two entries name one session."""
    result = outcome(data)
    if accounted(data):
        assert result in {"ok", "duplicate"}
    else:
        assert result != "ok"


@settings(max_examples=300, deadline=None)
@given(FRAMES)
def test_a_frame_survives_the_trip_and_every_byte_has_an_account(frame: wire.Frame) -> None:
    data = wire.encode(frame, VOCAB)
    assert wire.decode(data, VOCAB) == frame
    assert accounted(data)


@settings(max_examples=300, deadline=None)
@given(FRAMES, st.data())
def test_a_mutated_frame_is_refused_or_canonical(frame: wire.Frame, draw: st.DataObject) -> None:
    data = bytearray(wire.encode(frame, VOCAB))
    position = draw.draw(st.integers(0, len(data) - 1))
    match draw.draw(st.sampled_from(("change", "cut", "insert", "drop", "append"))):
        case "change":
            data[position] = draw.draw(st.integers(0, 255))
        case "cut":
            del data[position:]
        case "insert":
            data.insert(position, draw.draw(st.integers(0, 255)))
        case "drop":
            del data[position]
        case "append":
            data += draw.draw(st.binary(min_size=1, max_size=8))
    agree(bytes(data))


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused_by_name(data: bytes) -> None:
    agree(data)


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(), st.binary()),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 9), st.lists(VALUES, max_size=10))
def test_any_other_msgpack_is_refused_by_name(kind: int, fields: list[Any]) -> None:
    data = msgpack.packb([kind, *fields])
    agree(data)


OPEN = wire.Open.of(epoch=3, session=5, sampling=Sampling.of(temperature=0.7, seed=9), context=512, ids=(1, 2, 49151))
ROUND = wire.Round(
    3, 8, (wire.RoundEntry(5, 3, 7, (11, 12)), wire.RoundEntry(6, 0, 0, ())), 2, (wire.StepCost(4, 900),)
)


def test_open_carries_the_sampling_settings() -> None:
    sampling = Sampling.of(temperature=0.7, top_k=40, top_p=0.9, min_p=0.05, seed=2**63 - 1)
    frame = wire.Open.of(epoch=0, session=0, sampling=sampling, context=1, ids=())
    decoded = wire.decode(wire.encode(frame, VOCAB), VOCAB)
    assert isinstance(decoded, wire.Open)
    assert decoded.sampling == sampling


@pytest.mark.parametrize(
    "bad",
    [1.0, True, None, "1", b"\x01\x00\x00\x00", np.int64(1), np.float32(1), torch.tensor(1), [1], 2**80, -1],
    ids=lambda x: type(x).__name__ + repr(x)[:12],
)
def test_nothing_but_a_plain_integer_in_range_can_be_encoded(bad: Any) -> None:
    for layout in wire.LAYOUTS.values():
        for field in layout.fields:
            frame = next(f for f in EXAMPLES if type(f) is layout.record)
            broken = dataclasses.replace(frame, **{field.name: (bad,) if isinstance(field, Ids) else bad})
            with pytest.raises(WireError):
                wire.encode(broken, VOCAB)


@pytest.mark.parametrize(
    "ids",
    [torch.zeros(3), torch.zeros(3, dtype=torch.int64), np.zeros(3, dtype=np.int32), b"\x00" * 12, "abc", {1, 2}, None],
    ids=lambda x: type(x).__name__,
)
def test_a_tensor_or_its_bytes_are_no_token_ids(ids: Any) -> None:
    with pytest.raises(WireError, match="plain integers"):
        wire.encode(dataclasses.replace(OPEN, ids=ids), VOCAB)


def test_what_is_no_frame_cannot_be_encoded() -> None:
    for thing in (torch.zeros(2), {"ids": [1]}, wire.RoundEntry(1, 0, 0, ()), [1, 2]):
        with pytest.raises(WireError, match="unknown_kind"):
            wire.encode(thing, VOCAB)  # type: ignore[arg-type]


EXAMPLES: tuple[wire.Frame, ...] = (
    wire.Hello(1, 2**64 - 1, 0, 7, VOCAB),
    wire.Welcome(1, 7, 7, VOCAB),
    OPEN,
    wire.Close(3, 5),
    ROUND,
    wire.Proposal(3, 8, 1500, 1, (wire.ProposalEntry(5, (1, 2, 3)),)),
    wire.Refused(3, 8, 5, wire.fault_index("unknown_session")),
)


def test_every_kind_has_an_example() -> None:
    assert {type(frame) for frame in EXAMPLES} == {layout.record for layout in wire.LAYOUTS.values()}
    assert {type(f) for f in EXAMPLES} == {*wire.FROM_TARGET, *wire.FROM_DRAFT}
    for layout in wire.LAYOUTS.values():
        assert [f.name for f in layout.fields] == [f.name for f in dataclasses.fields(layout.record)]


def test_the_edges_of_every_range() -> None:
    checked = 0
    for frame in EXAMPLES:
        kind, *elements = msgpack.unpackb(wire.encode(frame, VOCAB))
        layout = wire.LAYOUTS[kind]
        at = 0
        for field in layout.fields:
            if isinstance(field, Int):
                for value, expected in (
                    (field.low, "ok"),
                    (field.high, "ok"),
                    (field.low - 1, "out_of_range"),
                    (field.high + 1, "out_of_range"),
                ):
                    if -(2**63) <= value < 2**64:
                        changed = [*elements[:at], value, *elements[at + 1 :]]
                        assert outcome(msgpack.packb([kind, *changed])) == expected, (field, value)
                        checked += 1
            at += field.width
    assert checked > 80


def test_token_ids_lie_in_the_vocabulary() -> None:
    data = wire.encode(OPEN, VOCAB)
    assert outcome(data, VOCAB) == "ok"
    assert outcome(data, VOCAB - 1) == "out_of_range"
    for bad in (-1, VOCAB, 2**31, 2**70):
        with pytest.raises(WireError, match="out_of_range"):
            wire.encode(dataclasses.replace(OPEN, ids=(1, bad)), VOCAB)
    negative = data[:-4] + b"\xff\xff\xff\xff"
    assert outcome(negative) == "out_of_range"
    assert not accounted(negative)


def test_the_count_must_match_the_bytes() -> None:
    kind, *elements = msgpack.unpackb(wire.encode(OPEN, VOCAB))
    assert elements[-2] == 3
    for count, data in (
        (2, elements[-1]),
        (4, elements[-1]),
        (3, elements[-1] + b"\0"),
        (3, elements[-1].decode("latin")),
    ):
        broken = msgpack.packb([kind, *elements[:-2], count, data])
        assert outcome(broken) == "malformed"
        assert not accounted(broken)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"", "malformed"),
        (b"\x90", "malformed"),
        (b"\x91\x00", "unknown_kind"),
        (b"\x91\x08", "unknown_kind"),
        (b"\x91\xc3", "malformed"),
        (b"\x93\x04\x03\x05", "ok"),
        (b"\x93\x04\x03\x05\x00", "malformed"),
        (b"\x92\x04\x03", "malformed"),
        (b"\x94\x04\x03\x05\x00", "malformed"),
        (b"\x93\xcc\x04\x03\x05", "malformed"),
        (b"\xdc\x00\x03\x04\x03\x05", "malformed"),
        (b"\x93\x04\xd0\x03\x05", "malformed"),
        (b"\x93\x04\xcb\x40\x08\x00\x00\x00\x00\x00\x00\x05", "malformed"),
        (b"\x91" * 100_000, "malformed"),
        (b"\xdd\xff\xff\xff\xff\x04", "malformed"),
        (b"\xc6\xff\xff\xff\xff", "malformed"),
        (b"\x81\x90\x90", "malformed"),
        (b"\x00" * (wire.MAX_FRAME_BYTES + 1), "oversized"),
    ],
)
def test_faults_by_name(data: bytes, name: str) -> None:
    assert outcome(data) == name
    if name != "ok":
        assert not accounted(data)


def test_bytes_like_things_are_not_bytes() -> None:
    data = wire.encode(OPEN, VOCAB)
    for thing in (bytearray(data), memoryview(data), "text", None):
        assert outcome(thing) == "malformed"  # type: ignore[arg-type]


def test_no_session_twice_and_no_row_count_twice() -> None:
    twice = dataclasses.replace(ROUND, entries=(ROUND.entries[0], ROUND.entries[0]))
    with pytest.raises(WireError, match="duplicate"):
        wire.encode(twice, VOCAB)
    costs = dataclasses.replace(ROUND, step_costs=(wire.StepCost(4, 1), wire.StepCost(4, 2)))
    with pytest.raises(WireError, match="duplicate"):
        wire.encode(costs, VOCAB)
    kind, *elements = msgpack.unpackb(wire.encode(ROUND, VOCAB))
    elements[2] = [elements[2][0], elements[2][0]]
    assert outcome(msgpack.packb([kind, *elements])) == "duplicate"


def test_the_largest_frames() -> None:
    ids = tuple(range(VOCAB)) + tuple(range(wire.MAX_IDS_PER_FRAME - VOCAB))
    full = dataclasses.replace(OPEN, ids=ids)
    assert wire.decode(wire.encode(full, VOCAB), VOCAB) == full
    with pytest.raises(WireError, match="out_of_range"):
        wire.encode(dataclasses.replace(OPEN, ids=(*ids, 1)), VOCAB)
    entries = tuple(wire.RoundEntry(i, 0, 0, ids) for i in range(4))
    with pytest.raises(WireError, match="oversized"):
        wire.encode(wire.Round(1, 1, entries), VOCAB)
    crowd = tuple(wire.RoundEntry(i, 0, 0, ()) for i in range(wire.MAX_ENTRIES + 1))
    assert wire.decode(wire.encode(wire.Round(1, 1, crowd[:-1]), VOCAB), VOCAB) == wire.Round(1, 1, crowd[:-1])
    with pytest.raises(WireError, match="out_of_range"):
        wire.encode(wire.Round(1, 1, crowd), VOCAB)


def test_accounts_name_what_they_found() -> None:
    ranges = wire.account(wire.encode(ROUND, VOCAB), VOCAB)
    by_name = {r.name: r for r in ranges}
    assert len(by_name) == len(ranges)
    assert by_name["Round.entries[0].ids[1]"].value == 12
    assert by_name["Round.entries[0].ids[1]"].high == VOCAB - 1
    assert by_name["Round.entries[0].ids_bytes"].value == 8
    assert by_name["Round.entries_count"].value == 2
    assert by_name["Round.step_costs[0].step_us"].value == 900
    assert sum(r.meaning.startswith("token id") for r in ranges) == 2


def test_a_recording_is_accounted_for_to_its_last_byte() -> None:
    frames = [wire.encode(frame, VOCAB) for frame in EXAMPLES]
    recording = b"".join(map(wire.framed, frames))
    assert list(wire.split_recording(recording)) == frames
    ranges = wire.account_recording(recording, VOCAB)
    assert [r.start for r in ranges] == [0, *(r.end for r in ranges[:-1])]
    assert ranges[-1].end == len(recording)
    for cut in (1, 3, 5, len(recording) - 1):
        with pytest.raises(WireError, match="malformed"):
            wire.account_recording(recording[:cut], VOCAB)


def test_faults_are_append_only_and_bounded() -> None:
    assert wire.FAULTS[:4] == ("malformed", "oversized", "out_of_range", "unknown_kind")
    assert set(wire.FAULTS) >= wire.SESSION_FAULTS
    assert wire.Refused(0, 0, 4, wire.fault_index("wrong_start")).concerns_session
    assert not wire.Refused(0, 0, 0, wire.fault_index("stale_epoch")).concerns_session
    with pytest.raises(ValueError, match="must be one of"):
        wire.fault_index("no_such_fault")
    with pytest.raises(ValueError, match="must be one of"):
        wire.SessionFault("malformed", 1, "not about a session")
