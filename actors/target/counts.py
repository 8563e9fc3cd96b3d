"""What rounds came to: acceptance by position and where the time went, for the planner. Sums of integers, no ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import zip_longest

from twinspark.actors.wire import MAX_BLOCK


@dataclass(frozen=True)
class Judged:
    """One request's draft tokens in one step. `cut`: a stop or a limit ended it before the verdict on the rest."""

    num_drafts: int
    num_accepted: int
    num_committed: int
    cut: bool


@dataclass(frozen=True)
class RoundCounts:
    """Sums over `num_rounds` rounds without prefill. `reached[k]`: how often draft token k was judged with all before
    it accepted; `kept[k]`: how often it was accepted. `round_us` is the whole round, from one to the next.
    """

    num_rounds: int = 0
    num_requests: int = 0
    num_drafts: int = 0
    num_tokens: int = 0
    draft_us: int = 0
    link_us: int = 0
    verify_us: int = 0
    round_us: int = 0
    reached: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()

    def __add__(self, other: RoundCounts) -> RoundCounts:
        """Both together."""
        sums = {
            field.name: getattr(self, field.name) + getattr(other, field.name)
            for field in fields(self)
            if field.name not in ("reached", "kept")
        }
        return RoundCounts(
            **sums,
            reached=tuple(map(sum, zip_longest(self.reached, other.reached, fillvalue=0))),
            kept=tuple(map(sum, zip_longest(self.kept, other.kept, fillvalue=0))),
        )

    def survival(self, least: int) -> tuple[float, ...] | None:
        """Conditional acceptance by position, as far as judged `least` times; None if not even the first was."""
        found: list[float] = []
        for reached, kept in zip(self.reached, self.kept, strict=True):
            if reached < least:
                break
            found.append(kept / reached)
        return tuple(found) or None


@dataclass
class Counter:
    """Adds up; `take` gives the sums and begins anew."""

    _sums: dict[str, int] = field(default_factory=dict)
    _reached: list[int] = field(default_factory=lambda: [0] * MAX_BLOCK)
    _kept: list[int] = field(default_factory=lambda: [0] * MAX_BLOCK)

    def add(
        self, judged: Sequence[Judged], *, draft_us: int, link_us: int, verify_us: int, round_us: int, timed: bool
    ) -> None:
        """One round. Where it also prefilled (`timed` is False) its acceptance counts, its times do not."""
        for one in judged:
            for k in range(one.num_accepted):
                self._reached[k] += 1
                self._kept[k] += 1
            if one.num_accepted < one.num_drafts and not one.cut:
                self._reached[one.num_accepted] += 1
        if timed:
            self._add("num_rounds", 1)
            self._add("num_requests", len(judged))
            self._add("num_drafts", sum(one.num_drafts for one in judged))
            self._add("num_tokens", sum(one.num_committed for one in judged))
            for name, value in (
                ("draft_us", draft_us),
                ("link_us", link_us),
                ("verify_us", verify_us),
                ("round_us", round_us),
            ):
                self._add(name, value)

    def take(self) -> RoundCounts:
        """The sums since the last call."""
        length = max((k + 1 for k, count in enumerate(self._reached) if count), default=0)
        counts = RoundCounts(**self._sums, reached=tuple(self._reached[:length]), kept=tuple(self._kept[:length]))
        self._sums, self._reached, self._kept = {}, [0] * MAX_BLOCK, [0] * MAX_BLOCK
        return counts

    def _add(self, name: str, value: int) -> None:
        self._sums[name] = self._sums.get(name, 0) + value
