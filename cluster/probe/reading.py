"""A value with where it came from. Nothing here knows what is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Reading(Generic[T_co]):
    """`value` is None where it could not be read (never 0); `source` then says why."""

    value: T_co
    source: str


def least(one: Reading[int | None], other: Reading[int | None]) -> Reading[int | None]:
    """The smaller, the first where they are equal. An unknown one might be smaller, so it makes the result unknown."""
    if one.value is None or other.value is None:
        return one if one.value is None else other
    return other if other.value < one.value else one
