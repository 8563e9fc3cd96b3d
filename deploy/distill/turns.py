"""What a chat template puts between turns, as token ids: found by rendering conversations that differ in one word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twinspark.deploy.tokenizer import Tokenizer


@dataclass(frozen=True)
class Turns:
    """`opening` comes before the first user turn, `after_user` and `after_answer` between turns. A turn ends with one
    of `end_ids`, which the writer of the turn says; the template's own end of a turn is not among the other ids.
    """

    opening: tuple[int, ...]
    after_user: tuple[int, ...]
    after_answer: tuple[int, ...]
    end_ids: tuple[int, ...]

    def answers(self, ids: Tensor) -> Tensor:
        """Where in `ids` [texts, positions] the token is of an answer, its end included. bool."""
        if not self.after_user:
            return torch.ones_like(ids, dtype=torch.bool)
        places = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
        begins, size = torch.zeros_like(ids, dtype=torch.bool), len(self.after_user)
        pattern = torch.tensor(self.after_user, device=ids.device)
        begins[:, size:] = (ids.unfold(1, size, 1) == pattern).all(dim=-1)[:, :-1]
        ended = torch.isin(ids, torch.tensor(self.end_ids, device=ids.device)).roll(1, dims=1)
        ended[:, 0] = False
        begun_at, ended_at = (torch.where(at, places, -1).cummax(dim=1).values for at in (begins, ended))
        return (begun_at >= 0) & (begun_at >= ended_at)


def turns_of(tokenizer: Tokenizer) -> Turns:
    """Raises ValueError for a checkpoint without a chat template, or whose template does not end its turns."""
    if not tokenizer.has_chat_template or not tokenizer.eos_ids:
        raise ValueError("the target must have a chat template and an end of turn to write its own text, got none")

    def chat(*contents: str) -> list[int]:
        roles = ("user", "assistant", "user")
        return tokenizer.chat([{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)])

    one, three = chat("A"), chat("A", "A", "A")
    user_at = _first_difference(one, chat("B"))
    answer_at, next_at = _first_difference(three, chat("A", "B", "A")), _first_difference(three, chat("A", "A", "B"))
    after_user, after_answer = one[user_at + 1 :], three[answer_at + 1 : next_at]
    return Turns(
        tuple(one[:user_at]),
        _without_end(after_user, tokenizer.eos_ids),
        _without_end(after_answer, tokenizer.eos_ids),
        tokenizer.eos_ids,
    )


def _first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    found = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    if found is None:
        raise ValueError("the chat template must show every message's content, and hides one")
    return found


def _without_end(ids: Sequence[int], end_ids: Sequence[int]) -> tuple[int, ...]:
    return tuple(ids[1:] if ids and ids[0] in end_ids else ids)
