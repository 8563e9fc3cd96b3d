"""Reading the kernel's small files, telling one that is not there from one that cannot be read."""

from __future__ import annotations

import errno
from pathlib import Path

MISSING = {errno.ENOENT, errno.ENOTDIR, errno.ENODEV}  # ENODEV: the cgroup was removed while we looked
NO_LIMIT = "max"


class Unreadable(Exception):
    """A file is there, but cannot be read or says what it never should. Names it and says why."""


def text_of(path: Path) -> str | None:
    """The file's text, None where there is no such file. Raises Unreadable, as all below do."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        if error.errno in MISSING:
            return None
        raise Unreadable(f"{path.name}: {error.strerror}") from error


def number_of(path: Path) -> int | None:
    """The file's number, None where there is no such file or it says `max`."""
    text = text_of(path)
    return None if text is None or text.strip() == NO_LIMIT else whole(text, path)


def whole(text: str, path: Path) -> int:
    """`text`, which stands in the file `path`, as an integer."""
    try:
        return int(text)
    except ValueError:
        raise Unreadable(f"{path.name} must hold a number, got {text.strip()[:40]!r}") from None


def table_of(path: Path) -> dict[str, int]:
    """Lines `name number` and `name: number kB` (as bytes), others left out. Empty where there is no such file."""
    table = {}
    for line in (text_of(path) or "").splitlines():
        match line.replace(":", " ").split():
            case [*_, name, number, "kB"] if number.isdigit():
                table[name] = int(number) * 1024
            case [name, number] if number.isdigit():
                table[name] = int(number)
    return table


def cpus_of(path: Path) -> tuple[int, ...] | None:
    """The CPU numbers of a file in the kernel's list format, None where there is no such file."""
    text = text_of(path)
    return None if text is None else cpu_list(text, path)


def cpu_list(text: str, path: Path) -> tuple[int, ...]:
    """`0-3,8` as numbers; `text` stands in the file `path`."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        first, dash, last = part.partition("-")
        if part:
            numbers.extend(range(whole(first, path), whole(last if dash else first, path) + 1))
    return tuple(numbers)
