"""Named exceptions of the deploy package that are not a caller's mistake (those are ValueErrors)."""

from __future__ import annotations


class DemoModelError(RuntimeError):
    """The embedded model or head cannot be had. One line: what was tried, and how to put the file there by hand."""
