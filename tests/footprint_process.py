"""A process that loads one actor, runs real steps at full concurrency to full caches, and tells its memory.

`measure` starts it afresh, with the allocator's settings that actors get; what it prints is read from the kernel (or
from NVML), so nothing here shares code with the formulas that it is held against.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pynvml
import torch

from twinspark.actors.draft.drafter import Wish
from twinspark.actors.draft.host import DraftHost
from twinspark.actors.nets.linear import PackedLinear, can_int8, can_pack
from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.specs import ActorSpec, DraftSettings, DraftSpec, TargetSpec
from twinspark.actors.target.engine import Proposed
from twinspark.actors.target.host import TargetHost
from twinspark.actors.target.request import Active, Request
from twinspark.actors.target.sources import NoDraft

Role = Literal["target", "draft", "colocated"]
WAIT_S = 240.0
SAMPLING = Sampling.of(temperature=0.8, top_p=0.95, seed=3)


@dataclass(frozen=True)
class Wanted:
    """What to load: `dtype` is the target's, or the draft actor's; a colocated draft takes `draft_dtype`."""

    role: Role
    model: str
    head: str
    dtype: str
    context: int
    num_seqs: int
    verify_length: int
    numerics: str = "fast"
    draft_dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Reading:
    """Bytes beyond the process that has imported everything and used torch a little (`baseline_bytes`): right after
    loading, the most while loading, the most while steps ran. On a GPU, `loaded_bytes` and `peak_bytes` are the
    device's, context included, and `host_bytes` all of the RAM at its most. `num_kernels`: shapes of oneDNN products.
    """

    baseline_bytes: int
    loaded_bytes: int
    load_peak_bytes: int
    peak_bytes: int
    host_bytes: int
    num_tokens: int
    num_kernels: int


def measure(wanted: Wanted) -> Reading:
    """The reading of a fresh process. Raises RuntimeError with its last words where it fails."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    if wanted.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    command = [sys.executable, __file__, json.dumps(asdict(wanted))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"the measured process must end well, got {done.returncode}: {done.stderr[-2000:]}")
    return Reading(**json.loads(done.stdout.splitlines()[-1]))


# In the measured process ------------------------------------------------------------------------------------------


def resident_bytes() -> int:
    return _kilobytes("/proc/self/smaps_rollup", "Rss:")


def peak_bytes() -> int:
    return _kilobytes("/proc/self/status", "VmHWM:")


def restart_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _kilobytes(path: str, field: str) -> int:
    for line in Path(path).read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise ValueError(f"{path} must tell {field}, and does not")


def give_back_freed() -> None:
    """What malloc keeps of loading differs from run to run (HEAP_RETAINED_BYTES of the planner); the rest is judged."""
    ctypes.CDLL(None).malloc_trim(0)


def count_kernels(seen: set[tuple[object, ...]]) -> None:
    """Notes every (weight shape, rows) that a packed layer is called with: oneDNN keeps a kernel for each."""
    call = PackedLinear.__call__

    def counted(self: PackedLinear, x: torch.Tensor) -> torch.Tensor:
        seen.add((tuple(self.packed.shape), x.shape[0]))
        return call(self, x)

    setattr(PackedLinear, "__call__", counted)  # noqa: B010


def gpu_used_bytes() -> int:
    """Of the first GPU, by everyone: nobody else may use it meanwhile. Makes no context."""
    pynvml.nvmlInit()
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)


def warm_up() -> None:
    """What any actor that computes has, whatever its size: OpenMP's team, oneDNN's kernels, the sampling code."""
    can_pack(torch.float32)
    can_pack(torch.bfloat16)
    can_int8()
    x = torch.randn(64, 64)
    torch.nn.functional.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])
    torch.sort(x @ x)


def host_of(wanted: Wanted) -> DraftHost | TargetHost:
    device: Any = wanted.device
    actor = ActorSpec(wanted.model, device, wanted.context, wanted.num_seqs, 1)
    if wanted.role == "draft":
        return DraftHost(DraftSpec(actor, settings_of(wanted)))
    dtype: Any = wanted.dtype
    numerics: Any = wanted.numerics
    return TargetHost(TargetSpec(actor, dtype, numerics))


def settings_of(wanted: Wanted) -> DraftSettings:
    dtype: Any = wanted.dtype if wanted.role == "draft" else wanted.draft_dtype
    return DraftSettings(wanted.head, dtype, wanted.verify_length)


class RandomDraft(NoDraft):
    """Proposes `length` random tokens to everyone: as many rows as a good draft would cause."""

    def __init__(self, vocab: int, length: int) -> None:
        self.random, self.vocab, self.length = random.Random(1), vocab, length

    async def propose(self, decoding: Sequence[Active], context: int) -> Proposed:
        return Proposed({a.number: tuple(self.random.choices(range(self.vocab), k=self.length)) for a in decoding})


def prompts(wanted: Wanted, vocab: int) -> list[tuple[int, ...]]:
    """One for each slot, leaving room for three full rounds before the context is full."""
    rng = random.Random(2)
    length = wanted.context - 3 * (wanted.verify_length + 1)
    return [tuple(rng.choices(range(vocab), k=length)) for _ in range(wanted.num_seqs)]


async def run_target(host: TargetHost, wanted: Wanted) -> int:
    """Every slot at once, from its prompt to a full context. The number of tokens committed."""
    vocab = host.engine.target.config.vocab_size
    if wanted.role == "target":
        host._source = RandomDraft(vocab, wanted.verify_length)
    requests = [Request(n, ids, SAMPLING, wanted.context, ()) for n, ids in enumerate(prompts(wanted, vocab))]
    await host.submit(requests)
    unfinished, num_tokens = {r.number for r in requests}, 0
    while unfinished:
        for commit in await host.commits():
            num_tokens += len(commit.ids)
            if commit.finish_reason is not None:
                unfinished.discard(commit.number)
    return num_tokens


async def run_draft(host: DraftHost, wanted: Wanted) -> int:
    """The same of a draft's sessions, as if the target had accepted everything. The number of tokens drafted."""
    drafter, rng = host._drafter, random.Random(4)
    assert drafter is not None
    vocab = drafter.trunk.config.vocab_size
    new: dict[int, tuple[int, ...]] = {}
    for number, ids in enumerate(prompts(wanted, vocab)):
        drafter.open(number, ids, SAMPLING, wanted.context)
        new[number] = ()
    num_tokens = 0
    while True:
        wishes = [Wish(number, ids, wanted.verify_length) for number, ids in new.items()]
        proposals, behind = await host.compute(partial(drafter.step, wishes))
        num_tokens += sum(len(ids) for ids in proposals.values())
        room = min(wanted.context - len(session.ids) for session in drafter.sessions.values())
        count = 0 if behind else min(1 + wanted.verify_length, room)
        if not behind and not count:
            return num_tokens
        new = {number: tuple(rng.choices(range(vocab), k=count)) for number in new}


async def take_reading(wanted: Wanted) -> Reading:
    on_gpu = wanted.device == "cuda"
    gpu_before = gpu_used_bytes() if on_gpu else 0
    host = host_of(wanted)
    await host.compute(warm_up)
    baseline = resident_bytes()
    kernels: set[tuple[object, ...]] = set()
    count_kernels(kernels)
    restart_peak()
    await host.load()
    if wanted.role == "colocated" and isinstance(host, TargetHost):
        await host.colocate(settings_of(wanted))
    loaded = gpu_used_bytes() - gpu_before if on_gpu else resident_bytes() - baseline
    load_peak = peak_bytes() - baseline
    give_back_freed()
    restart_peak()
    num_tokens = await (run_draft(host, wanted) if isinstance(host, DraftHost) else run_target(host, wanted))
    ram_peak = max(load_peak, peak_bytes() - baseline)
    return Reading(
        baseline_bytes=baseline,
        loaded_bytes=loaded,
        load_peak_bytes=load_peak,
        peak_bytes=gpu_used_bytes() - gpu_before if on_gpu else peak_bytes() - baseline,
        host_bytes=baseline + ram_peak if on_gpu else 0,
        num_tokens=num_tokens,
        num_kernels=len(kernels),
    )


async def _main() -> None:
    print(json.dumps(asdict(await take_reading(Wanted(**json.loads(sys.argv[1]))))), flush=True)
    os._exit(0)  # the target's loop would go on waiting


if __name__ == "__main__":
    asyncio.run(_main())
