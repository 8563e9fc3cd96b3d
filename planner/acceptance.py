"""How many tokens a round is expected to commit, from conditional survival by position."""

from __future__ import annotations

from collections.abc import Sequence


def expected_length(survival: Sequence[float], verify_length: int) -> float:
    """Tokens committed per verify, bonus included. `survival[k]` is the chance that draft token k is accepted, given
    that those before it were; positions beyond the record are taken as lost.
    """
    length, alive = 1.0, 1.0
    for chance in survival[:verify_length]:
        alive *= min(1.0, max(0.0, chance))
        length += alive
    return length
