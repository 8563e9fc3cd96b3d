"""`twinspark plan --json`: a decision, its candidates, the nodes, and a fleet, as one document (DESIGN section 8).

`node` and `device` are the draft's; the target's where it has none of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from twinspark.planner.fleet import Amounts, Fleet, Part, Run
from twinspark.planner.node_groups import NodeGroup
from twinspark.planner.nodes import CPU, Node, Seat, seats
from twinspark.planner.placement import Candidate, Decision, Demand


def plan_document(
    decision: Decision,
    groups: Sequence[NodeGroup],
    demand: Demand,
    context: int,
    taken: Mapping[Seat, int],
    fleet: Fleet | None,
) -> dict[str, Any]:
    hosts = {node.name: node.host for group in groups for node in group.nodes}
    chosen = _candidate(decision.chosen, hosts)
    document: dict[str, Any] = {
        "decision": {
            "placement": decision.placement,
            "reason": decision.reason,
            "requested": decision.requested,
            **{name: value for name, value in chosen.items() if name not in ("placement", "why")},
            "fallbacks": [{"placement": step.placement, **_seats(step, hosts)} for step in decision.fallbacks],
        },
        "candidates": [
            {**_candidate(candidate, hosts), "chosen": candidate == decision.chosen}
            for candidate in decision.candidates
        ],
        "nodes": [_node(group, taken) for group in groups],
        "measured": decision.measured,
        "objective": demand.objective,
        "context": context,
        "max_seqs": demand.num_requests,
    }
    if fleet is not None:
        document["fleet"] = _fleet(fleet, hosts)
    return document


def _candidate(candidate: Candidate, hosts: Mapping[str, str]) -> dict[str, Any]:
    speed, price = candidate.predicted_tok_per_s, candidate.price_per_hour
    return {
        "placement": candidate.placement,
        **_seats(candidate, hosts),
        "feasible": candidate.feasible,
        "footprint_bytes": candidate.footprint_bytes,
        "headroom_bytes": candidate.headroom_bytes,
        "target_bytes": candidate.target_bytes,
        "num_requests": candidate.num_requests,
        "verify_length": candidate.verify_length,
        "predicted_tok_per_s": None if speed is None else round(speed, 3),
        "price_per_hour": None if price is None else round(price, 6),
        "why": candidate.why,
    }


def _seats(candidate: Candidate, hosts: Mapping[str, str]) -> dict[str, str]:
    seat, target = candidate.seat, candidate.target
    return {
        "node": seat.node,
        "host": hosts[seat.node],
        "device": seat.device,
        "target_node": target.node,
        "target_host": hosts[target.node],
        "target_device": target.device,
    }


def _node(group: NodeGroup, taken: Mapping[Seat, int]) -> dict[str, Any]:
    """One node, or `count` equal ones by the first of them; only of that one something is taken."""
    node = group.first
    return {
        "node": node.name,
        "host": node.host,
        "count": len(group.nodes),
        "last_host": group.nodes[-1].host,
        "num_cpus": node.num_cpus,
        "cpu_model": node.cpu_model,
        "devices": [_device(node, seat, taken.get(seat, 0)) for seat in seats([node])],
    }


def _device(node: Node, seat: Seat, taken: int) -> dict[str, Any]:
    on_cpu = seat.device == CPU
    gpu = None if on_cpu else node.gpu(seat.device)
    return {
        "device": seat.device,
        "model": node.cpu_model if gpu is None else gpu.name,
        "total_bytes": node.total_ram_bytes if gpu is None else gpu.total_bytes,
        "free_bytes": node.available_ram_bytes if gpu is None else gpu.free_bytes,
        "headroom_bytes": node.headroom_bytes(seat.device),
        "taken_bytes": taken,
    }


def _fleet(fleet: Fleet, hosts: Mapping[str, str]) -> dict[str, Any]:
    speed, price = fleet.tok_per_s, fleet.price_per_hour
    return {
        "asked": {"tok_per_s": fleet.wanted.tok_per_s, "concurrency": fleet.wanted.concurrency},
        "met": fleet.met,
        "reason": fleet.reason,
        "most": round(fleet.most, 3),
        "measured": fleet.measured,
        "num_pairs": fleet.num_pairs,
        "concurrency": fleet.concurrency,
        "predicted_tok_per_s": None if speed is None else round(speed, 3),
        "price_per_hour": None if price is None else round(price, 6),
        "layouts": [_part(part, hosts) for part in fleet.parts],
        "total": _amounts(fleet.total),
        "free": _amounts(fleet.free),
    }


def _part(part: Part, hosts: Mapping[str, str]) -> dict[str, Any]:
    layout = part.layout
    return {
        "placement": layout.placement,
        "where": layout.where,
        "target_device": layout.target.name,
        "draft_device": None if layout.draft is None else layout.draft.name,
        "num_pairs": part.num_pairs,
        "num_requests": layout.num_requests,
        "verify_length": layout.verify_length,
        "predicted_tok_per_s": None if layout.tok_per_s is None else round(layout.tok_per_s, 3),
        "price_per_hour": None if layout.price_per_hour is None else round(layout.price_per_hour, 6),
        "targets": [_run(run, hosts) for run in part.targets],
        "drafts": [_run(run, hosts) for run in part.drafts],
    }


def _run(run: Run, hosts: Mapping[str, str]) -> dict[str, Any]:
    return {
        "nodes": len(run.nodes),
        "first_host": hosts[run.nodes[0]],
        "last_host": hosts[run.nodes[-1]],
        "on_each": run.each,
    }


def _amounts(amounts: Amounts) -> dict[str, int]:
    return {
        "gpus": amounts.gpus,
        "cores": amounts.cores,
        "ram_bytes": amounts.ram_bytes,
        "vram_bytes": amounts.vram_bytes,
    }
