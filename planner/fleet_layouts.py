"""Every way a pair may sit in a fleet, by kinds of devices; speeds and prices are those of a single pair's candidates.

What a pair takes depends on whether it sits on a CPU or a GPU, how fast it is on the models of the devices, and neither
on how much memory is free: so a handful of layouts describes any number of nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from twinspark.planner.candidates import TARGET_CORES
from twinspark.planner.decide import LEAST_CPUS_FOR_CPU_DRAFT, STATIC_ORDER
from twinspark.planner.footprint import Footprint
from twinspark.planner.nodes import CPU, Gpu, Node, Seat
from twinspark.planner.placement import Demand, Footprints, Kind, Placement, Site
from twinspark.planner.predict import Predictor
from twinspark.planner.rooms import DRAFT_MARGIN
from twinspark.planner.timings import Timings

Where = Literal["alone", "same device", "same node", "other node"]
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
    def gpu(self) -> tuple[str, int | None] | None:
        """A GPU's model and memory; None for a CPU."""
        return (self.model, self.total_bytes) if self.kind == "cuda" else None

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
    def order(self) -> tuple[object, ...]:
        """The same for the same layout only, best first."""
        return self.rank, self.where, self.target.order, () if self.draft is None else self.draft.order

    @property
    def num_gpus(self) -> int:
        """GPUs that a pair keeps others from."""
        own = self.target.kind == "cuda"
        another = self.draft is not None and self.draft.kind == "cuda" and self.where != "same device"
        return int(own) + int(another)


@dataclass(frozen=True)
class LayoutMaker:
    """Makes layouts for kinds of devices: prices and predicts them as `candidates` does for seats of a cluster."""

    demand: Demand
    footprints: Footprints
    timings: Timings
    links: Links

    def __post_init__(self) -> None:
        # Two nodes that stand for any: "a" has the target.
        object.__setattr__(self, "timings", replace(self.timings, link_ms=self.links.table("a", "b")))

    def on_one_node(self, cpu: Device, gpus: Sequence[Device]) -> list[Layout]:
        """All of a node with these kinds of devices, however many of each it has."""
        found = []
        for target in (cpu, *gpus):
            found.append(self.layout("off", "alone", target, None))
            if not self.footprints.has_head:
                continue
            found.append(self.layout("colocated", "same device", target, None))
            found.append(self.layout("cpu" if target == cpu else "gpu", "same device", target, target))
            found += [self.layout("gpu", "same node", target, gpu) for gpu in gpus]
            if target != cpu:
                found.append(self.layout("cpu", "same node", target, cpu))
        return found

    def across_nodes(self, target: Device, draft: Device) -> Layout:
        """A target on a GPU of one node, its draft on another node."""
        return self.layout("cpu" if draft.kind == "cpu" else "gpu", "other node", target, draft)

    def layout(self, placement: Placement, where: Where, target: Device, draft: Device | None) -> Layout:
        demand, length = self.demand, 0 if placement == "off" else self.demand.priced_length
        num = demand.num_requests
        cores = TARGET_CORES if target.num_cpus is None else target.num_cpus
        own = self.footprints.target(target.kind, num, length)
        beside: Footprint | None = None
        threads = rented = 0
        if placement == "colocated":
            beside = self.footprints.colocated(target.kind, num, length)
        elif draft is not None:
            beside = self.footprints.draft(draft.kind, num, length)
            rented = 0 if where == "same device" else demand.draft_threads
            # A CPU target has all cores of its node, and shares them with a draft there.
            threads = 0 if where == "same node" and target.kind == "cpu" else rented
        best, speed = self._predicted(placement, where, target, draft)
        rents = [demand.prices.rent(target.gpu, own.device_bytes, cores)]
        if beside is not None:
            rents.append(demand.prices.rent((draft or target).gpu, beside.device_bytes, rented))
        known = [rent for rent in rents if rent is not None]
        price = sum(known) if len(known) == len(rents) else None
        return Layout(
            placement=placement,
            where=where,
            target=target,
            draft=draft,
            num_requests=num,
            verify_length=best,
            tok_per_s=speed,
            price_per_hour=price,
            target_take=_take(cores, own, 1.0),
            draft_take=NOTHING if beside is None else _take(threads, beside, DRAFT_MARGIN),
            merit=_merit(speed, price, demand),
        )

    def _predicted(
        self, placement: Placement, where: Where, target: Device, draft: Device | None
    ) -> tuple[int, float | None]:
        """The best verify length, and tokens per second with it."""
        seat = Seat("a", CPU if target.kind == "cpu" else "cuda:0")
        beside = None
        if draft is not None and where == "same device":
            beside = seat
        elif draft is not None:
            beside = Seat("a" if where == "same node" else "b", CPU if draft.kind == "cpu" else "cuda:1")
        classes = {seat: target.name} | ({beside: draft.name} if draft is not None and beside is not None else {})
        predictor = _ByName({}, self.timings, self.demand.survival, classes)
        site = Site(placement, seat, beside)
        if placement == "off":
            return 0, predictor.tok_per_s(site, self.demand.num_requests, 0)
        usual = self.demand.usual_drafts(target.kind)
        return predictor.best_length(site, self.demand.num_requests, self.demand.lengths, usual)


@dataclass(frozen=True)
class _ByName(Predictor):
    """A predictor for seats whose device classes are told."""

    classes: Mapping[Seat, str]

    def device_class(self, seat: Seat) -> str:
        return self.classes[seat]


def _merit(speed: float | None, price: float | None, demand: Demand) -> float:
    """As `decide.score`; 0 where it cannot be told."""
    if demand.objective == "speed":
        return speed or 0.0
    return 3600 * speed / price if speed and price else 0.0


@dataclass(frozen=True)
class TargetRoom:
    """Whether a node has a GPU with room for a target of so many bytes."""

    least_bytes: int
    _known: dict[tuple[Gpu, ...], bool] = field(default_factory=dict, compare=False)

    def __call__(self, node: Node) -> bool:
        known = self._known.get(node.gpus)
        if known is None:
            rooms = [node.headroom_bytes(gpu.device) for gpu in node.gpus]
            known = self._known[node.gpus] = any(room is not None and room >= self.least_bytes for room in rooms)
        return known


@dataclass(frozen=True)
class FleetLayouts:
    """`bare` are targets on a GPU that wait for a draft on another node, `across` what they become, by its device."""

    local: list[Layout]
    bare: list[Layout]
    across: dict[Device, dict[Device, Layout]]
    measured: bool
    holds_target: TargetRoom

    @classmethod
    def of(cls, maker: LayoutMaker, nodes: Sequence[Node], *, predicted_only: bool) -> FleetLayouts:
        """Raises ValueError where only what is predicted counts, and nothing is."""
        demand, footprints = maker.demand, maker.footprints
        holds = TargetRoom(footprints.target("cuda", demand.num_requests, 0).device_bytes)
        by_cpu: dict[Device, set[Device]] = {}
        helpers: set[Device] = set()
        kinds: dict[tuple[Gpu, ...], set[Device]] = {}
        for node in nodes:
            gpus = kinds.get(node.gpus)
            if gpus is None:
                gpus = kinds[node.gpus] = {Device.of(gpu) for gpu in node.gpus}
            cpu = Device.cpu_of(node)
            by_cpu.setdefault(cpu, set()).update(gpus)
            if not holds(node):
                helpers |= {cpu, *gpus}
        found: dict[Layout, None] = {}
        for cpu, gpus in sorted(by_cpu.items(), key=lambda entry: entry[0].order):
            found |= dict.fromkeys(maker.on_one_node(cpu, sorted(gpus, key=lambda gpu: gpu.order)))
        all_gpus = sorted({gpu for gpus in by_cpu.values() for gpu in gpus}, key=lambda gpu: gpu.order)
        if footprints.has_head:
            for target in all_gpus:
                for draft in sorted(helpers, key=lambda device: device.order):
                    found[maker.across_nodes(target, draft)] = None
        kept, measured = worth_having(list(found), demand, predicted_only=predicted_only)
        if predicted_only and not kept:
            raise ValueError(
                "a fleet for tokens/s needs measured speeds of a target and its draft on some device (and prices for "
                "the objective cost), got none: ask for requests at once instead, or give the speeds"
            )
        local = [layout for layout in kept if layout.where != "other node"]
        across: dict[Device, dict[Device, Layout]] = {}
        bare: dict[Device, Layout] = {}
        for layout in kept:
            if layout.where == "other node" and layout.draft is not None:
                across.setdefault(layout.draft, {})[layout.target] = layout
                bare[layout.target] = replace(
                    layout,
                    placement="off",
                    where="alone",
                    draft=None,
                    draft_take=NOTHING,
                    tok_per_s=0.0,
                    merit=0.0,
                    counts=False,
                )
        return cls(local, list(bare.values()), across, measured, holds)

    @property
    def drafts(self) -> list[tuple[Device, Take]]:
        return [(device, self.draft_take(device)) for device in self.across]

    def draft_take(self, device: Device) -> Take:
        """The same whatever the target is."""
        return next(iter(self.across[device].values())).draft_take


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
