"""Text that spells a special token but must not become one: what a user wrote, as against what the template wrote.

The template's output is read with its special tokens, so a user could end his own turn by spelling its mark. Every such
spelling in the messages is broken by a character that occurs nowhere else, carried through the template, and mended
after the special tokens that the template itself wrote have been found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

# Supplementary private-use characters: no template looks for them, and none strips them as white space.
_MARKS = range(0xF0000, 0xF1000)


class SpecialText:
    """Knows the spellings of the special tokens. One that is a single character cannot be broken, and is left alone."""

    def __init__(self, spellings: Iterable[str]) -> None:
        longest_first = sorted((spelling for spelling in spellings if len(spelling) > 1), key=len, reverse=True)
        choice = "|".join(map(re.escape, longest_first))
        self._splitter = re.compile(f"({choice})") if choice else None
        # Looking ahead finds overlapping spellings too.
        self._starts = re.compile(f"(?=(?:{choice}))") if choice else None

    def break_up(self, messages: list[dict[str, object]]) -> tuple[list[dict[str, object]], str | None]:
        """The messages with every spelling broken, and the mark that breaks them (None: there was none to break)."""
        if self._starts is None or not any(self._starts.search(text) for text in _texts(messages)):
            return messages, None
        everything = json.dumps(messages, ensure_ascii=False, default=str)
        mark = next(chr(code) for code in _MARKS if chr(code) not in everything)
        return [{key: self._broken(value, mark) for key, value in message.items()} for message in messages], mark

    def segments(self, text: str, mark: str) -> Iterator[tuple[str, bool]]:
        """`text` cut at whole spellings: (piece, whether it is a special token), with the mark taken out again."""
        pieces = self._splitter.split(text) if self._splitter is not None else [text]
        for index, piece in enumerate(pieces):
            if piece:
                yield piece.replace(mark, ""), index % 2 == 1

    def _broken(self, value: object, mark: str) -> object:
        if isinstance(value, str) and self._starts is not None:
            for start in reversed([match.start() for match in self._starts.finditer(value)]):
                value = value[: start + 1] + mark + value[start + 1 :]
            return value
        if isinstance(value, dict):
            return {key: self._broken(entry, mark) for key, entry in value.items()}
        if isinstance(value, list):
            return [self._broken(entry, mark) for entry in value]
        return value


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for entry in value.values():
            yield from _texts(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _texts(entry)
