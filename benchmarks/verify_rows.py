"""What a verify pass costs by its number of rows, in one process: the table behind the default verify length.

    python benchmarks/verify_rows.py [--model demo|PATH] [--dtype float32] [--context 256] [--threads N] [--repeats 25]

Medians, the row counts interleaved within each repeat. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch

from twinspark.actors.checkpoint.opening import open_target
from twinspark.actors.nets.decoder import Decoder
from twinspark.actors.nets.rows import Rows, Span
from twinspark.cluster.probe import probe_node
from twinspark.deploy.embedded import demo_model_path

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--numerics", choices=("fast", "exact"), default="fast")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    threads = given.threads or probe_node().num_cpus.value
    torch.set_num_threads(threads)
    target = open_target(demo_model_path() if given.model == "demo" else given.model)
    with torch.inference_mode():
        decoder = Decoder(
            target.config,
            target.tensors.load,
            precision=given.dtype,
            numerics=given.numerics,
            num_slots=1,
            context=given.context + max(ROWS),
            device=torch.device(given.device),
        )
        ids = [100 + i % 1000 for i in range(given.context)]
        decoder.forward(Rows([Span(0, 0, given.context)], ids, decoder.device))

        def verify_ms(num_rows: int) -> float:
            began = time.perf_counter()
            rows = Rows([Span(0, given.context, num_rows)], ids[:num_rows], decoder.device)
            decoder.logits(decoder.forward(rows)[0]).argmax(-1).tolist()
            return 1e3 * (time.perf_counter() - began)

        for num_rows in ROWS:
            verify_ms(num_rows)
        times = {num_rows: [] for num_rows in ROWS}
        for _ in range(given.repeats):
            for num_rows in ROWS:
                times[num_rows].append(verify_ms(num_rows))
    medians = {num_rows: round(statistics.median(values), 2) for num_rows, values in times.items()}
    print(json.dumps({"threads": threads, "dtype": given.dtype, "numerics": given.numerics, "verify_ms": medians}))
    print(f"8 rows cost {medians[8] / medians[1]:.2f}x of 1")


if __name__ == "__main__":
    main()
