"""What a person sees while waiting: notes and loading bars, on stderr only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:  # a head is trained without Ray
    from twinspark.cluster.measure import OnStage
    from twinspark.cluster.spawn import OnProgress

console = Console(stderr=True, highlight=False)


def note(text: str) -> None:
    """One line."""
    console.print(text, markup=False, soft_wrap=True)


@contextmanager
def loading_bars() -> Iterator[OnProgress]:
    """A bar an actor while it loads; one plain line each where stderr is no terminal."""
    bars = Progress(
        TextColumn("loading {task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    tasks = {}
    finished: set[str] = set()

    def show(name: str, done: int, total: int) -> None:
        if name not in tasks:
            tasks[name] = bars.add_task(name, total=total or None)
        bars.update(tasks[name], completed=done, total=total or None)
        if total and done >= total and name not in finished:
            finished.add(name)
            note(f"loaded {name}: {done / 1e6:.0f} MB read")

    with bars:
        yield show


def _named_bars() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextmanager
def timing_bar() -> Iterator[OnStage]:
    """One bar for what is being timed; nothing where stderr is no terminal."""
    bars = _named_bars()
    task = bars.add_task("starting", total=None)
    with bars:
        yield lambda name, done, total: bars.update(task, description=name, completed=done, total=total)


@contextmanager
def share_bar(what: str) -> Iterator[Callable[[float], None]]:
    """One bar for work of which a share (0 to 1) is done; nothing where stderr is no terminal."""
    bars = _named_bars()
    task = bars.add_task(what, total=1.0)
    with bars:
        yield lambda share: bars.update(task, completed=share)
