"""How one frame is told from the next on a byte stream: a 4-byte little-endian length, held against a budget."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from twinspark.actors.errors import WireError

MAX_FRAME_BYTES = 1 << 20
GREETING_BYTES = 256
"""Budget of the first frame on a link, before anybody has shown a nonce."""

_PREFIX = struct.Struct("<I")
PREFIX_BYTES = _PREFIX.size


def framed(data: bytes) -> bytes:
    """`data` behind its length."""
    return _PREFIX.pack(len(data)) + data


def frame_length(prefix: bytes, budget: int) -> int:
    """The length that `prefix` announces. Raises WireError unless it is in [1, budget]."""
    (length,) = _PREFIX.unpack(prefix)
    if length == 0:
        raise WireError("malformed", "a frame must have at least 1 byte, got 0")
    if length > budget:
        raise WireError("oversized", f"a frame must be at most {budget} bytes, got {length}")
    return int(length)


def split_recording(data: bytes) -> Iterator[bytes]:
    """The frames in what a link's recorder was given. Raises WireError where a frame is cut short."""
    position = 0
    while position < len(data):
        prefix = data[position : position + PREFIX_BYTES]
        if len(prefix) < PREFIX_BYTES:
            raise WireError("malformed", f"a length must be {PREFIX_BYTES} bytes, got {len(prefix)}")
        length = frame_length(prefix, MAX_FRAME_BYTES)
        position += PREFIX_BYTES
        frame = data[position : position + length]
        if len(frame) < length:
            raise WireError("malformed", f"a frame must be {length} bytes, got {len(frame)}")
        yield frame
        position += length
