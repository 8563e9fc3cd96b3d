"""Writes what docs/planning.md prints and reckons: `python tests/plan_docs.py`, after whatever changed it.

Commands are run for their output; the tables come from footprint_by_hand.py: page and planner are two reckonings.
"""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Callable
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from footprint_by_hand import GIB, MIB, QWEN3_4B, QWEN3_8B, QWEN3_14B, Parts, expected, headroom

from twinspark.deploy.cli import main

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "planning.md"
CONSOLE = re.compile(r"```console\n\$ twinspark (.*)\n(?:.*\n)*?```\n")
TABLE = re.compile(r"<!-- (memory|speed|cost): ([\w-]+) -->\n(?:\|.*\n)*")
SURVIVAL, MOST_DRAFTS = 0.75, 7


@dataclass(frozen=True)
class Memory:
    """A line of a table: what, its parts, what it may take there, and whether the draft's margin is asked of it."""

    what: str
    parts: Parts
    room: int
    is_draft: bool = False

    @property
    def wanted(self) -> int:
        return int(1.15 * self.parts.together) if self.is_draft else self.parts.together


@dataclass(frozen=True)
class Speed:
    """A line of a table. `ms`: verify, draft, link, overhead."""

    placement: str
    requests: int
    drafts: int
    ms: tuple[float, float, float, float]

    @property
    def tok_per_s(self) -> float:
        return 1000 * self.requests * expected(SURVIVAL, self.drafts) / sum(self.ms)


CARD_ROOM = headroom(11.3, 12, 512 * MIB)
CARD_TARGET = QWEN3_4B.target_on_gpu(2048, 1, 7)
H200_ROOM = headroom(139, 140, 512 * MIB)
H200_8B = QWEN3_8B.target_on_gpu(8192, 8, 7)
H200_14B = QWEN3_14B.target_on_gpu(8192, 8, 7)
L4_ROOM = headroom(22.4, 22.5, 512 * MIB)
L4_TARGET = QWEN3_8B.target_on_gpu(2048, 1, 7)
L4_TWO = QWEN3_8B.target_on_gpu(2048, 2, 7)

MEMORY: dict[str, list[Memory]] = {
    "card-12gb-4b": [
        Memory("target, 4 requests, no draft", QWEN3_4B.target_on_gpu(2048, 4, 0), CARD_ROOM),
        Memory("target, 1 request, 7 drafts", CARD_TARGET, CARD_ROOM),
        Memory(
            "head beside it, 1 request", QWEN3_4B.head_beside_on_gpu(2048, 1), CARD_ROOM - CARD_TARGET.together, True
        ),
        Memory("target, 2 requests, 7 drafts", QWEN3_4B.target_on_gpu(2048, 2, 7), CARD_ROOM),
        Memory(
            "head beside it, 2 requests",
            QWEN3_4B.head_beside_on_gpu(2048, 2),
            CARD_ROOM - QWEN3_4B.target_on_gpu(2048, 2, 7).together,
            True,
        ),
        Memory("draft on the CPU, 4 requests", QWEN3_4B.draft_on_cpu(2048, 4), headroom(24, 32, 2 * GIB), True),
    ],
    "h200-8b": [
        Memory("target, 8 requests, no draft", QWEN3_8B.target_on_gpu(8192, 8, 0), H200_ROOM),
        Memory("target, 8 requests, 7 drafts", H200_8B, H200_ROOM),
        Memory("head beside it", QWEN3_8B.head_beside_on_gpu(8192, 8), H200_ROOM - H200_8B.together, True),
        Memory("draft on the CPU", QWEN3_8B.draft_on_cpu(8192, 8), headroom(128, 128, 2 * GIB), True),
    ],
    "h200-14b": [
        Memory("target, 8 requests, no draft", QWEN3_14B.target_on_gpu(8192, 8, 0), H200_ROOM),
        Memory("target, 8 requests, 7 drafts", H200_14B, H200_ROOM),
        Memory("head beside it", QWEN3_14B.head_beside_on_gpu(8192, 8), H200_ROOM - H200_14B.together, True),
        Memory("draft on the CPU", QWEN3_14B.draft_on_cpu(8192, 8), headroom(128, 128, 2 * GIB), True),
    ],
    "gpu-and-cpu-node": [
        Memory("target, 4 requests, no draft", QWEN3_8B.target_on_gpu(2048, 4, 0), L4_ROOM),
        Memory("target, 2 requests, 7 drafts", L4_TWO, L4_ROOM),
        Memory("head beside it, 2 requests", QWEN3_8B.head_beside_on_gpu(2048, 2), L4_ROOM - L4_TWO.together, True),
        Memory("target, 1 request, 7 drafts", L4_TARGET, L4_ROOM),
        Memory("head beside it, 1 request", QWEN3_8B.head_beside_on_gpu(2048, 1), L4_ROOM - L4_TARGET.together, True),
        Memory("draft on the idle node, 4 requests", QWEN3_8B.draft_on_cpu(2048, 4), headroom(60, 64, 2 * GIB), True),
        Memory("draft on the idle node, 1 request", QWEN3_8B.draft_on_cpu(2048, 1), headroom(60, 64, 2 * GIB), True),
    ],
}
SPEEDS: dict[str, list[Speed]] = {
    "card-12gb-4b": [
        Speed("off", 4, 0, (17.7, 0.0, 0.0, 0.0)),
        Speed("colocated", 1, 7, (17.7, 3.4, 0.0, 0.0)),
        Speed("cpu", 4, 7, (17.7, 27.0, 0.3, 0.0)),
    ],
    "h200-8b": [
        Speed("off", 8, 0, (4.45, 0.0, 0.0, 0.5)),
        Speed("colocated", 8, 7, (4.36, 0.93, 0.0, 0.5)),
        Speed("gpu", 8, 7, (4.36, 1.2, 0.3, 0.5)),
        Speed("cpu", 8, 7, (4.36, 61.0, 0.3, 0.5)),
    ],
    "h200-14b": [
        Speed("off", 8, 0, (8.08, 0.0, 0.0, 0.5)),
        Speed("colocated", 8, 7, (8.08, 1.21, 0.0, 0.5)),
        Speed("gpu", 8, 7, (8.08, 1.68, 0.3, 0.5)),
        Speed("cpu", 8, 7, (8.08, 97.0, 0.3, 0.5)),
    ],
    "cpu-fleet": [
        Speed("amx, off", 4, 0, (198.0, 0.0, 0.0, 0.0)),
        Speed("amx, colocated", 4, 7, (255.0, 19.0, 0.0, 0.0)),
        Speed("old, off", 4, 0, (396.0, 0.0, 0.0, 0.0)),
        # three sevenths of the way from 396 to 1000
        Speed("old, colocated", 4, 3, (396.0 + (1000.0 - 396.0) * 3 / 7, 38.0, 0.0, 0.0)),
    ],
    "gpu-and-cpu-node": [
        Speed("off", 4, 0, (56.0, 0.0, 0.0, 0.0)),
        Speed("colocated", 2, 7, (56.0, 10.0, 0.0, 0.0)),
        Speed("colocated", 1, 7, (56.0, 10.0, 0.0, 0.0)),
        Speed("cpu, idle node", 4, 7, (56.0, 15.0, 1.0, 0.0)),
        Speed("cpu, GPU's node", 4, 7, (56.0, 124.0, 0.3, 0.0)),
        Speed("cpu, idle node", 1, 7, (56.0, 15.0, 1.0, 0.0)),
    ],
}


def refreshed(page: str) -> str:
    """The page with every output and every table made anew."""
    page = CONSOLE.sub(lambda found: f"```console\n$ twinspark {found[1]}\n{output(found[1])}```\n", page)
    makers: dict[str, Callable[[str], str]] = {"memory": memory_table, "speed": speed_table, "cost": cost_table}
    return TABLE.sub(lambda found: f"<!-- {found[1]}: {found[2]} -->\n{makers[found[1]](found[2])}", page)


def output(arguments: str) -> str:
    """What a command prints."""
    out = io.StringIO()
    with redirect_stdout(out), chdir(ROOT):
        main(shlex.split(arguments))
    return out.getvalue()


def memory_table(example: str) -> str:
    lines = [
        "| bytes | weights | cache | workspace | process | together | wanted (GiB) | of (GiB) | |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for line in MEMORY[example]:
        parts = line.parts
        amounts = (parts.weights, parts.kv, parts.workspace, parts.overhead, parts.together)
        margin = "1.15 x " if line.is_draft else ""
        wanted = f"{margin}{parts.together / GIB:.2f}" + (f" = {line.wanted / GIB:.2f}" if line.is_draft else "")
        verdict = "fits" if line.wanted <= line.room else "no room"
        numbers = " | ".join(f"{amount:,}" for amount in amounts)
        lines.append(f"| {line.what} | {numbers} | {wanted} | {line.room / GIB:.2f} | {verdict} |")
    return "\n".join(lines) + "\n"


def speed_table(example: str) -> str:
    lines = [
        "| | requests | tokens a round | verify + draft + link + overhead, ms | round, ms | tokens/s |",
        "|---|---:|---:|---|---:|---:|",
    ]
    for line in SPEEDS[example]:
        length = expected(SURVIVAL, line.drafts)
        parts = " + ".join(f"{round(ms, 2):g}" for ms in line.ms)
        numbers = f"{length:.4f} | {parts} | {sum(line.ms):.2f} | {line.tok_per_s:.1f}"
        lines.append(f"| {line.placement} | {line.requests} | {numbers} |")
    return "\n".join(lines) + "\n"


def cost_table(example: str) -> str:
    """One request on the L4: beside it, and on the idle node."""
    head, total = QWEN3_8B.head_beside_on_gpu(2048, 1), int(22.5 * GIB)
    alone, both = L4_TARGET.together, L4_TARGET.together + head.together
    lines = [
        "| | of the card, bytes | share | per hour | tokens/s | tokens per money |",
        "|---|---:|---:|---|---:|---:|",
    ]
    for where, taken, cores, ms in (("beside it", both, 1, 66.0), ("on the idle node", alone, 33, 72.0)):
        price = 0.7 * taken / total + 0.0005 * cores
        reckoned = f"{taken / total:.4f} x 0.7 + {cores} x 0.0005 = {price:.4f}"
        speed = 1000 * expected(SURVIVAL, MOST_DRAFTS) / ms
        lines.append(
            f"| {where} | {taken:,} | {taken / total:.4f} | {reckoned} | {speed:.2f} | {3600 * speed / price:,.0f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(refreshed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
