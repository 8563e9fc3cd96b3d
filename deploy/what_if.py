"""A described cluster, for planning without having it: nodes, sizes, speeds, links and prices from a TOML file.

docs/planning.md tells the format by example. Everything is validated and bounded; errors are one line. Neither a model
nor torch is needed where dimensions are given.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from twinspark.deploy.options import MAX_THREADS, Options
from twinspark.deploy.prices import read_prices
from twinspark.deploy.validation import first_fault
from twinspark.planner.fleet_layouts import Links
from twinspark.planner.nodes import GIB, Gpu, Node
from twinspark.planner.pair_footprints import PairFootprints
from twinspark.planner.placement import Demand, Kind, Objective, Requested
from twinspark.planner.prices import Prices
from twinspark.planner.sizes import HeadSize, MarkovKind, ModelSize
from twinspark.planner.timings import Cell, Grid, Role, StepKey, Timings

MAX_FILE_BYTES = 1 << 20
MAX_NODES = 100_000
MAX_DIMENSION = 1 << 24
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

Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[ -~]+$")]
Size = Annotated[int, Field(ge=1, le=MAX_DIMENSION)]
Gib = Annotated[float, Field(ge=0, le=1 << 20, allow_inf_nan=False)]
Ms = Annotated[float, Field(ge=0, le=1e7, allow_inf_nan=False)]
Money = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Chance = Annotated[float, Field(ge=0, le=1)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Gpus(_Part):
    name: Name
    count: int = Field(1, ge=1, le=64)
    total_gib: Gib
    free_gib: Gib

    @model_validator(mode="after")
    def _free_is_part_of_total(self) -> _Gpus:
        if self.free_gib > self.total_gib:
            raise ValueError(f"free_gib must be at most total_gib, got {self.free_gib:g} and {self.total_gib:g}")
        return self


class _Node(_Part):
    name: Name
    count: int = Field(1, ge=1, le=MAX_NODES)
    cpus: int = Field(ge=1, le=4096)
    cpu_model: Name
    ram_gib: Gib
    available_ram_gib: Gib | None = None  # all of it
    gpus: list[_Gpus] = Field(default_factory=list, max_length=16)

    @model_validator(mode="after")
    def _available_is_part_of_total(self) -> _Node:
        if (self.available_ram_gib or 0) > self.ram_gib:
            raise ValueError(f"available_ram_gib must be at most ram_gib, got {self.available_ram_gib}")
        return self


class _Target(_Part):
    """A path, or dimensions."""

    path: str | None = None
    hidden_size: Size | None = None
    num_layers: Size | None = None
    intermediate_size: Size | None = None
    num_heads: Size | None = None
    num_kv_heads: Size | None = None
    vocab_size: Size | None = None
    head_dim: Size | None = None
    tied: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False

    def size(self) -> ModelSize:
        """Raises ValueError for dimensions that are missing, or that cannot be."""
        if self.path is not None:
            others = sorted(self.model_fields_set - {"path"})
            if others:
                raise ValueError(f"target must have a path or dimensions, got a path and {', '.join(others)}")
            from twinspark.actors.checkpoint.opening import open_target
            from twinspark.actors.checkpoint.sizes import model_size

            return model_size(open_target(self.path))
        given = self.model_dump(exclude={"path"}, exclude_none=True)
        needed = ("hidden_size", "num_layers", "intermediate_size", "num_heads", "num_kv_heads", "vocab_size")
        missing = [name for name in needed if name not in given]
        if missing:
            raise ValueError(f"target must have a path or dimensions, got no {', '.join(missing)}")
        return ModelSize.of(**given)


class _Head(_Part):
    """A path, or dimensions: layers are the target's. `survival`: as a head's own record has it."""

    path: str | None = None
    num_layers: Size | None = None
    block_size: int | None = Field(None, ge=1, le=64)
    tap_ids: list[int] | None = Field(None, min_length=1, max_length=64)
    markov_rank: int = Field(0, ge=0, le=MAX_DIMENSION)
    markov_kind: MarkovKind = "vanilla"
    draft_vocab_size: Size | None = None
    own_embedding: bool = False
    own_lm_head: bool = False
    survival: list[Chance] | None = Field(None, min_length=1, max_length=64)

    def size(self, target: ModelSize) -> tuple[HeadSize, int, tuple[float, ...] | None]:
        """With the most drafts there can be, and the survival by position (None: unknown)."""
        survival = None if self.survival is None else tuple(self.survival)
        if self.path is not None:
            others = sorted(self.model_fields_set - {"path", "survival"})
            if others:
                raise ValueError(f"head must have a path or dimensions, got a path and {', '.join(others)}")
            from twinspark.actors.checkpoint.head_record import conditional_acceptance
            from twinspark.actors.checkpoint.opening import open_head
            from twinspark.actors.checkpoint.sizes import head_size

            head = open_head(self.path)
            found = survival or conditional_acceptance(head.path)
            return head_size(head), head.config.num_draft_tokens, found
        if self.num_layers is None or self.block_size is None or self.tap_ids is None:
            raise ValueError("head must have a path, or num_layers, block_size and tap_ids")
        if max(self.tap_ids) >= target.num_layers:
            raise ValueError(f"head.tap_ids must be below the target's {target.num_layers} layers, got {self.tap_ids}")
        size = HeadSize.of(
            layer=target.layer,
            num_layers=self.num_layers,
            tap_ids=self.tap_ids,
            markov_rank=self.markov_rank,
            markov_kind=self.markov_kind if self.markov_rank else "none",
            block_size=self.block_size,
            vocab_size=target.vocab_size,
            draft_vocab_size=self.draft_vocab_size,
            own_embedding=self.own_embedding,
            own_lm_head=self.own_lm_head,
        )
        return size, self.block_size, survival


class _Dtypes(_Part):
    """What `auto` chooses for each kind of device (deploy/plan_pair.py; tests/test_what_if.py compares)."""

    target_cpu: Literal["float32", "bfloat16"] = "float32"
    target_gpu: Literal["float32", "bfloat16"] = "bfloat16"
    draft_cpu: Literal["float32", "bfloat16", "int8"] = "int8"
    draft_gpu: Literal["float32", "bfloat16", "int8"] = "bfloat16"


class _Pair(_Part):
    a: Name
    b: Name
    ms: Ms


class _Links(_Part):
    """Round trips: on one node, between two, and, by the names of entries, between some."""

    same_node: Ms | None = None
    between_nodes: Ms | None = None
    pairs: list[_Pair] = Field(default_factory=list, max_length=1024)


class _Cell(_Part):
    requests: int = Field(ge=1, le=4096)
    drafts: int = Field(ge=0, le=64)
    ms: Ms


class _Speed(_Part):
    """`device`: a GPU's name, or "MODEL xCPUS". `beside`: the pair's other actor computes on the same device."""

    step: Role
    device: Name
    beside: bool = False
    cells: list[_Cell] = Field(min_length=1, max_length=1024)


class _Prices(_Part):
    core_hour: Money = 0.0
    gpu_hour: dict[Name, Money] = Field(default_factory=dict, max_length=1024)


def _default(name: str) -> Any:
    return Options.model_fields[name].default


class _File(_Part):
    context: int = Field(ge=1, le=1 << 22)
    max_seqs: int = Field(_default("max_seqs"), ge=1, le=1024)
    dspark_place: Requested = _default("dspark_place")
    dspark_verify_len: int = Field(_default("dspark_verify_len"), ge=0, le=64)
    dspark_threads: int = Field(_default("dspark_threads"), ge=1, le=MAX_THREADS)
    objective: Objective = _default("objective")
    numerics: Literal["exact", "fast"] = _default("numerics")
    target: _Target
    head: _Head | None = None
    dtypes: _Dtypes = Field(default_factory=_Dtypes)
    node: list[_Node] = Field(min_length=1, max_length=256)
    link_ms: _Links = Field(default_factory=_Links)
    speed: list[_Speed] = Field(default_factory=list, max_length=256)
    overhead_ms: dict[Name, Ms] = Field(default_factory=dict, max_length=256)
    prices: _Prices = Field(default_factory=_Prices)


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
        file = _File.model_validate(table)
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
        table["target"] = {"path": _demo("model", overrides["model"])}
    if overrides.get("dspark_model") == "none":
        table.pop("head", None)
    elif "dspark_model" in overrides:
        table["head"] = {"path": _demo("dspark_model", overrides["dspark_model"])}
    dtype, draft_dtype = overrides.get("dtype", "auto"), overrides.get("dspark_dtype", "auto")
    dtypes = table.get("dtypes", {})
    if dtype != "auto" and isinstance(dtypes, dict):
        dtypes = dtypes | dict.fromkeys(("target_cpu", "target_gpu", "draft_cpu", "draft_gpu"), dtype)
    if draft_dtype != "auto" and isinstance(dtypes, dict):
        dtypes = dtypes | dict.fromkeys(("draft_cpu", "draft_gpu"), draft_dtype)
    table["dtypes"] = dtypes


def _demo(name: str, given: str) -> str:
    if given != "demo":
        return given
    from twinspark.deploy.embedded import demo_head_path, demo_model_path
    from twinspark.deploy.progress import note

    return str(demo_model_path(note) if name == "model" else demo_head_path())


def _described(file: _File, overrides: Mapping[str, Any]) -> Described:
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


def _nodes(entries: Sequence[_Node]) -> tuple[tuple[Node, ...], dict[str, str]]:
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


def _timings(file: _File) -> Timings:
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


def _pair_links(file: _File) -> dict[tuple[str, str], float]:
    names = {entry.name for entry in file.node}
    for pair in file.link_ms.pairs:
        unknown = sorted({pair.a, pair.b} - names)
        if unknown or pair.a == pair.b:
            raise ValueError(f"a link must be between two entries of [[node]], got {pair.a} and {pair.b}")
    return {(pair.a, pair.b): pair.ms for pair in file.link_ms.pairs}
