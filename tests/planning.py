"""For tests of the planner: made-up clusters, footprints and timings whose answers can be worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from twinspark.planner.footprint import Footprint
from twinspark.planner.nodes import GIB, Gpu, Node
from twinspark.planner.placement import Demand, Kind, Requested
from twinspark.planner.timings import Cell, Grid, StepKey, Timings


def footprint(device: int, host: int = 0) -> Footprint:
    """`device` bytes on the device, `host` in the node's RAM."""
    return Footprint(weights_bytes=device, kv_bytes=0, workspace_bytes=0, overhead_bytes=0, host_bytes=host)


@dataclass(frozen=True)
class Sizes:
    """Footprints by hand: a fixed part and one for each request."""

    target_bytes: int = 4 * GIB
    per_request_bytes: int = 0
    draft_bytes: int = 1 * GIB
    colocated_bytes: int = GIB // 2
    draft_per_request_bytes: int = 0
    host_bytes: int = 0
    has_head: bool = True

    def target(self, kind: Kind, num_requests: int, verify_length: int) -> Footprint:
        return self._of(kind, self.target_bytes + num_requests * self.per_request_bytes, self.host_bytes)

    def draft(self, kind: Kind, num_requests: int, verify_length: int) -> Footprint:
        return self._of(kind, self.draft_bytes + num_requests * self.draft_per_request_bytes, self.host_bytes)

    def colocated(self, kind: Kind, num_requests: int, verify_length: int) -> Footprint:
        return self._of(kind, self.colocated_bytes + num_requests * self.draft_per_request_bytes, 0)

    @staticmethod
    def _of(kind: Kind, device: int, host: int) -> Footprint:
        return footprint(device, host if kind == "cuda" else 0)


def gpu(index: int = 0, *, free: int | None, total: int | None = 80 * GIB, name: str = "H200") -> Gpu:
    return Gpu(index, f"GPU-{index}", name, total, free)


def node(
    name: str = "a",
    *,
    ram: int | None = 64 * GIB,
    total: int | None = 64 * GIB,
    cpus: int = 16,
    cpu_model: str = "EPYC",
    gpus: tuple[Gpu, ...] = (),
) -> Node:
    return Node(name, f"host-{name}", cpus, cpu_model, total, ram, gpus)


def flat(ms: float) -> Grid:
    """The same time whatever runs."""
    return Grid((Cell(1, 0, ms),))


def timings(
    *,
    verify: dict[str, float] | None = None,
    draft: dict[str, float] | None = None,
    colocated: dict[str, float] | None = None,
    link: dict[tuple[str, str], float] | None = None,
) -> Timings:
    """Times by device class, whatever runs there."""
    steps: dict[StepKey, Grid] = {}
    steps |= {StepKey("verify", name): flat(ms) for name, ms in (verify or {}).items()}
    steps |= {StepKey("draft", name): flat(ms) for name, ms in (draft or {}).items()}
    steps |= {StepKey("colocated", name): flat(ms) for name, ms in (colocated or {}).items()}
    return Timings(steps, link or {}, {})


def demand(requested: Requested = "auto", **changes: object) -> Demand:
    """Half of the drafts survive at every position."""
    settings: dict[str, object] = {"most_drafts": 5, "survival": (0.5,) * 5}
    return Demand(requested=requested, **(settings | changes))  # type: ignore[arg-type]


# Made-up clusters for hypothesis -------------------------------------------------------------------------------------

some_gib = st.integers(0, 96).map(lambda amount: amount * GIB // 2)
maybe_gib = st.one_of(st.none(), some_gib)


@st.composite
def nodes(draw: st.DrawFn, most: int = 3) -> list[Node]:
    """Clusters of a few nodes, with unknown memory here and there."""
    made = []
    for i in range(draw(st.integers(1, most))):
        gpus = tuple(
            gpu(k, free=draw(maybe_gib), total=draw(st.one_of(st.none(), st.just(96 * GIB))), name=draw(GPU_NAMES))
            for k in range(draw(st.integers(0, 2)))
        )
        made.append(
            node(
                f"n{i}",
                ram=draw(maybe_gib),
                total=draw(st.one_of(st.none(), st.just(64 * GIB))),
                cpus=draw(st.sampled_from([1, 2, 8])),
                gpus=gpus,
            )
        )
    return made


GPU_NAMES = st.sampled_from(["H200", "T4"])


@st.composite
def sizes(draw: st.DrawFn) -> Sizes:
    small = st.integers(0, 40).map(lambda amount: amount * GIB // 4)
    tiny = st.integers(0, 4).map(lambda amount: amount * GIB // 4)
    return Sizes(
        target_bytes=draw(small),
        per_request_bytes=draw(tiny),
        draft_bytes=draw(small),
        colocated_bytes=draw(small),
        draft_per_request_bytes=draw(tiny),
        host_bytes=draw(tiny),
        has_head=draw(st.booleans()),
    )


@st.composite
def all_timings(draw: st.DrawFn, cluster: list[Node]) -> Timings:
    """Some classes timed, some not; links known or not."""
    classes = sorted({n.device_class(d) for n in cluster for d in ("cpu", *(g.device for g in n.gpus))})
    ms = st.one_of(st.none(), st.sampled_from([0.5, 1.0, 2.0, 5.0, 10.0, 30.0]))

    def some() -> dict[str, float]:
        return {name: found for name in classes if (found := draw(ms)) is not None}

    links = {(a.name, b.name): 0.5 for a in cluster for b in cluster if draw(st.booleans())}
    return timings(verify=some(), draft=some(), colocated=some(), link=links)
