"""Run inside a memory limit: plan a pair, let another process take RAM, and only then bring the pair up.

Prints one JSON line: what was planned, what came up, why, and the tokens; or the error.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

from pairs import demo_tokenizer, run_all, spec_of

from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.target.request import Request
from twinspark.cluster.errors import SpawnError
from twinspark.cluster.pair import Pair
from twinspark.cluster.ray_session import ray_session
from twinspark.cluster.room import draft_room, target_room
from twinspark.cluster.survey import survey_here

HOLD = """
import sys
held = bytearray(int(sys.argv[1]))
held[::4096] = b"x" * len(held[::4096])
print("held", flush=True)
sys.stdin.read()
"""


async def main(place: str, hungry: bool) -> dict[str, Any]:
    spec = spec_of(place, max_seqs=16, context=2048)
    if place == "auto":
        # What is planned here is a draft of its own, with nothing but `off` below it.
        cpu = next(c for c in spec.decision.candidates if c.placement == "cpu" and c.feasible)
        off = next(c for c in spec.decision.candidates if c.placement == "off")
        spec = replace(spec, decision=replace(spec.decision, chosen=cpu, fallbacks=(off,)))
    chosen = spec.decision.chosen
    prompt = tuple(demo_tokenizer().chat([{"role": "user", "content": "What is a prime number?"}]))
    with ray_session(None, num_cpus=2, num_gpus=0):
        [here] = survey_here()
        room = here.headroom_bytes("cpu") if place == "auto" else here.available_ram_bytes
        target = target_room(spec.inputs, chosen)
        wanted = target.device_bytes + target.process_bytes
        spare = draft_room(spec.inputs, chosen, 16).device_bytes // 2
        hog = None
        if hungry and room is not None:
            hog = subprocess.Popen(
                [sys.executable, "-c", HOLD, str(room - wanted - spare)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert hog.stdout is not None
            assert hog.stdout.readline() == b"held\n"
        try:
            async with Pair.start(spec) as pair:
                [report] = await run_all(pair, [Request(1, prompt, Sampling.of(), 24)])
                return {
                    "planned": chosen.placement,
                    "placement": pair.current.placement,
                    "reason": pair.reason,
                    "moves": len(pair.moves),
                    "token_ids": list(report.token_ids),
                    "drafted": sum(len(r.draft_tokens) for r in report.rounds),
                }
        except SpawnError as error:
            return {"error": str(error)}
        finally:
            if hog is not None:
                alive = hog.poll() is None
                hog.kill()
                assert alive, "nothing is killed"


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], sys.argv[2] == "hungry"))))
