"""Footprints written out with plain numbers, as docs/planning.md does: for comparing, with no code of the planner's.

What was read off processes (their own size) is taken from planner/footprint.py; all else is worked out here once more.
Qwen3 targets in bfloat16; heads of three such layers, block 7, four shallow taps, Markov rank 256, fast numerics.
"""

from __future__ import annotations

from dataclasses import dataclass

from twinspark.planner import footprint as readings

MIB, GIB = 2**20, 2**30
VOCABULARY, HEAD_DIM, KV = 151936, 128, 8 * 128
GPU_PROCESS = readings.CUDA_CONTEXT_BYTES + readings.CUDA_SLACK_BYTES
CPU_PROCESS = readings.CPU_PROCESS_BYTES + readings.HEAP_RETAINED_BYTES + readings.NUM_KERNELS * readings.KERNEL_BYTES
BLOCK, TAPS, RANK, HEAD_LAYERS, TRUNK_LAYERS = 7, 4, 256, 3, 3


@dataclass(frozen=True)
class Parts:
    """Bytes on a device. `together` is the footprint."""

    weights: int
    kv: int
    workspace: int
    overhead: int

    @property
    def together(self) -> int:
        return self.weights + self.kv + self.workspace + self.overhead


@dataclass(frozen=True)
class Qwen3:
    hidden: int
    layers: int
    inner: int
    heads: int
    tied: bool = False

    @property
    def queries(self) -> int:
        return self.heads * HEAD_DIM

    @property
    def matrices(self) -> int:
        """Elements of a layer's: q, k, v, o, gate, up, down."""
        return self.hidden * (2 * self.queries + 2 * KV + 3 * self.inner)

    @property
    def matrix_rows(self) -> int:
        return self.queries + 2 * KV + 2 * self.hidden + 2 * self.inner

    @property
    def vectors(self) -> int:
        """Two norms of a layer, and those of q and k."""
        return 2 * self.hidden + 2 * HEAD_DIM

    @property
    def table(self) -> int:
        """Elements of the embedding; of the lm_head too, where that is not the same."""
        return VOCABULARY * self.hidden

    @property
    def kv_per_token(self) -> int:
        return 2 * self.layers * KV * 2

    def activations(self, element: int) -> int:
        """Bytes a row of a layer."""
        return element * max(2 * self.hidden + 5 * self.queries + 2 * KV, 4 * self.hidden + 4 * self.inner)

    def biases(self, context: int, copies: int) -> int:
        """Bytes a row where spans are masked."""
        return context * ((copies * self.heads // 8 + 1) * 2 + 1)

    def target_on_gpu(self, context: int, requests: int, drafts: int) -> Parts:
        weights = self.table * (1 if self.tied else 2) + self.layers * (self.matrices + self.vectors) + self.hidden
        rows = max(256, requests * (1 + drafts) + 32)
        step = requests * (1 + drafts)
        layer = rows * (self.activations(2) + self.biases(context, 2))
        draw = step * VOCABULARY * 6 + min(step, 16) * VOCABULARY * 72
        return Parts(
            weights=2 * (weights + 2 * context * HEAD_DIM) + 8 * VOCABULARY,
            kv=(requests + 1) * context * self.kv_per_token,
            workspace=2 * rows * self.hidden * 2 + max(layer, draw),
            overhead=GPU_PROCESS,
        )

    def head_beside_on_gpu(self, context: int, requests: int, drafts: int = 7) -> Parts:
        own = HEAD_LAYERS * (self.matrices + self.vectors) + TAPS * self.hidden**2 + 2 * self.hidden
        own += 2 * VOCABULARY * RANK + 2 * (context + BLOCK) * HEAD_DIM + (0 if self.tied else self.table)
        rows = max(256, requests * (1 + drafts) + 32)
        extend = rows * (3 * self.hidden + 2 * (self.queries + 2 * KV)) * 2
        propose = requests * BLOCK * VOCABULARY * 6 + requests * VOCABULARY * (12 + 72)
        propose = max(requests * BLOCK * self.activations(2), propose) + requests * BLOCK * self.hidden * 4
        return Parts(
            weights=2 * own + 4 * (self.hidden + RANK + 1) + 8 * VOCABULARY,
            kv=requests * (context + BLOCK) * 2 * HEAD_LAYERS * KV * 2,
            workspace=2 * rows * TAPS * self.hidden * 2 + max(extend, propose),
            overhead=0,
        )

    def draft_on_cpu(self, context: int, requests: int, drafts: int = 7) -> Parts:
        """The trunk in bfloat16, the head's matrices in int8 with 12 bytes an output row, the rest in float32."""
        trunk = 2 * (self.table + TRUNK_LAYERS * (self.matrices + self.vectors) + 2 * context * HEAD_DIM)
        head = HEAD_LAYERS * (self.matrices + 12 * self.matrix_rows + 4 * self.vectors)
        head += TAPS * self.hidden**2 + 12 * self.hidden + 4 * 2 * self.hidden
        head += VOCABULARY * RANK * 4 + VOCABULARY * (RANK + 12) + 4 * (self.hidden + RANK + 1)
        head += self.table + (0 if self.tied else 12 * VOCABULARY)
        head += 4 * 2 * (context + BLOCK) * HEAD_DIM + 24 * VOCABULARY
        rows = 128 + requests * (1 + drafts)
        taps = 2 * rows * TAPS * self.hidden * 2
        trunk_pass = rows * (self.activations(2) + self.biases(context, 1))
        extend = rows * (3 * TAPS * self.hidden + 3 * self.hidden + 2 * (self.queries + 2 * KV)) * 4
        block = requests * BLOCK * (self.activations(4) + max(self.hidden, self.inner) * 9)
        logits = requests * VOCABULARY * (BLOCK * 4 + 12) + VOCABULARY * 32
        propose = requests * BLOCK * self.hidden * 8 + max(block, logits)
        kv = (requests + 1) * context * 2 * TRUNK_LAYERS * KV * 2
        return Parts(
            weights=trunk + head,
            kv=kv + requests * (context + BLOCK) * 2 * HEAD_LAYERS * KV * 4,
            workspace=max(taps + max(trunk_pass, extend), propose) + requests * context * 40,
            overhead=CPU_PROCESS,
        )


QWEN3_4B = Qwen3(2560, 36, 9728, 32, tied=True)
QWEN3_8B = Qwen3(4096, 36, 12288, 32)
QWEN3_14B = Qwen3(5120, 40, 17408, 40)


def headroom(free_gib: float, total_gib: float, least_reserve: int) -> int:
    return int(free_gib * GIB) - max(int(0.10 * int(total_gib * GIB)), least_reserve)


def fits(headroom_bytes: int, target: Parts | None, draft: Parts) -> bool:
    """With the margin on the draft."""
    return headroom_bytes >= (0 if target is None else target.together) + int(1.15 * draft.together)


def expected(survival: float, drafts: int) -> float:
    """1 + s + s^2 + ..."""
    return sum(survival**k for k in range(drafts + 1))
