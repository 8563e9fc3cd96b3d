"""The tables of a described cluster's file (docs/planning.md tells them by example), each with its bounds.

Neither a model nor torch is needed where dimensions are given.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from twinspark.deploy.options import MAX_THREADS, Options
from twinspark.planner.placement import Objective, Requested
from twinspark.planner.sizes import HeadSize, MarkovKind, ModelSize
from twinspark.planner.timings import Role

MAX_NODES = 100_000
MAX_DIMENSION = 1 << 24

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


class NodeEntry(_Part):
    """Nodes that are alike, `count` of them."""

    name: Name
    count: int = Field(1, ge=1, le=MAX_NODES)
    cpus: int = Field(ge=1, le=4096)
    cpu_model: Name
    ram_gib: Gib
    available_ram_gib: Gib | None = None  # all of it
    gpus: list[_Gpus] = Field(default_factory=list, max_length=16)

    @model_validator(mode="after")
    def _available_is_part_of_total(self) -> NodeEntry:
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


class File(_Part):
    """The whole file."""

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
    node: list[NodeEntry] = Field(min_length=1, max_length=256)
    link_ms: _Links = Field(default_factory=_Links)
    speed: list[_Speed] = Field(default_factory=list, max_length=256)
    overhead_ms: dict[Name, Ms] = Field(default_factory=dict, max_length=256)
    prices: _Prices = Field(default_factory=_Prices)
