"""The faults a frame can be refused for, by stable name. Their order is what a Refused frame carries: append only."""

from __future__ import annotations

from twinspark.actors.errors import WireError

FAULTS = (
    "malformed",
    "oversized",
    "out_of_range",
    "unknown_kind",
    "duplicate",
    "unexpected",
    "foreign",
    "stale_epoch",
    "stale_round",
    "unknown_session",
    "wrong_start",
    "session_open",
    "no_room",
)

SESSION_FAULTS = frozenset({"unknown_session", "wrong_start", "session_open", "no_room"})
"""Faults that concern one session; every other fault concerns the whole frame."""


class SessionFault(WireError):
    """A frame asks something of one session that cannot be done; `session` tells which."""

    def __init__(self, name: str, session: int, detail: str) -> None:
        if name not in SESSION_FAULTS:
            raise ValueError(f"a session's fault must be one of {', '.join(sorted(SESSION_FAULTS))}, got {name!r}")
        super().__init__(name, f"session {session}: {detail}")
        self.session = session


def fault_index(name: str) -> int:
    """Where `name` stands in FAULTS. Raises ValueError for a name that is not there."""
    if name not in FAULTS:
        raise ValueError(f"a fault must be one of {', '.join(FAULTS)}, got {name!r}")
    return FAULTS.index(name)
