"""Token ids to text, piece by piece, so that the pieces together are what decoding all ids at once gives.

Only complete characters come out: bytes of an unfinished character wait for the next token, or for `finish()`, which
gives U+FFFD for what never became one. Knows nothing of stop strings.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from twinspark.deploy.tokenizer import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


@dataclass(frozen=True)
class Piece:
    """Text that the token number `num_tokens` (counted from 1) completed."""

    text: str
    num_tokens: int


class Detokenizer:
    """The text of one growing sequence. Special tokens are left out unless `skip_special` is False."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._decoder: _Decoder
        if tokenizer.is_byte_level:
            self._decoder = _ByteDecoder(tokenizer, skip_special)
        else:
            self._decoder = _WindowDecoder(tokenizer, skip_special)
        self._num_tokens = 0

    def push_pieces(self, ids: Iterable[int]) -> list[Piece]:
        """The text that `ids` complete, cut by the token that completed it (one that completes none has no piece)."""
        pieces = []
        for token_id in ids:
            self._num_tokens += 1
            if text := self._decoder.push(token_id):
                pieces.append(Piece(text, self._num_tokens))
        return pieces

    def push(self, ids: Iterable[int]) -> str:
        return "".join(piece.text for piece in self.push_pieces(ids))

    def finish_pieces(self) -> list[Piece]:
        """What was still waiting, as at most one piece of the last token."""
        text = self._decoder.finish()
        return [Piece(text, self._num_tokens)] if text else []

    def finish(self) -> str:
        return "".join(piece.text for piece in self.finish_pieces())


class _Decoder(Protocol):
    def push(self, token_id: int) -> str: ...

    def finish(self) -> str: ...


class _ByteDecoder:
    """Byte-level BPE: a token is its bytes, and only UTF-8 has to be kept whole."""

    def __init__(self, tokenizer: Tokenizer, skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        return self._utf8.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class _WindowDecoder:
    """Any other tokenizer: the text of a short window of tokens with the new one, less the text without it.

    The window begins at a token boundary before some text already given, so that what a decoder does to the beginning
    of a sequence (strip a space) falls on that text and not on the new one.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._ids: list[int] = []
        self._start = 0  # where the window begins
        self._given = 0  # tokens whose text was given
        self._given_text = ""  # text of the window's tokens before `_given`
        self._num_chars = 0  # characters given in all

    def push(self, token_id: int) -> str:
        self._ids.append(token_id)
        if self._in_byte_run():
            return ""
        text = self._decode(self._start)
        if text.endswith("\ufffd") or not text.startswith(self._given_text):
            return ""
        new = text[len(self._given_text) :]
        if new:
            self._move_window(text)
            self._num_chars += len(new)
        return new

    def finish(self) -> str:
        new = self._decode(0)[self._num_chars :]
        self._start = self._given = len(self._ids)
        self._given_text = ""
        self._num_chars += len(new)
        return new

    def _move_window(self, text: str) -> None:
        shorter = self._decode(self._given)
        # A decoder may strip several spaces, and so few tokens may not take them all: then the window stays as it is.
        if shorter:
            self._start, self._given_text = self._given, shorter
        else:
            self._given_text = text
        self._given = len(self._ids)

    def _in_byte_run(self) -> bool:
        """Whether a byte token came last: byte-fallback decoders judge a whole run of them as UTF-8 or not."""
        skipped = self._tokenizer.special_ids if self._skip_special else frozenset()
        for token_id in reversed(self._ids):
            if token_id not in skipped:
                return _BYTE_TOKEN.fullmatch(self._tokenizer.token_text(token_id)) is not None
        return False

    def _decode(self, start: int) -> str:
        return self._tokenizer.decode(self._ids[start:], skip_special=self._skip_special)
