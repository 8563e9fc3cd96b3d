"""`twinspark plan` for people: devices with bars, a line a candidate, the reason; and the same of a fleet."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

from twinspark.deploy.device_table import LEGEND, device_table
from twinspark.planner.candidates import gib
from twinspark.planner.decide import score
from twinspark.planner.fleet import Fleet, Run
from twinspark.planner.fleet_layouts import Layout
from twinspark.planner.node_groups import NodeGroup
from twinspark.planner.nodes import GIB, Node, Seat
from twinspark.planner.placement import Candidate, Decision, Demand

WIDEST = 400  # columns; a line is never broken, a terminal does that by itself
Headings = Sequence[tuple[str, bool]]  # and whether it is a number


def show_plan(
    decision: Decision,
    groups: Sequence[NodeGroup],
    demand: Demand,
    context: int,
    taken: Mapping[Seat, int],
    fleet: Fleet | None,
) -> None:
    """On stdout."""
    console = Console(highlight=False, width=WIDEST if not sys.stdout.isatty() else shutil.get_terminal_size().columns)
    nodes = {node.name: node for group in groups for node in group.nodes}
    hosts = {name: node.host for name, node in nodes.items()}
    asked = f"{demand.num_requests} request{'s' * (demand.num_requests > 1)} at once, context {context}"
    _line(console, f"for {asked}, objective {demand.objective}")
    _line(console, "")
    _table(console, device_table([(_label(group), group.first) for group in groups], taken))
    _line(console, LEGEND)
    _line(console, "")
    _table(console, _candidates(decision, demand, hosts, nodes))
    _line(console, "")
    _line(console, f"placement: {decision.placement}, {_where(decision.chosen, hosts)}")
    basis = "measured" if decision.measured else "not measured"
    told = basis in decision.reason
    _line(console, f"reason: {decision.reason}{'' if told else f' ({basis})'}")
    if decision.fallbacks:
        _line(
            console, f"if its memory is gone by then: {', then '.join(step.placement for step in decision.fallbacks)}"
        )
    if fleet is not None:
        _show_fleet(console, fleet, hosts)


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def _table(console: Console, table: Table) -> None:
    """Lines end where their text does."""
    with console.capture() as captured:
        console.print(table, soft_wrap=False)
    _line(console, "\n".join(line.rstrip() for line in captured.get().splitlines()))


def _label(group: NodeGroup) -> str:
    if len(group.nodes) == 1:
        return group.first.host
    return f"{group.first.host} .. {group.nodes[-1].host} ({len(group.nodes)})"


def _seat(seat: Seat | None, hosts: Mapping[str, str]) -> str:
    if seat is None:
        return "-"
    return seat.device if len(hosts) == 1 else f"{hosts[seat.node]} {seat.device}"


def _where(candidate: Candidate, hosts: Mapping[str, str]) -> str:
    target = f"the target on {_seat(candidate.target, hosts)}"
    if candidate.placement == "off":
        return f"{target}, no draft"
    if candidate.draft is None:
        return f"{target}, the draft beside it"
    return f"{target}, the draft on {_seat(candidate.draft, hosts)}"


def _candidates(decision: Decision, demand: Demand, hosts: Mapping[str, str], nodes: Mapping[str, Node]) -> Table:
    priced = any(candidate.price_per_hour for candidate in decision.candidates)
    table = _headed(
        [
            ("", False),
            ("placement", False),
            ("target", False),
            ("draft", False),
            ("fits", False),
            ("footprint", True),
            ("headroom", True),
            ("at once", True),
            ("verify", True),
            ("tokens/s", True),
            *([("per hour", True)] if priced else []),
            ("why", False),
        ]
    )

    def order(candidate: Candidate) -> tuple[bool, bool, float]:
        return candidate != decision.chosen, not candidate.feasible, -(score(candidate, demand) or 0.0)

    alike = _alike(sorted(decision.candidates, key=order), nodes)
    for candidate, others in alike:
        cells = [
            "*" if candidate == decision.chosen else "",
            candidate.placement,
            _seat(candidate.target, hosts),
            "beside it" if candidate.placement == "colocated" else _seat(candidate.draft, hosts),
            "yes" if candidate.feasible else "no",
            gib(candidate.footprint_bytes),
            gib(candidate.headroom_bytes),
            str(candidate.num_requests) if candidate.feasible else "-",
            str(candidate.verify_length),
            "?" if candidate.predicted_tok_per_s is None else f"{candidate.predicted_tok_per_s:.1f}",
        ]
        if priced:
            cells.append("?" if candidate.price_per_hour is None else f"{candidate.price_per_hour:.3f}")
        why = candidate.why + (f" (and {others} more like it)" if others else "")
        table.add_row(*map(Text, [*cells, why]))
    return table


def _alike(candidates: Sequence[Candidate], nodes: Mapping[str, Node]) -> list[tuple[Candidate, int]]:
    """Each with the number of those that differ from it in nothing but which of equal devices they are on."""

    def kind(candidate: Candidate) -> Candidate:
        def seat(at: Seat) -> Seat:
            # The device class takes the device's place, and whether it is the target's own node the node's.
            near = "" if at.node == candidate.target.node else "another"
            return Seat(near + (" itself" if at == candidate.target else ""), nodes[at.node].device_class(at.device))

        draft = None if candidate.draft is None else seat(candidate.draft)
        return replace(candidate, target=seat(candidate.target), draft=draft)

    counts: dict[Candidate, tuple[Candidate, int]] = {}
    for candidate in candidates:
        first, count = counts.get(kind(candidate), (candidate, -1))
        counts[kind(candidate)] = first, count + 1
    return list(counts.values())


def _headed(headings: Headings) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading, is_number in headings:
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=True)
    return table


def _show_fleet(console: Console, fleet: Fleet, hosts: Mapping[str, str]) -> None:
    table = _headed(
        [
            ("pairs", True),
            ("placement", False),
            ("target", False),
            ("draft", False),
            ("verify", True),
            ("tokens/s each", True),
            ("where", False),
        ]
    )
    for part in fleet.parts:
        layout = part.layout
        speed = "?" if layout.tok_per_s is None else f"{layout.tok_per_s:.1f}"
        where = f"on {_runs(part.targets, hosts)}"
        if part.drafts:
            where += f"; drafts on {_runs(part.drafts, hosts)}"
        cells = [str(part.num_pairs), layout.placement, layout.target.name, _draft(layout), str(layout.verify_length)]
        table.add_row(*map(Text, [*cells, speed, where]))
    _line(console, "")
    _line(console, f"fleet: {fleet.reason}")
    if fleet.parts:
        _table(console, table)
    if fleet.price_per_hour:
        _line(console, f"price: {fleet.price_per_hour:,.2f} per hour")
    free, total = fleet.free, fleet.total
    _line(
        console,
        f"left free: {free.gpus:,} of {total.gpus:,} GPUs, {free.cores:,} of {total.cores:,} cores, "
        f"{free.ram_bytes / GIB:,.1f} of {total.ram_bytes / GIB:,.1f} GiB RAM and "
        f"{free.vram_bytes / GIB:,.1f} of {total.vram_bytes / GIB:,.1f} GiB VRAM of headroom",
    )


def _draft(layout: Layout) -> str:
    if layout.placement == "off":
        return "-"
    if layout.draft is None:
        return "beside it"
    return f"{layout.draft.name} ({layout.where})"


def _runs(runs: Sequence[Run], hosts: Mapping[str, str]) -> str:
    return ", ".join(
        f"{hosts[run.nodes[0]]}: {run.each}"
        if len(run.nodes) == 1
        else f"{len(run.nodes)} nodes ({hosts[run.nodes[0]]} .. {hosts[run.nodes[-1]]}): {run.each} each"
        for run in runs
    )
