"""Where proposals come from, as the target's host sees it. Each source draws on nothing but committed ids (or taps)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from twinspark.actors.target.engine import NOTHING, Proposed, Stepped
from twinspark.actors.target.request import Active


class DraftSource(Protocol):
    """Asked once a round, told of every step, told when a request is gone."""

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers whose outputs the target's steps must hand over."""
        ...

    async def propose(self, decoding: Sequence[Active], context: int) -> Proposed:
        """Proposals for requests whose next token may be drafted. Never raises for a lost draft: it offers nothing."""
        ...

    async def stepped(self, stepped: Stepped) -> None: ...

    async def gone(self, number: int) -> None: ...


class NoDraft:
    """Placement `off`."""

    taps = ()

    async def propose(self, decoding: Sequence[Active], context: int) -> Proposed:
        return NOTHING

    async def stepped(self, stepped: Stepped) -> None:
        return None

    async def gone(self, number: int) -> None:
        return None
