"""VRAM that another process takes between planning and loading: the draft steps down with its reason (needs a GPU)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pairs import BASE, demo_tokenizer, run_all, silently

from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.target.request import Request
from twinspark.cluster.pair import Pair, PairSpec
from twinspark.cluster.ray_session import ray_session
from twinspark.cluster.room import draft_room, target_room
from twinspark.cluster.survey import survey_here
from twinspark.deploy.opening import open_pair
from twinspark.deploy.plan_pair import plan_pair
from twinspark.planner.placement import Candidate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, torch sees none"),
]
HOLD = """
import sys, torch
held = torch.zeros(int(sys.argv[1]), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(num_bytes: int) -> Iterator[None]:
    """Another process with so much of the GPU, its context beside it."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(num_bytes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as hog:
        assert hog.stdout is not None
        assert hog.stdin is not None
        assert hog.stdout.readline() == b"held\n"
        yield
        hog.stdin.close()


def way(spec: PairSpec, placement: str) -> Candidate:
    return next(
        c for c in spec.decision.candidates if c.placement == placement and c.target.kind == "cuda" and c.feasible
    )


@pytest.mark.parametrize(("planned", "then"), [("gpu", "cpu"), ("colocated", "off")])
def test_the_draft_steps_down_when_the_gpu_is_filled(demo_model: Path, planned: str, then: str) -> None:
    # A large draft beside a small target, so that what is left can hold one and not the other.
    options = BASE.model_copy(update={"dspark_place": "auto", "max_seqs": 256, "context": 8192})
    spec = plan_pair(options, open_pair(options, silently), survey_here())
    chosen = way(spec, planned)
    fallbacks = tuple(way(spec, place) for place in (then, "off"))
    spec = replace(spec, decision=replace(spec.decision, chosen=chosen, fallbacks=fallbacks))
    prompt = tuple(demo_tokenizer().chat([{"role": "user", "content": "What is a prime number?"}]))

    async def body() -> None:
        [here] = survey_here()
        room = here.headroom_bytes("cuda:0")
        assert room is not None
        keep = target_room(spec.inputs, chosen).device_bytes + draft_room(spec.inputs, chosen, 256).device_bytes // 2
        context_bytes = 600 * 2**20
        with ray_session(None, num_cpus=here.num_cpus, num_gpus=1), held(room - keep - context_bytes):
            async with Pair.start(spec) as pair:
                [report] = await run_all(pair, [Request(1, prompt, Sampling.of(), 24)])
                assert pair.current.placement == then
                assert f"{planned}" in pair.moves[0].origin
                assert "just before loading" in pair.reason
                assert len(report.token_ids) == 24

    asyncio.run(body())
