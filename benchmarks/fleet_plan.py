"""How long a plan for a fleet takes: 10,000 nodes of eight GPUs, and 10,000 mixed CPU nodes.

    python benchmarks/fleet_plan.py [--nodes 10000] [--repeats 3]

First `plan_fleet` alone, with nodes that are equal and with nodes that all have other amounts of RAM free; then the
command itself, as a process that reads a file with node counts. Prints seconds, the least of the repeats.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from twinspark.planner.fleet import plan_fleet
from twinspark.planner.fleet_layouts import Links
from twinspark.planner.fleet_plans import Wanted
from twinspark.planner.nodes import GIB, Gpu, Node
from twinspark.planner.pair_footprints import PairFootprints
from twinspark.planner.placement import Demand
from twinspark.planner.sizes import HeadSize, ModelSize
from twinspark.planner.timings import Cell, Grid, StepKey, Timings

TARGET = ModelSize.of(
    hidden_size=4096,
    num_layers=36,
    intermediate_size=12288,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=151936,
    qk_norm=True,
)
HEAD = HeadSize.of(
    layer=TARGET.layer, num_layers=3, tap_ids=[-1, 0, 1, 2], markov_rank=256, block_size=7, vocab_size=151936
)
FOOTPRINTS = PairFootprints(
    TARGET,
    HEAD,
    target_dtypes={"cpu": "float32", "cuda": "bfloat16"},
    draft_dtypes={"cpu": "int8", "cuda": "bfloat16"},
    numerics="fast",
    context=4096,
)
CPUS = ("EPYC x32", "EPYC x64", "Xeon x96")
FILE = """
context = 4096
max_seqs = 16
[target]
hidden_size = 4096
num_layers = 36
intermediate_size = 12288
num_heads = 32
num_kv_heads = 8
head_dim = 128
vocab_size = 151936
qk_norm = true
[head]
num_layers = 3
tap_ids = [-1, 0, 1, 2]
markov_rank = 256
block_size = 7
survival = [0.8, 0.75, 0.7, 0.7, 0.65, 0.6, 0.6]
[link_ms]
same_node = 0.3
between_nodes = 0.8
[[node]]
name = "gpu"
count = {count}
cpus = 64
cpu_model = "EPYC"
ram_gib = 1024
gpus = [{{ name = "H200", count = 8, total_gib = 140, free_gib = 139 }}]
[[node]]
name = "cpu"
count = {count}
cpus = 32
cpu_model = "EPYC"
ram_gib = 128
[[speed]]
step = "verify"
device = "H200"
cells = [{{ requests = 1, drafts = 0, ms = 4.3 }}, {{ requests = 16, drafts = 7, ms = 5.6 }}]
[[speed]]
step = "colocated"
device = "H200"
cells = [{{ requests = 1, drafts = 7, ms = 1.2 }}, {{ requests = 16, drafts = 7, ms = 2.0 }}]
[[speed]]
step = "draft"
device = "EPYC x32"
cells = [{{ requests = 1, drafts = 7, ms = 40.0 }}, {{ requests = 16, drafts = 7, ms = 60.0 }}]
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    for name, spread in (("equal", 0), ("all different", 1)):
        nodes = _nodes(given.nodes, spread)
        for wanted in (Wanted(concurrency=given.nodes * 100), Wanted(tok_per_s=1e9)):
            seconds = _least(given.repeats, lambda nodes=nodes, wanted=wanted: _plan(nodes, wanted))
            print(json.dumps({"plan_fleet": name, "nodes": len(nodes), "unit": wanted.unit, "seconds": seconds}))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fleet.toml"
        path.write_text(FILE.format(count=given.nodes))
        command = [sys.executable, "-m", "twinspark.deploy.cli", "plan", "--what-if", str(path), "--json"]
        command += ["--tok-per-s", "1e8"]
        seconds = _least(given.repeats, lambda: subprocess.run(command, check=True, capture_output=True))
        print(json.dumps({"command": "twinspark plan --what-if", "nodes": 2 * given.nodes, "seconds": seconds}))


def _least(repeats: int, work: Callable[[], object]) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return round(min(times), 3)


def _nodes(count: int, spread: int) -> list[Node]:
    """Every one an object of its own, GPUs too; `spread` bytes of RAM between one node and the next."""
    made = []
    for i in range(count):
        gpus = tuple(Gpu(k, str(k), "H200", 140 * GIB, 139 * GIB) for k in range(8))
        made.append(Node(f"gpu-{i}", f"gpu-{i}", 64, "EPYC", 1024 * GIB, 1000 * GIB - spread * i * 7919, gpus))
        cpu, _, cores = CPUS[i % 3].partition(" x")
        ram = (64 + 64 * (i % 4)) * GIB
        made.append(Node(f"cpu-{i}", f"cpu-{i}", int(cores), cpu, ram, ram - spread * i * 7919, ()))
    return made


def _plan(nodes: list[Node], wanted: Wanted) -> None:
    steps = {
        StepKey("verify", "H200"): Grid((Cell(1, 0, 4.3), Cell(16, 0, 4.4), Cell(16, 7, 5.6))),
        StepKey("colocated", "H200"): Grid((Cell(1, 7, 1.2), Cell(16, 7, 2.0))),
    }
    for name in CPUS:
        steps[StepKey("verify", name)] = Grid((Cell(1, 0, 400.0), Cell(16, 7, 900.0)))
        steps[StepKey("colocated", name)] = Grid((Cell(1, 7, 40.0), Cell(16, 7, 90.0)))
        steps[StepKey("draft", name)] = Grid((Cell(1, 7, 0.5), Cell(16, 7, 1.0)))
    demand = Demand(num_requests=16, most_drafts=7, survival=(0.8, 0.75, 0.7, 0.7, 0.65, 0.6, 0.6))
    plan_fleet(nodes, demand, FOOTPRINTS, Timings(steps), wanted, Links(0.3, 0.8))


if __name__ == "__main__":
    main()
