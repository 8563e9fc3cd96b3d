"""What each byte of a frame is: a token ID, or a named integer with its range. For audits and tests.

Reads the bytes by itself, not through the codec, so that the two check one another. Knows the tables and no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from twinspark.actors.errors import WireError
from twinspark.actors.wire.frames import KIND, LAYOUTS
from twinspark.actors.wire.framing import MAX_FRAME_BYTES, PREFIX_BYTES, split_recording
from twinspark.actors.wire.schema import ID_BYTES, Ids, Int, Layout, Many

TOKEN_ID = "token id"

# First byte: how many bytes of value follow it, and the least value that is not written shorter.
_UINTS = {0xCC: (1, 1 << 7), 0xCD: (2, 1 << 8), 0xCE: (4, 1 << 16), 0xCF: (8, 1 << 32)}
_ARRAYS = {0xDC: (2, 1 << 4), 0xDD: (4, 1 << 16)}
_BINS = {0xC4: (1, 0), 0xC5: (2, 1 << 8), 0xC6: (4, 1 << 16)}


@dataclass(frozen=True)
class ByteRange:
    """Bytes [start, end) hold the integer `value`, which is called `name` and lies in [low, high]."""

    start: int
    end: int
    name: str
    meaning: str
    low: int
    high: int
    value: int


def account(frame_bytes: bytes, vocab_size: int) -> list[ByteRange]:
    """Every byte of one frame, exactly once and in order. Raises WireError at the first that has no account."""
    return _Walk(frame_bytes, vocab_size).frame()


def account_recording(data: bytes, vocab_size: int) -> list[ByteRange]:
    """Every byte of a recording: frames, each behind its length."""
    ranges: list[ByteRange] = []
    start = 0
    for frame in split_recording(data):
        end = start + PREFIX_BYTES
        ranges.append(ByteRange(start, end, "frame_bytes", "length of the frame", 1, MAX_FRAME_BYTES, len(frame)))
        ranges += (replace(r, start=r.start + end, end=r.end + end) for r in account(frame, vocab_size))
        start = end + len(frame)
    return ranges


class _Walk:
    """One pass over a frame's bytes."""

    def __init__(self, data: bytes, vocab_size: int) -> None:
        self.data = data
        self.vocab_size = vocab_size
        self.position = 0

    def frame(self) -> list[ByteRange]:
        size = self._array(
            Int("frame.elements", 1, 1 + max(x.width for x in LAYOUTS.values()), "elements in the frame")
        )
        kind = self._uint(KIND, "frame")
        layout = LAYOUTS[kind.value]
        if size.value != 1 + layout.width:
            raise WireError("malformed", f"{layout.record.__name__} must have {layout.width} elements behind its kind")
        ranges = [size, kind, *self._fields(layout, layout.record.__name__)]
        if self.position != len(self.data):
            raise WireError("malformed", f"{len(self.data) - self.position} bytes have no account")
        return ranges

    def _fields(self, layout: Layout, path: str) -> Iterator[ByteRange]:
        for field in layout.fields:
            match field:
                case Int():
                    yield self._uint(field, path)
                case Ids():
                    yield from self._ids(field, path)
                case Many():
                    yield from self._many(field, path)

    def _many(self, field: Many, path: str) -> Iterator[ByteRange]:
        count = self._array(replace(field.count, name=f"{path}.{field.count.name}"))
        yield count
        width = field.layout.width
        for i in range(count.value):
            record = f"{path}.{field.name}[{i}]"
            yield self._array(Int(f"{record}.elements", width, width, "elements in the record"))
            yield from self._fields(field.layout, record)

    def _ids(self, field: Ids, path: str) -> Iterator[ByteRange]:
        count = self._uint(field.count, path)
        yield count
        size = count.value * ID_BYTES
        yield self._head(_BINS, Int(f"{path}.{field.name}_bytes", size, size, f"bytes of {field.name}"))
        for i in range(count.value):
            chunk = self._take(ID_BYTES)
            value = int.from_bytes(chunk, "little", signed=True)
            yield self._range(
                len(chunk),
                Int(f"{path}.{field.name}[{i}]", 0, self.vocab_size - 1, f"{TOKEN_ID}: {field.meaning}"),
                value,
            )

    def _uint(self, field: Int, path: str) -> ByteRange:
        named = replace(field, name=f"{path}.{field.name}")
        if self._peek() <= 0x7F:
            return self._range(1, named, self._take(1)[0])
        return self._head(_UINTS, named)

    def _array(self, named: Int) -> ByteRange:
        if 0x90 <= self._peek() <= 0x9F:
            return self._range(1, named, self._take(1)[0] & 0x0F)
        return self._head(_ARRAYS, named)

    def _head(self, forms: dict[int, tuple[int, int]], named: Int) -> ByteRange:
        first = self._peek()
        if first not in forms:
            raise WireError("malformed", f"{named.name}: byte {self.position} must not be 0x{first:02x}")
        width, least = forms[first]
        value = int.from_bytes(self._take(1 + width)[1:], "big")
        if value < least:
            raise WireError("malformed", f"{named.name} must be in its shortest encoding")
        return self._range(1 + width, named, value)

    def _range(self, width: int, named: Int, value: int) -> ByteRange:
        named.check(value)
        return ByteRange(self.position - width, self.position, named.name, named.meaning, named.low, named.high, value)

    def _peek(self) -> int:
        if self.position >= len(self.data):
            raise WireError("malformed", f"a frame must not end at byte {self.position}")
        return self.data[self.position]

    def _take(self, width: int) -> bytes:
        chunk = self.data[self.position : self.position + width]
        if len(chunk) < width:
            raise WireError("malformed", f"a frame must not end at byte {len(self.data)}")
        self.position += width
        return chunk
