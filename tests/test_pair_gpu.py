"""Every placement on a machine with a GPU: the embedded pair, one GPU shared where there is only one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest
import torch

from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.specs import ActorReport
from twinspark.actors.target.request import Request, requests_for
from twinspark.cluster.pair import Pair
from twinspark.cluster.ray_session import ray_session
from twinspark.cluster.survey import survey_here
from twinspark.deploy.completion import complete
from twinspark.deploy.identity import audit, first_difference
from twinspark.deploy.opening import open_pair
from twinspark.deploy.options import Options
from twinspark.deploy.plan_pair import plan_pair
from twinspark.deploy.prompts import Prompt, encode_prompts
from twinspark.deploy.tokenizer import open_tokenizer
from twinspark.planner.nodes import Node

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, torch sees none"),
]

TEXTS = ("What is a prime number?", "Write a haiku about rain.", "Name three rivers in Europe.")
NUM_TOKENS = 96


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    found = survey_here()
    with ray_session(None, num_cpus=found[0].num_cpus, num_gpus=len(found[0].gpus)):
        yield found


async def run(
    options: Options, nodes: list[Node]
) -> tuple[list[Request], list[list[int]], dict[str, ActorReport], int]:
    """Requests, their ids, what the actors said, how many draft tokens were accepted."""
    opened = open_pair(options, lambda _: None)
    tokenizer = open_tokenizer(opened.target.path)
    prompts = encode_prompts(tokenizer, [Prompt(text=text) for text in TEXTS], False)
    samplings = [options.sampling() for _ in prompts]
    requests = requests_for(prompts, samplings, max_new_tokens=NUM_TOKENS, stop_token_ids=tokenizer.eos_ids)
    async with Pair.start(plan_pair(options, opened, nodes, max_seqs=4)) as pair:
        done = await complete(pair, requests, tokenizer, ())
        reports = await pair.reports()
    accepted = sum(r.num_accepted for c in done for r in c.report.rounds)
    return requests, [list(c.report.token_ids) for c in done], reports, accepted


def contexts() -> set[int]:
    """Processes that hold a CUDA context, by NVML."""
    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return {p.pid for handle in handles for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    finally:
        pynvml.nvmlShutdown()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_placement_gives_the_tokens_of_off(demo_model: Path, nodes: list[Node], temperature: float) -> None:
    base = Options(dtype="float32", temperature=temperature, seed=11)

    off = base.model_copy(update={"dspark_place": "off"})

    async def compare() -> None:
        requests, plain, reports, _ = await run(off, nodes)
        assert reports["target"].device.startswith("cuda")
        found: list[tuple[str, list[list[int]]]] = []
        for place, transport in (("colocated", "stream"), ("gpu", "stream"), ("gpu", "ray"), ("cpu", "stream")):
            options = base.model_copy(update={"dspark_place": place, "transport": transport})
            _, ids, reports, accepted = await run(options, nodes)
            assert accepted > 0, place
            if place in ("gpu", "cpu"):
                assert reports["draft"].device.startswith("cuda" if place == "gpu" else "cpu")
                assert (reports["draft"].cuda_bytes > 0) == (place == "gpu")
            found.append((place, ids))
        # The judge comes last: with one GPU there is no room for two pairs at once.
        async with Pair.start(plan_pair(off, open_pair(off, print), nodes)) as judge:
            for place, ids in found:
                for request, a, b in zip(requests, plain, ids, strict=True):
                    difference = await audit(judge, request, a, b)
                    assert difference is None or difference.is_rounding, (place, difference)

    asyncio.run(compare())


def test_bfloat16_exact_numerics_are_strictly_equal(demo_model: Path, nodes: list[Node]) -> None:
    base = Options(dtype="bfloat16", numerics="exact", dspark_dtype="bfloat16")
    _, plain, _, _ = asyncio.run(run(base.model_copy(update={"dspark_place": "off"}), nodes))
    for place in ("colocated", "gpu"):
        _, ids, _, accepted = asyncio.run(run(base.model_copy(update={"dspark_place": place}), nodes))
        assert accepted > 0
        assert [first_difference(a, b) for a, b in zip(plain, ids, strict=True)] == [None] * len(plain)


def test_a_cpu_draft_makes_no_cuda_context(demo_model: Path, nodes: list[Node]) -> None:
    options = Options(dspark_place="cpu")

    async def look() -> None:
        async with Pair.start(plan_pair(options, open_pair(options, print), nodes)) as pair:
            requests = requests_for([[1, 2, 3]], [Sampling()], max_new_tokens=8, stop_token_ids=())
            await pair.submit(requests)
            async for commit in pair.commits():
                if commit.finish_reason is not None:
                    break
            reports = await pair.reports()
            holding = contexts()
            if reports["target"].pid not in holding:
                pytest.skip("NVML does not name this machine's processes")
            assert reports["draft"].pid not in holding

    asyncio.run(look())
