"""Frames to bytes and back, driven by the tables in frames.py. Strict: one frame has exactly one encoding."""

from __future__ import annotations

from typing import Any, cast

import msgpack

from twinspark.actors.errors import WireError
from twinspark.actors.wire.frames import KIND_OF, LAYOUTS, Frame
from twinspark.actors.wire.framing import MAX_FRAME_BYTES
from twinspark.actors.wire.schema import Ids, Int, Layout, Many


def encode(frame: Frame, vocab_size: int) -> bytes:
    """The bytes of `frame`. Raises WireError where a field is not what its table declares."""
    kind = KIND_OF.get(type(frame))
    if kind is None:
        raise WireError("unknown_kind", f"a frame must be one of the wire's, got {type(frame).__name__}")
    data = cast(bytes, msgpack.packb([kind, *_to_elements(LAYOUTS[kind], frame, vocab_size)]))
    _check_budget(data)
    return data


def decode(data: bytes, vocab_size: int) -> Frame:
    """The frame that `data` is, token IDs in [0, vocab_size). Raises WireError for anything but a canonical frame."""
    if type(data) is not bytes:
        raise WireError("malformed", f"a frame must be bytes, got {type(data).__name__}")
    _check_budget(data)
    elements = _unpack(data)
    if type(elements) is not list or not elements or type(elements[0]) is not int:
        raise WireError("malformed", "a frame must be an array that begins with its kind")
    layout = LAYOUTS.get(elements[0])
    if layout is None:
        raise WireError("unknown_kind", f"kind must be in [1, {len(LAYOUTS)}], got {elements[0]}")
    frame = cast(Frame, _from_elements(layout, elements[1:], vocab_size))
    if msgpack.packb(elements) != data:
        raise WireError("malformed", "a frame must be in its shortest encoding")
    return frame


def _check_budget(data: bytes) -> None:
    if len(data) > MAX_FRAME_BYTES:
        raise WireError("oversized", f"a frame must be at most {MAX_FRAME_BYTES} bytes, got {len(data)}")


def _unpack(data: bytes) -> Any:
    """What msgpack makes of `data`. Strings come out as bytes, which the comparison in `decode` then tells apart."""
    try:
        return msgpack.unpackb(data, raw=True, use_list=True)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise WireError("malformed", f"a frame must be one msgpack value, got {type(error).__name__}") from None


def _to_elements(layout: Layout, record: object, vocab_size: int) -> list[Any]:
    elements: list[Any] = []
    for field in layout.fields:
        value = getattr(record, field.name)
        match field:
            case Int():
                elements.append(field.check(value))
            case Ids():
                packed = field.pack(value, vocab_size)
                elements += (len(value), packed)
            case Many():
                elements.append(_many_to_elements(field, value, vocab_size))
    return elements


def _many_to_elements(field: Many, records: object, vocab_size: int) -> list[list[Any]]:
    if not isinstance(records, (tuple, list)) or not set(map(type, records)) <= {field.layout.record}:
        raise WireError("malformed", f"{field.name} must be a tuple of {field.layout.record.__name__}")
    field.count.check(len(records))
    elements = [_to_elements(field.layout, record, vocab_size) for record in records]
    field.check_unique(records)
    return elements


def _from_elements(layout: Layout, elements: list[Any], vocab_size: int) -> object:
    name = layout.record.__name__
    if len(elements) != layout.width:
        raise WireError("malformed", f"{name} must have {layout.width} elements, got {len(elements)}")
    values: dict[str, object] = {}
    rest = iter(elements)
    for field in layout.fields:
        match field:
            case Int():
                values[field.name] = field.check(next(rest))
            case Ids():
                values[field.name] = field.unpack(next(rest), next(rest), vocab_size)
            case Many():
                values[field.name] = _many_from_elements(field, next(rest), vocab_size)
    return layout.record(**values)


def _many_from_elements(field: Many, elements: object, vocab_size: int) -> tuple[object, ...]:
    if type(elements) is not list or not set(map(type, elements)) <= {list}:
        raise WireError("malformed", f"{field.name} must be an array of arrays")
    field.count.check(len(elements))
    records = tuple(_from_elements(field.layout, element, vocab_size) for element in elements)
    field.check_unique(records)
    return records
