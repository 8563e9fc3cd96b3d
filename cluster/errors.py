"""Named exceptions of the cluster package."""

from __future__ import annotations


class SpawnError(RuntimeError):
    """An actor could not be started or did not come up in time; says what it waited for."""
