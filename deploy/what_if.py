"""A described cluster, for planning without having it: nodes, sizes, speeds, links and prices from a TOML file.

`what_if_file` has its tables. Everything is validated and bounded; errors are one line.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from twinspark.deploy.prices import read_prices
from twinspark.deploy.validation import first_fault
from twinspark.deploy.what_if_file import MAX_NODES, File, NodeEntry
from twinspark.planner.fleet_layouts import Links
from twinspark.planner.nodes import GIB, Gpu, Node
from twinspark.planner.pair_footprints import PairFootprints
from twinspark.planner.placement import Demand, Kind
from twinspark.planner.prices import Prices
from twinspark.planner.timings import Cell, Grid, Role, StepKey, Timings

MAX_FILE_BYTES = 1 << 20
SETTINGS = (
    "context",
    "max_seqs",
    "dspark_place",
    "dspark_verify_len",
    "dspark_threads",
    "objective",
    "numerics",
)  # a file has them too; set anywhere else they override it
OVERRIDING = (*SETTINGS, "dtype", "dspark_dtype", "prices", "model", "dspark_model")


@dataclass(frozen=True)
class Described:
    """A cluster as it was described, and what is asked of it. `timings` knows steps, no links: see `link_table`."""

    nodes: tuple[Node, ...]
    demand: Demand
    footprints: PairFootprints
    timings: Timings
    links: Links
    pair_links: Mapping[tuple[str, str], float]  # by entries
    entries: Mapping[str, str]  # by node

    def link_table(self, nodes: Sequence[Node]) -> dict[tuple[str, str], float]:
        """Round trips among some of the nodes."""
        found = {}
        for a in nodes:
            for b in nodes:
                ms = self.links.same_node_ms if a.name == b.name else self._between(a.name, b.name)
                if ms is not None:
                    found[a.name, b.name] = ms
        return found

    @property
    def worst_links(self) -> Links:
        """For a fleet: the slowest between any two nodes."""
        between = [*self.pair_links.values(), *(ms for ms in [self.links.between_nodes_ms] if ms is not None)]
        return Links(self.links.same_node_ms, max(between, default=None))

    def _between(self, a: str, b: str) -> float | None:
        ends = self.entries[a], self.entries[b]
        return self.pair_links.get(ends, self.pair_links.get(ends[::-1], self.links.between_nodes_ms))


def read_what_if(path: str | Path, overrides: Mapping[str, Any]) -> Described:
    """A described cluster; `overrides` are options that were set (OVERRIDING).

    Raises ValueError (one line) for a file that cannot be read or does not hold together.
    """
    table = _read_table(path)
    try:
        _override(table, overrides)
        file = File.model_validate(table)
    except ValidationError as error:
        raise ValueError(f"--what-if: {path}: {first_fault(error)}") from None
    try:
        return _described(file, overrides)
    except ValueError as error:
        raise ValueError(f"--what-if: {path}: {error}") from None


def _read_table(path: str | Path) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            raise ValueError(f"--what-if: {path} must be at most {MAX_FILE_BYTES} bytes, got more")
        return tomllib.loads(raw.decode())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"--what-if: {path} must be a readable TOML file ({error})") from None


def _override(table: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    for name in SETTINGS:
        # A context of 0 is the model's own on a command line; here the file's.
        if name in overrides and not (name == "context" and overrides[name] == 0):
            table[name] = overrides[name]
    if "model" in overrides:
        _replace_model(table, "target", {"path": _demo("model", overrides["model"])}, steps_of_it=get_args(Role))
    if overrides.get("dspark_model") == "none":
        table.pop("head", None)
    elif "dspark_model" in overrides:
        head = {"path": _demo("dspark_model", overrides["dspark_model"])}
        _replace_model(table, "head", head, steps_of_it=("draft", "colocated"))
    dtype, draft_dtype = overrides.get("dtype", "auto"), overrides.get("dspark_dtype", "auto")
    dtypes = table.get("dtypes", {})
    if dtype != "auto" and isinstance(dtypes, dict):
        dtypes = dtypes | dict.fromkeys(("target_cpu", "target_gpu", "draft_cpu", "draft_gpu"), dtype)
    if draft_dtype != "auto" and isinstance(dtypes, dict):
        dtypes = dtypes | dict.fromkeys(("draft_cpu", "draft_gpu"), draft_dtype)
    table["dtypes"] = dtypes


def _replace_model(table: dict[str, Any], name: str, other: dict[str, Any], steps_of_it: Sequence[str]) -> None:
    """Another model is not as fast as the file's: what it says of `steps_of_it` is forgotten."""
    if table.get(name) != other:
        speeds = table.get("speed", [])
        if isinstance(speeds, list):
            table["speed"] = [one for one in speeds if not (isinstance(one, dict) and one.get("step") in steps_of_it)]
    table[name] = other


def _demo(name: str, given: str) -> str:
    if given != "demo":
        return given
    from twinspark.deploy.embedded import demo_head_path, demo_model_path
    from twinspark.deploy.progress import note

    return str(demo_model_path(note) if name == "model" else demo_head_path())


def _described(file: File, overrides: Mapping[str, Any]) -> Described:
    model = file.target.size()
    head, most_drafts, survival = (None, 0, None) if file.head is None else file.head.size(model)
    if file.dspark_verify_len > most_drafts > 0:
        raise ValueError(f"dspark_verify_len must be at most the head's {most_drafts}, got {file.dspark_verify_len}")
    prices = Prices(file.prices.gpu_hour, file.prices.core_hour)
    if "prices" in overrides:
        prices = read_prices(overrides["prices"])
    if file.objective == "cost" and not (prices.gpu_hour or prices.core_hour):
        raise ValueError("the objective cost needs prices, got none (a [prices] table, or --prices FILE)")
    nodes, entries = _nodes(file.node)
    targets: dict[Kind, Any] = {"cpu": file.dtypes.target_cpu, "cuda": file.dtypes.target_gpu}
    drafts: dict[Kind, Any] = {"cpu": file.dtypes.draft_cpu, "cuda": file.dtypes.draft_gpu}
    return Described(
        nodes=nodes,
        demand=Demand(
            requested=file.dspark_place,
            num_requests=file.max_seqs,
            verify_length=file.dspark_verify_len if head is not None else 0,
            most_drafts=most_drafts,
            survival=survival,
            draft_threads=file.dspark_threads,
            objective=file.objective,
            prices=prices,
        ),
        footprints=PairFootprints(model, head, targets, drafts, file.numerics, file.context),
        timings=_timings(file),
        links=Links(file.link_ms.same_node, file.link_ms.between_nodes),
        pair_links=_pair_links(file),
        entries=entries,
    )


def _nodes(entries: Sequence[NodeEntry]) -> tuple[tuple[Node, ...], dict[str, str]]:
    """All nodes, and the entry of each; those of an entry share their GPUs' description."""
    if sum(entry.count for entry in entries) > MAX_NODES:
        raise ValueError(f"there must be at most {MAX_NODES} nodes, got {sum(entry.count for entry in entries)}")
    made: list[Node] = []
    owner: dict[str, str] = {}
    for entry in entries:
        each = [one for one in entry.gpus for _ in range(one.count)]
        gpus = tuple(
            Gpu(i, str(i), one.name, int(one.total_gib * GIB), int(one.free_gib * GIB)) for i, one in enumerate(each)
        )
        total = int(entry.ram_gib * GIB)
        available = total if entry.available_ram_gib is None else int(entry.available_ram_gib * GIB)
        width = len(str(entry.count))
        for i in range(1, entry.count + 1):
            name = entry.name if entry.count == 1 else f"{entry.name}-{i:0{width}}"
            if name in owner:
                raise ValueError(f"node names must differ, got {name} twice")
            owner[name] = entry.name
            made.append(Node(name, name, entry.cpus, entry.cpu_model, total, available, gpus))
    return tuple(made), owner


def _timings(file: File) -> Timings:
    classes = {f"{entry.cpu_model} x{entry.cpus}" for entry in file.node}
    classes |= {gpu.name for entry in file.node for gpu in entry.gpus}
    for name in [*(speed.device for speed in file.speed), *file.overhead_ms]:
        if name not in classes:
            raise ValueError(f"speeds must be of devices that some node has ({', '.join(sorted(classes))}), got {name}")
    steps: dict[StepKey, Grid] = {}
    for speed in file.speed:
        key = StepKey(speed.step, speed.device, speed.beside)
        if key in steps:
            raise ValueError(f"a speed must be told once, got {speed.step} on {speed.device} twice")
        steps[key] = Grid(tuple(Cell(cell.requests, cell.drafts, cell.ms) for cell in speed.cells))
    return Timings(steps, {}, file.overhead_ms)


def _pair_links(file: File) -> dict[tuple[str, str], float]:
    names = {entry.name for entry in file.node}
    for pair in file.link_ms.pairs:
        unknown = sorted({pair.a, pair.b} - names)
        if unknown or pair.a == pair.b:
            raise ValueError(f"a link must be between two entries of [[node]], got {pair.a} and {pair.b}")
    return {(pair.a, pair.b): pair.ms for pair in file.link_ms.pairs}
