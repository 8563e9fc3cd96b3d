"""How often a draft token is kept at temperature, teacher-forced on text the target sampled itself.

    python benchmarks/sampled_acceptance.py --prompts mt-bench.jsonl:3 --prompts gsm8k.jsonl:3 --samples 6

One process, no Ray; target and head in float32 on the CPU. Every prompt (chat template, cut to its first --prompt-ids
ids) is answered --samples times under shared noise, up to an end token. Then every answer token with enough text after
it is an anchor once, the tokens before a draft slot being the text's own. Beside each other, for draft token k:
the most any rule keeps (1-TV); the share in which target and draft drew the same token under --noises fresh noises a
position, and the exact chance of that under perfect noise; the share kept under the text's own noise; the chance of a
draft that sends its likeliest token; the bound (1-TV)/(1+TV).
Exit code 1 if a measured share lies outside its bounds by more than four standard errors.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from twinspark.actors.errors import CheckpointError
from twinspark.actors.loading import Progress, load_colocated, load_target
from twinspark.actors.sampling.noise import derived_seed
from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.specs import ActorSpec, DraftSettings, TargetSpec
from twinspark.actors.target.engine import Engine
from twinspark.deploy.acceptance import Acceptance, Tally, tally_text
from twinspark.deploy.embedded import demo_head_path, demo_model_path
from twinspark.deploy.errors import DemoModelError
from twinspark.deploy.forced_text import forced_logits, sample_texts
from twinspark.deploy.progress import note
from twinspark.deploy.prompts import encode_prompts, prompts_from_file
from twinspark.deploy.tokenizer import Tokenizer, open_tokenizer

MAX_SEQS = 16
TOLERATED_ERRORS = 4.0  # standard errors


def read_prompts(tokenizer: Tokenizer, sources: Sequence[str], prompt_ids: int) -> list[list[int]]:
    """The ids of every FILE.jsonl or FILE.jsonl:N of `sources`."""
    found = []
    for source in sources:
        path, colon, count = source.rpartition(":")
        limited = bool(colon) and count.isdigit()
        prompts = prompts_from_file(Path(path if limited else source))
        found += prompts[: int(count)] if limited else prompts
    if not found:
        raise ValueError("--prompts must name at least one prompt, got none")
    return [ids[:prompt_ids] for ids in encode_prompts(tokenizer, found, False)]


def measure(given: argparse.Namespace) -> dict[float, list[Acceptance]]:
    """Acceptance by draft slot, for every temperature."""
    model = str(demo_model_path(note)) if given.model == "demo" else given.model
    head = str(demo_head_path()) if given.head == "demo" else given.head
    tokenizer = open_tokenizer(model)
    prompts = [ids for ids in read_prompts(tokenizer, given.prompts, given.prompt_ids) for _ in range(given.samples)]
    context = max(map(len, prompts)) + given.tokens
    actor = ActorSpec(model, "cpu", context, min(MAX_SEQS, len(prompts)), given.threads)
    settings = DraftSettings(head, "float32", given.positions)
    target = load_target(TargetSpec(actor, "float32", "fast"), Progress())
    proposer = load_colocated(actor, target, settings, Progress())
    engine = Engine(target, max_seqs=actor.max_seqs, context=context)
    results = {}
    for temperature in given.temperature:
        # Each text has 1 + noises streams of its own, so that texts do not share luck.
        seeds = [
            [derived_seed(given.seed, i * (1 + given.noises) + j) for j in range(1 + given.noises)]
            for i in range(len(prompts))
        ]
        own = [Sampling.of(temperature=temperature, seed=of_text[0]) for of_text in seeds]
        began = time.perf_counter()
        texts = sample_texts(engine, prompts, own, num_tokens=given.tokens, stop_ids=tokenizer.eos_ids)
        note(f"temperature {temperature:g}: {len(texts)} texts sampled in {time.perf_counter() - began:.0f} s")
        tallies = [Tally() for _ in range(given.positions)]
        logits = forced_logits(target, proposer, texts, [len(prompt) for prompt in prompts], num_slots=given.positions)
        for forced, sampling, of_text in zip(logits, own, seeds, strict=True):
            if forced is not None:
                tally_text(tallies, forced, sampling, of_text[1:], engine.noise, proposer.noise)
        note(f"temperature {temperature:g}: measured after {time.perf_counter() - began:.0f} s")
        results[temperature] = [tally.acceptance() for tally in tallies]
    return results


def within_bounds(found: Acceptance) -> bool:
    slack = TOLERATED_ERRORS * found.standard_error
    return found.bound - slack <= found.measured <= found.optimal + slack


def print_table(results: dict[float, list[Acceptance]]) -> None:
    print("temperature k positions   1-TV  shared   (exact, error)  own noise  greedy  bound  shared/optimal")
    for temperature, slots in results.items():
        for k, a in enumerate(slots, start=1):
            print(
                f"{temperature:11g} {k} {a.num_positions:9d}  {a.optimal:.3f}  {a.measured:.3f}  "
                f"({a.expected:.3f}, {a.standard_error:.4f})     {a.own_noise:.3f}   {a.greedy_draft:.3f}  "
                f"{a.bound:.3f}  {a.share_of_optimal:.3f}{'' if within_bounds(a) else '  OUT OF BOUNDS'}"
            )


def report(given: argparse.Namespace, results: dict[float, list[Acceptance]]) -> dict[str, object]:
    rows = [
        {"temperature": temperature, "k": k, **asdict(a), "share_of_optimal": a.share_of_optimal}
        | {"within_bounds": within_bounds(a)}
        for temperature, slots in results.items()
        for k, a in enumerate(slots, start=1)
    ]
    settings = {name: value for name, value in vars(given).items() if name not in ("json", "temperature")}
    return {"settings": settings, "rows": rows}


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="'demo', a Hugging Face directory or a .gguf file")
    parser.add_argument("--head", default="demo", help="'demo' or a directory")
    parser.add_argument("--prompts", action="append", required=True, metavar="FILE.jsonl[:N]", help="repeatable")
    parser.add_argument("--temperature", action="append", type=float, help="repeatable; 0.7 and 1.0 if not given")
    parser.add_argument("--tokens", type=positive, default=80, help="tokens sampled a text, at most")
    parser.add_argument("--prompt-ids", type=positive, default=160)
    parser.add_argument("--samples", type=positive, default=1, help="texts a prompt")
    parser.add_argument("--positions", type=positive, default=3, help="draft slots")
    parser.add_argument("--noises", type=positive, default=8, help="noises a position, beside the text's own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=positive, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    given = parser.parse_args(arguments)
    given.temperature = given.temperature or [0.7, 1.0]
    if not all(t > 0 for t in given.temperature):
        parser.error(f"--temperature must be above 0, got {given.temperature}")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    torch.set_num_threads(given.threads)
    try:
        with torch.inference_mode():
            results = measure(given)
    except (ValueError, OSError, CheckpointError, DemoModelError) as error:
        print(f"sampled_acceptance: {error}", file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps(report(given, results)))
    else:
        print_table(results)
    return 0 if all(within_bounds(a) for slots in results.values() for a in slots) else 1


if __name__ == "__main__":
    sys.exit(main())
