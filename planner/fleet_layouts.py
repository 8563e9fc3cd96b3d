"""Every way a pair may sit in a fleet, by kinds of devices: each comes from `candidates`, so it is as a single pair is planned.

What a pair takes depends on whether it sits on a CPU or a GPU, how fast it is on the models of the devices, and neither on
how much memory is free: so a handful of layouts describes any number of nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from twinspark.planner.candidates import TARGET_CORES, candidates
from twinspark.planner.decide import LEAST_CPUS_FOR_CPU_DRAFT, STATIC_ORDER, score
from twinspark.planner.footprint import Footprint
from twinspark.planner.nodes import CPU, Gpu, Node, Seat
from twinspark.planner.placement import Candidate, Demand, Footprints, Kind, Placement
from twinspark.planner.rooms import DRAFT_MARGIN
from twinspark.planner.timings import Timings

Where = Literal["alone", "same device", "same node", "other node"]
ENDLESS_BYTES = 2**62
STATIC_MERIT = 1e-9  # below every measured speed


@dataclass(frozen=True)
class Device:
    """A kind of device. `total_bytes` of a GPU, because it is paid by share; `num_cpus` of a CPU."""

    kind: Kind
    model: str
    num_cpus: int | None = None
    total_bytes: int | None = None

    @classmethod
    def cpu_of(cls, node: Node) -> Device:
        return cls("cpu", node.cpu_model, num_cpus=node.num_cpus)

    @classmethod
    def of(cls, gpu: Gpu) -> Device:
        return cls("cuda", gpu.name, total_bytes=gpu.total_bytes)

    @property
    def name(self) -> str:
        """As step times are kept under."""
        return self.model if self.kind == "cuda" else f"{self.model} x{self.num_cpus}"

    @property
    def order(self) -> tuple[str, str, int, int]:
        return self.kind, self.model, self.num_cpus or 0, self.total_bytes or 0


@dataclass(frozen=True)
class Links:
    """Round trips of a fleet, in milliseconds; None: unknown."""

    same_node_ms: float | None = None
    between_nodes_ms: float | None = None

    @classmethod
    def worst_of(cls, link_ms: Mapping[tuple[str, str], float]) -> Links:
        """The slowest that is known of each sort stands for all of it."""
        same = [ms for (a, b), ms in link_ms.items() if a == b]
        between = [ms for (a, b), ms in link_ms.items() if a != b]
        return cls(max(same, default=None), max(between, default=None))

    def table(self, a: str, b: str) -> dict[tuple[str, str], float]:
        """As Timings keeps them, for two nodes."""
        known = {(a, a): self.same_node_ms, (b, b): self.same_node_ms, (a, b): self.between_nodes_ms}
        return {ends: ms for ends, ms in known.items() if ms is not None}


@dataclass(frozen=True)
class Take:
    """What an actor takes: cores, bytes on its device, bytes in its node's RAM beside it; the margin is in."""

    cores: int
    device_bytes: int
    host_bytes: int

    @property
    def ram_and_device(self) -> int:
        return self.device_bytes + self.host_bytes


NOTHING = Take(0, 0, 0)


@dataclass(frozen=True)
class Layout:
    """One way to sit. `merit` orders layouts: higher is better (the objective's score; by the static rule if there is
    none). One that does not `count` is a target that waits for a draft on another node.
    """

    placement: Placement
    where: Where
    target: Device
    draft: Device | None
    num_requests: int
    verify_length: int
    tok_per_s: float | None
    price_per_hour: float | None
    target_take: Take
    draft_take: Take
    merit: float
    counts: bool = True

    @property
    def rank(self) -> tuple[float, int]:
        """Best first."""
        return -self.merit, STATIC_ORDER.index(self.placement)

    @property
    def num_gpus(self) -> int:
        """GPUs that a pair keeps others from."""
        own = self.target.kind == "cuda"
        another = self.draft is not None and self.draft.kind == "cuda" and self.where != "same device"
        return int(own) + int(another)


@dataclass(frozen=True)
class LayoutMaker:
    """Makes layouts for devices that are told by name."""

    demand: Demand
    footprints: Footprints
    timings: Timings
    links: Links

    def on_one_node(self, cpu: Device, gpus: Sequence[Device]) -> list[Layout]:
        """All of a node with these kinds of devices, however many of each it has."""
        found: list[Layout] = []
        for one in gpus or [None]:
            for other in gpus or [None]:
                node = _roomy("a", cpu, [gpu for gpu in (one, other) if gpu is not None])
                found += self._layouts([node])
        return _unique(found)

    def across_nodes(self, target: Device, draft: Device) -> list[Layout]:
        """A target on a GPU of one node, its draft on another node."""
        nobody = Device("cpu", "", num_cpus=1)
        there = _roomy("b", draft, []) if draft.kind == "cpu" else _roomy("b", nobody, [draft])
        seat = Seat("b", CPU if draft.kind == "cpu" else "cuda:0")
        found = self._layouts([_roomy("a", nobody, [target]), there], only=(Seat("a", "cuda:0"), seat))
        return _unique(found)

    def _layouts(self, nodes: Sequence[Node], only: tuple[Seat, Seat] | None = None) -> list[Layout]:
        timings = replace(self.timings, link_ms=self.links.table("a", "b"))
        devices = {Seat(node.name, CPU): Device.cpu_of(node) for node in nodes}
        devices |= {Seat(node.name, gpu.device): Device.of(gpu) for node in nodes for gpu in node.gpus}
        return [
            self._layout(candidate, devices)
            for candidate in candidates(nodes, self.demand, self.footprints, timings)
            if only is None or only == (candidate.target, candidate.draft)
        ]

    def _layout(self, candidate: Candidate, devices: Mapping[Seat, Device]) -> Layout:
        target, draft = candidate.target, candidate.draft
        num, length = self.demand.num_requests, self.demand.priced_length
        where: Where = "same device"
        draft_take = NOTHING
        if candidate.placement == "off":
            where, length = "alone", 0
        elif draft is None:
            draft_take = _take(0, self.footprints.colocated(target.kind, num, length), DRAFT_MARGIN)
        else:
            if draft.node != target.node:
                where = "other node"
            elif draft != target:
                where = "same node"
            # A CPU target has all cores of its node, and shares them with a draft there.
            shares = draft == target or (draft.node == target.node and target.device == CPU)
            threads = 0 if shares else self.demand.draft_threads
            draft_take = _take(threads, self.footprints.draft(draft.kind, num, length), DRAFT_MARGIN)
        device = devices[target]
        cores = TARGET_CORES if device.num_cpus is None else device.num_cpus
        return Layout(
            placement=candidate.placement,
            where=where,
            target=device,
            draft=None if draft is None else devices[draft],
            num_requests=candidate.num_requests,
            verify_length=candidate.verify_length,
            tok_per_s=candidate.predicted_tok_per_s,
            price_per_hour=candidate.price_per_hour,
            target_take=_take(cores, self.footprints.target(target.kind, num, length), 1.0),
            draft_take=draft_take,
            merit=score(candidate, self.demand) or 0.0,
        )


def worth_having(found: Sequence[Layout], demand: Demand, *, predicted_only: bool) -> tuple[list[Layout], bool]:
    """Those that `demand` and the objective allow, with their merit, and whether all of them rest on measurements.

    Under `auto` a draft must be better than none; where a kind of target was not measured, the static rule decides.
    """
    wanted = [layout for layout in found if demand.requested in ("auto", layout.placement)]
    kept: list[Layout] = []
    measured = True
    for target in dict.fromkeys(layout.target for layout in wanted):
        same = [layout for layout in wanted if layout.target == target]
        scored = [layout for layout in same if layout.merit > 0]
        off = [layout.merit for layout in scored if layout.placement == "off"]
        if demand.requested != "auto" and scored:
            kept += scored
        elif off:
            kept += [layout for layout in scored if layout.placement == "off" or layout.merit > off[0]]
        elif not predicted_only:
            measured = False
            asked_for = demand.requested != "auto"
            kept += [replace(layout, merit=_static_merit(layout)) for layout in same if asked_for or _allowed(layout)]
    return kept, measured


def _allowed(layout: Layout) -> bool:
    if layout.placement != "cpu":
        return True
    cpus = 0 if layout.draft is None else layout.draft.num_cpus or 0
    return layout.target.kind == "cuda" and cpus >= LEAST_CPUS_FOR_CPU_DRAFT


def _static_merit(layout: Layout) -> float:
    steps = len(STATIC_ORDER)
    on_gpu = steps if layout.target.kind == "cuda" else 0
    return STATIC_MERIT * (1 + on_gpu + steps - STATIC_ORDER.index(layout.placement))


def _take(cores: int, footprint: Footprint, margin: float) -> Take:
    return Take(cores, int(margin * footprint.device_bytes), int(margin * footprint.host_bytes))


def _roomy(name: str, cpu: Device, gpus: Sequence[Device]) -> Node:
    """A node that has these devices, and room for anything."""
    return Node(
        name,
        name,
        cpu.num_cpus or 1,
        cpu.model,
        None,
        ENDLESS_BYTES,
        tuple(Gpu(i, str(i), gpu.model, gpu.total_bytes, ENDLESS_BYTES) for i, gpu in enumerate(gpus)),
    )


def _unique(found: Iterable[Layout]) -> list[Layout]:
    return list({(layout.placement, layout.where, layout.target, layout.draft): layout for layout in found}.values())
