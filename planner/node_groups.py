"""Nodes that are alike: what the planner has to look at of a large cluster, and what a person has to see of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twinspark.planner.candidates import NODES_OF_A_CLASS
from twinspark.planner.nodes import Node


@dataclass(frozen=True)
class NodeGroup:
    """Nodes that are equal in all but their names, by name."""

    nodes: tuple[Node, ...]

    @property
    def first(self) -> Node:
        return self.nodes[0]


def group_equal(nodes: Sequence[Node]) -> list[NodeGroup]:
    """Groups, in the order of their first nodes."""
    found: dict[tuple[object, ...], list[Node]] = {}
    for node in nodes:
        alike = node.num_cpus, node.cpu_model, node.total_ram_bytes, node.available_ram_bytes, node.gpus
        found.setdefault(alike, []).append(node)
    groups = [NodeGroup(tuple(sorted(same, key=lambda node: node.name))) for same in found.values()]
    return sorted(groups, key=lambda group: group.first.name)


def representatives(groups: Sequence[NodeGroup]) -> list[Node]:
    """As many of each group as `candidates` would look at: a decision among these is the decision among all."""
    return [node for group in groups for node in group.nodes[:NODES_OF_A_CLASS]]
