"""Token ids of one completion to the text a person sees, ended by stop strings. Knows nothing of requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from twinspark.deploy.detokenize import Detokenizer, Piece
from twinspark.deploy.stops import StopMatch, StopMatcher
from twinspark.deploy.tokenizer import Tokenizer


@dataclass(frozen=True)
class TextPiece:
    """`num_tokens_kept` counts from the beginning of the completion: where a stop string ended it, else all so far."""

    text: str
    stopped: bool
    num_tokens_kept: int


class TextStream:
    """`push` every round's tokens, then `finish`; once `stopped`, tell the engine (more tokens would be ignored)."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = (), *, skip_special: bool = True) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_special=skip_special)
        self._matcher = StopMatcher(stops)
        self._num_tokens = 0
        self._stopped_at: int | None = None

    def push(self, ids: Sequence[int]) -> TextPiece:
        """The text that may be shown now."""
        if self._stopped_at is not None:
            return TextPiece("", True, self._stopped_at)
        self._num_tokens += len(ids)
        return self._match(self._detokenizer.push_pieces(ids))

    def finish(self) -> TextPiece:
        """The rest: held-back text, and U+FFFD for a character that was never completed."""
        if self._stopped_at is not None:
            return TextPiece("", True, self._stopped_at)
        last = self._match(self._detokenizer.finish_pieces())
        if last.stopped:
            return last
        return TextPiece(last.text + self._matcher.finish().text, False, self._num_tokens)

    def _match(self, pieces: Iterable[Piece]) -> TextPiece:
        shown = []
        for piece in pieces:
            match: StopMatch = self._matcher.push(piece.text, piece.num_tokens)
            shown.append(match.text)
            if match.stopped:
                self._stopped_at = match.num_tokens_kept
                return TextPiece("".join(shown), True, match.num_tokens_kept)
        return TextPiece("".join(shown), False, self._num_tokens)
