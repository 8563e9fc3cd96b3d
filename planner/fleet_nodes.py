"""Nodes of a fleet: which pairs one has room for, and which nodes are alike as far as the layouts can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from twinspark.planner.fleet_layouts import Device, Layout, Take, TargetRoom
from twinspark.planner.nodes import CPU, Gpu, Node


@dataclass(frozen=True)
class Stock:
    """What a node has to give: GPUs as (kind, bytes). RAM that nobody could read is None. `helps`: no GPU of it holds a
    target, so that it may be given up to drafts of others.
    """

    cpu: Device
    cores: int
    ram: int | None
    gpus: tuple[tuple[Device, int], ...]
    helps: bool


@dataclass(frozen=True)
class Slot:
    """A pair on a node, by positions in its stock's GPUs; None is the CPU, or no draft on this node."""

    layout: Layout
    target: int | None
    draft: int | None = None


@dataclass(frozen=True)
class Group:
    """Nodes with the same stock, by name. `devices` names each node's GPUs in the order of the stock."""

    stock: Stock
    nodes: tuple[str, ...]
    devices: tuple[tuple[str, ...], ...]

    def device(self, node: int, position: int | None) -> str:
        return CPU if position is None else self.devices[node][position]


class Bench:
    """A node as it is being filled. A GPU has one pair at most; a target on a CPU has all its cores."""

    def __init__(self, stock: Stock) -> None:
        self.stock = stock
        self.cores = stock.cores
        self.ram = stock.ram
        self.free = [True] * len(stock.gpus)

    def place(self, layout: Layout) -> Slot | None:
        """One pair more, or None if there is no room. A draft of another node is not this node's."""
        target: int | None = None
        draft: int | None = None
        beside = layout.draft_take if layout.where == "same device" else Take(0, 0, 0)
        own = layout.draft if layout.where == "same node" else None
        if layout.target.kind == "cuda":
            target = self._gpu(layout.target, layout.target_take.device_bytes + beside.device_bytes, None)
            if target is None:
                return None
        elif layout.target != self.stock.cpu or self.cores < self.stock.cores:
            return None
        if own is not None and own.kind == "cuda":
            draft = self._gpu(own, layout.draft_take.device_bytes, target)
            if draft is None:
                return None
        elif own is not None and own != self.stock.cpu:
            return None
        slot = Slot(layout, target, draft)
        return slot if self.take(slot) else None

    def take(self, slot: Slot) -> bool:
        """Whether there was room for it. The GPUs' own memory is not looked at again."""
        cores, ram = _wanted(slot.layout)
        if cores > self.cores or (ram and (self.ram is None or ram > self.ram)):
            return False
        if self.ram is None and _sits_on_cpu(slot.layout):
            return False
        self._change(slot, -1)
        return True

    def release(self, slot: Slot) -> None:
        self._change(slot, +1)

    def _change(self, slot: Slot, sign: int) -> None:
        cores, ram = _wanted(slot.layout)
        self.cores += sign * cores
        if self.ram is not None:
            self.ram += sign * ram
        for position in (slot.target, slot.draft):
            if position is not None:
                self.free[position] = sign > 0

    def _gpu(self, device: Device, wanted_bytes: int, but: int | None) -> int | None:
        """The free GPU of this kind with the least room that will do."""
        best: int | None = None
        for i, (kind, room) in enumerate(self.stock.gpus):
            if self.free[i] and i != but and room >= wanted_bytes and kind == device:
                best = i if best is None or room < self.stock.gpus[best][1] else best
        return best


def _wanted(layout: Layout) -> tuple[int, int]:
    """Cores and RAM on the target's node."""
    target, draft = layout.target_take, layout.draft_take
    cores, ram = target.cores, target.host_bytes + (target.device_bytes if layout.target.kind == "cpu" else 0)
    if layout.where in ("same device", "same node"):
        seat = layout.draft or layout.target
        cores += draft.cores
        ram += draft.host_bytes + (draft.device_bytes if seat.kind == "cpu" else 0)
    return cores, ram


def _sits_on_cpu(layout: Layout) -> bool:
    """Whether the target, or a draft on its node, is on the CPU."""
    own = layout.draft if layout.where in ("same device", "same node") else None
    return layout.target.kind == "cpu" or (own is not None and own.kind == "cpu")


Fill = tuple[Slot, ...]


def fill(stock: Stock, layouts: Iterable[Layout]) -> Fill:
    """As many pairs as there is room for, of one layout after the other."""
    bench = Bench(stock)
    slots: list[Slot] = []
    for layout in layouts:
        while (slot := bench.place(layout)) is not None:
            slots.append(slot)
    return tuple(slots)


def fullest(stock: Stock, layouts: Sequence[Layout], last: Sequence[Layout], worth: Callable[[Layout], float]) -> Fill:
    """Of some orders of filling the one that gives the most: best pairs first, those on one GPU first, the smallest;
    then `last`.
    """
    orders = (
        sorted(layouts, key=lambda layout: layout.rank),
        sorted(layouts, key=lambda layout: (layout.num_gpus, layout.rank)),
        sorted(layouts, key=lambda layout: (layout.num_gpus, sum(_wanted(layout)), layout.rank)),
    )
    fills = [fill(stock, [*order, *last]) for order in dict.fromkeys(map(tuple, orders))]
    return max(fills, key=lambda slots: (_sum(slots, worth), _sum(slots, lambda layout: layout.merit)))


def _sum(slots: Fill, value: Callable[[Layout], float]) -> float:
    return sum(value(slot.layout) for slot in slots)


def drafts_held(stock: Stock, draft: Device, take: Take) -> int:
    """How many drafts of other nodes' targets a node holds, if it holds nothing else."""
    if stock.ram is None and (draft.kind == "cpu" or take.host_bytes):
        return 0
    most = stock.cores // max(1, take.cores)
    if draft.kind == "cpu":
        if draft != stock.cpu:
            return 0
        ram = take.ram_and_device
    else:
        most = min(most, sum(kind == draft and room >= take.device_bytes for kind, room in stock.gpus))
        ram = take.host_bytes
    return min(most, (stock.ram or 0) // ram) if ram else most


@dataclass
class Grouper:
    """Puts nodes with the same stock together. Memory is rounded down to what some layout would notice, which changes
    no answer and leaves few groups.
    """

    layouts: Sequence[Layout]
    drafts: Sequence[tuple[Device, Take]]  # of other nodes
    holds_target: TargetRoom
    _rooms: list[int] = field(init=False)
    _drafts_on: dict[Device, list[Take]] = field(init=False)
    _own: dict[Device, list[int]] = field(init=False)  # RAM that a pair with its target on this CPU wants
    _by_gpu: int = field(init=False)  # the most RAM that goes with one GPU
    _gpus: dict[tuple[Gpu, ...], tuple[tuple[tuple[Device, int], ...], tuple[str, ...]]] = field(
        default_factory=dict, init=False
    )

    def __post_init__(self) -> None:
        rooms = {take.device_bytes for device, take in self.drafts if device.kind == "cuda"}
        for layout in self.layouts:
            if layout.target.kind == "cuda":
                beside = layout.draft_take.device_bytes if layout.where == "same device" else 0
                rooms.add(layout.target_take.device_bytes + beside)
            if layout.draft is not None and layout.draft.kind == "cuda":
                rooms.add(layout.draft_take.device_bytes)
        self._rooms = sorted(rooms)
        self._drafts_on, self._own, self._by_gpu = {}, {}, 0
        for device, take in self.drafts:
            self._drafts_on.setdefault(device, []).append(take)
            self._by_gpu = max(self._by_gpu, take.host_bytes)
        for layout in self.layouts:
            if layout.target.kind == "cpu":
                self._own.setdefault(layout.target, []).append(_wanted(layout)[1])
            else:
                self._by_gpu = max(self._by_gpu, _wanted(layout)[1])

    def groups(self, nodes: Iterable[Node]) -> list[Group]:
        """In an order that does not depend on that of `nodes`."""
        found: dict[Stock, list[tuple[str, tuple[str, ...]]]] = {}
        for node in nodes:
            gpus, devices = self._gpus_of(node)
            cpu = Device.cpu_of(node)
            ram = self._ram(node, cpu, len(gpus))
            stock = Stock(cpu, node.num_cpus, ram, gpus, not self.holds_target(node))
            found.setdefault(stock, []).append((node.name, devices))
        groups = []
        for stock, members in found.items():
            members.sort()
            groups.append(Group(stock, tuple(name for name, _ in members), tuple(devices for _, devices in members)))
        return sorted(groups, key=lambda group: group.nodes[0])

    def _gpus_of(self, node: Node) -> tuple[tuple[tuple[Device, int], ...], tuple[str, ...]]:
        """The GPUs that take anything at all."""
        known = self._gpus.get(node.gpus)
        if known is not None:
            return known
        useful = []
        for gpu in node.gpus:
            headroom = node.headroom_bytes(gpu.device)
            room = max((r for r in self._rooms if headroom is not None and r <= headroom), default=None)
            if room is not None:
                useful.append((Device.of(gpu), room, gpu.device))
        useful.sort(key=lambda entry: (entry[0].order, entry[1], entry[2]))
        self._gpus[node.gpus] = tuple((d, r) for d, r, _ in useful), tuple(name for _, _, name in useful)
        return self._gpus[node.gpus]

    def _ram(self, node: Node, cpu: Device, num_gpus: int) -> int | None:
        headroom = node.headroom_bytes(CPU)
        if headroom is None:
            return None
        held = [
            min(node.num_cpus // max(1, take.cores), headroom // take.ram_and_device) * take.ram_and_device
            for take in self._drafts_on.get(cpu, ())
            if take.ram_and_device
        ]
        own = self._own.get(cpu, [])
        if num_gpus:
            return min(headroom, max([*held, *own, num_gpus * self._by_gpu], default=0))
        return max([*held, *(amount for amount in own if amount <= headroom)], default=0)
