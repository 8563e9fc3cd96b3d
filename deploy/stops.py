"""Stop strings in text that arrives in pieces. Knows text and token counts; nothing of tokens or of the engine.

The match that *completes* first wins; of several that complete at the same character, the longest. That is what a
reader of one character at a time would find, so the result does not depend on how rounds cut the text. The stop string
itself is not emitted. The token in which it completes was generated and counts as kept, with any text of its own that
follows the stop string thrown away; vLLM counts the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_STOPS = 16
MAX_STOP_CHARS = 256


@dataclass(frozen=True)
class StopMatch:
    """`text` can be shown now. With a stop string found, `stop` is it, and the output is `num_tokens_kept` tokens.

    Without one, `num_tokens_kept` is every token so far.
    """

    text: str
    stop: str | None
    num_tokens_kept: int

    @property
    def stopped(self) -> bool:
        return self.stop is not None


def checked_stops(stops: Sequence[str]) -> tuple[str, ...]:
    """The stop strings, if they are within bounds. Raises ValueError."""
    if isinstance(stops, str) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError(f"stop must be a list of strings, got {stops!r}")
    if len(stops) > MAX_STOPS:
        raise ValueError(f"at most {MAX_STOPS} stop strings are taken, got {len(stops)}")
    for stop in stops:
        if not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise ValueError(f"a stop string must have 1 to {MAX_STOP_CHARS} characters, got {len(stop)}")
    return tuple(stops)


class StopMatcher:
    """Holds back exactly the text that may still turn out to be the beginning of a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = checked_stops(stops)
        self._borders = [_borders(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)  # characters of each stop string that the text so far ends with
        self._held = ""
        self._num_tokens = 0
        self._found: str | None = None

    def push(self, text: str, num_tokens: int) -> StopMatch:
        """More text, completed by token number `num_tokens` (counted from 1, never falling).

        After a stop was found, further text is ignored: rounds may be under way when the engine is told.
        """
        if num_tokens < self._num_tokens:
            raise ValueError(f"num_tokens must not fall below {self._num_tokens}, got {num_tokens}")
        if self._found is not None:
            return StopMatch("", self._found, self._num_tokens)
        self._num_tokens = num_tokens
        text = self._held + text
        for position in range(len(self._held), len(text)):
            self._found = self._advance(text[position])
            if self._found is not None:
                self._held = ""
                return StopMatch(text[: position + 1 - len(self._found)], self._found, num_tokens)
        num_safe = len(text) - max(self._matched, default=0)
        self._held = text[num_safe:]
        return StopMatch(text[:num_safe], None, num_tokens)

    def finish(self) -> StopMatch:
        """The output ended without (further) text: what was held back is no stop string and can be shown."""
        text, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return StopMatch(text, self._found, self._num_tokens)

    def _advance(self, char: str) -> str | None:
        """One more character for every stop string; the longest of those it completes."""
        completed: str | None = None
        for index, (stop, borders) in enumerate(zip(self._stops, self._borders, strict=True)):
            length = self._matched[index]
            while length and stop[length] != char:
                length = borders[length - 1]
            length += stop[length] == char
            self._matched[index] = length
            if length == len(stop) and len(stop) > len(completed or ""):
                completed = stop
        return completed


def _borders(stop: str) -> list[int]:
    """For each prefix of `stop`, its longest proper prefix that is also its suffix (Knuth, Morris and Pratt 1977)."""
    borders = [0] * len(stop)
    for position in range(1, len(stop)):
        length = borders[position - 1]
        while length and stop[length] != stop[position]:
            length = borders[length - 1]
        borders[position] = length + (stop[length] == stop[position])
    return borders
