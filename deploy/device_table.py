"""A table of devices with bars of headroom, for people: what `probe` and `plan` show of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.table import Table
from rich.text import Text

from twinspark.planner.nodes import CPU, GIB, Node, Seat, seats

BAR_CELLS = 20
TAKEN, FREE, KEPT = "#", "=", "."
LEGEND = "bars: # taken by this plan, = headroom that is left, . in use or kept in reserve"


def device_table(nodes: Iterable[tuple[str, Node]], taken: Mapping[Seat, int] | None = None) -> Table:
    """Every device of labelled nodes; the labels are shown where there are any. `taken` is what a plan puts where."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    rows = list(nodes)
    labelled = any(label for label, _ in rows)
    if labelled:
        table.add_column("node", no_wrap=True)
    table.add_column("device", no_wrap=True)
    table.add_column("model", no_wrap=labelled, overflow="fold")
    for heading in ("total", "free now", "headroom", *(["taken"] if taken is not None else [])):
        table.add_column(f"{heading} GiB", justify="right", no_wrap=True)
    table.add_column(width=BAR_CELLS, no_wrap=True)
    for label, node in rows:
        for i, seat in enumerate(seats([node])):
            cells = _row(node, seat, None if taken is None else taken.get(seat, 0))
            table.add_row(*([Text(label if i == 0 else "")] if labelled else []), *cells)
    return table


def _row(node: Node, seat: Seat, taken: int | None) -> tuple[Text, ...]:
    if seat.device == CPU:
        model, total, free = "RAM", node.total_ram_bytes, node.available_ram_bytes
    else:
        gpu = node.gpu(seat.device)
        model, total, free = gpu.name, gpu.total_bytes, gpu.free_bytes
    headroom = node.headroom_bytes(seat.device)
    amounts = [_gib(total), _gib(free), _gib(headroom), *([] if taken is None else [_gib(taken)])]
    return Text(seat.device), Text(model), *amounts, Text(bar(total or 0, headroom or 0, taken or 0))


def bar(total: int, headroom: int, taken: int) -> str:
    """A device's memory in cells. Anything that is taken shows; what is taken beyond the headroom shows in full."""
    if not total:
        return ""
    used = min(BAR_CELLS, max(int(taken > 0), round(BAR_CELLS * taken / total)))
    left = min(BAR_CELLS - used, max(0, round(BAR_CELLS * headroom / total) - used))
    return TAKEN * used + FREE * left + KEPT * (BAR_CELLS - used - left)


def _gib(num_bytes: int | None) -> Text:
    return Text("unknown" if num_bytes is None else f"{num_bytes / GIB:.1f}")
