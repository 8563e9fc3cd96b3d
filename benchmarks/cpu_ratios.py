"""Placements against plain decoding against transformers, on one machine's CPU, interleaved in one run.

    python benchmarks/cpu_ratios.py --prompts FILE.jsonl [--more FILE.jsonl:8] [--repeats 3] [--tokens 128]

Each line of a file is a prompt as `twinspark generate --file` takes it. Total tokens over total decode time, the median
of the repeats; `off` runs with no draft process. transformers decodes greedily on the same weights in its own process.
Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from twinspark.cluster.ray_session import ray_session
from twinspark.cluster.survey import survey_here
from twinspark.deploy.compare import lanes_for, row_of, take_turn
from twinspark.deploy.opening import open_pair
from twinspark.deploy.options import Options
from twinspark.deploy.progress import note
from twinspark.deploy.prompts import encode_prompts, prompts_from_file
from twinspark.deploy.tokenizer import open_tokenizer


def transformers_lane(model: str, prompts: list[list[int]], num_tokens: int, num_threads: int) -> float:
    """Greedy tokens/s of transformers on the same weights, in a process of its own."""
    job = json.dumps({"model": model, "prompts": prompts, "num_tokens": num_tokens, "num_threads": num_threads})
    done = subprocess.run([sys.executable, __file__, "--transformers"], input=job, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"transformers failed: {done.stderr[-2000:]}")
    return float(done.stdout.strip().splitlines()[-1])


def run_transformers() -> None:
    """The other process: reads the job, prints tokens/s."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from twinspark.actors.checkpoint.opening import open_target

    job = json.load(sys.stdin)
    torch.set_num_threads(job["num_threads"])
    target = open_target(job["model"])
    config = target.config
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
            max_position_embeddings=config.max_positions,
            tie_word_embeddings=True,
        )
    ).eval()
    state = {name: target.tensors.load(name).float() for name in target.tensors.infos()}
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    tokens = seconds = 0.0
    with torch.inference_mode():
        for prompt in [job["prompts"][0], *job["prompts"]]:
            times: list[float] = []
            ids = torch.tensor([prompt])
            past = None
            for _ in range(job["num_tokens"]):
                out = model(ids, past_key_values=past, use_cache=True, logits_to_keep=1)
                past, ids = out.past_key_values, out.logits[:, -1:].argmax(-1)
                times.append(time.perf_counter())
                if int(ids) in config.eos_token_ids:
                    break
            if past is not None and (tokens or prompt is not job["prompts"][0]):
                tokens += len(times) - 1
                seconds += times[-1] - times[0]
            elif not tokens:
                tokens = seconds = 1e-12  # the first prompt once more, to warm up
    print(tokens / seconds)


async def main(arguments: argparse.Namespace) -> None:
    options = Options(max_new_tokens=arguments.tokens, **json.loads(arguments.options))
    opened = open_pair(options, note)
    tokenizer = open_tokenizer(opened.target.path)
    found = prompts_from_file(Path(arguments.prompts))
    for more in arguments.more:
        path, _, count = more.rpartition(":")
        found += prompts_from_file(Path(path))[: int(count)]
    prompts = encode_prompts(tokenizer, found, False)
    nodes = survey_here()
    lanes = lanes_for(options, arguments.lanes.split(","))
    peer: list[float] = []
    for repeat in range(arguments.repeats):
        if not arguments.no_peer:
            peer.append(transformers_lane(opened.target.path, prompts, arguments.tokens, nodes[0].num_cpus))
            note(f"turn {repeat + 1} transformers: {peer[-1]:.1f} tokens/s")
        for lane in lanes:
            with ray_session(None, num_cpus=nodes[0].num_cpus, num_gpus=len(nodes[0].gpus)):
                await take_turn(lane, opened, nodes, prompts, tokenizer, first=lanes[0])
    rows = [row_of(lane) for lane in lanes]
    off = rows[0]["tokens_per_s"]
    for row in rows:
        row["over_off"] = round(row["tokens_per_s"] / off, 3)
        if peer:
            row["over_transformers"] = round(row["tokens_per_s"] / statistics.median(peer), 3)
        print(json.dumps(row))
    print(json.dumps({"placement": "transformers", "tokens_per_s_of_turns": peer}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transformers", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--prompts")
    parser.add_argument("--more", action="append", default=[])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--lanes", default="off,cpu,colocated")
    parser.add_argument("--options", default="{}", help="JSON of further options")
    parser.add_argument("--no-peer", action="store_true")
    given = parser.parse_args()
    if given.transformers:
        run_transformers()
    else:
        asyncio.run(main(given))
