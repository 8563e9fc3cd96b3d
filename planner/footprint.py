"""What an actor will take, before anything is loaded: bytes by device, dtype, context, concurrency and verify length.

The formulas follow what actors/nets and actors/target allocate, at the most that one step may need; they are held
against the memory of real processes in tests/test_footprint_reality.py. Knows no free memory and no node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from twinspark.planner.nodes import MIB
from twinspark.planner.sizes import HeadSize, LayerSize, ModelSize

Kind = Literal["cpu", "cuda"]
Dtype = Literal["float32", "bfloat16", "int8"]
Numerics = Literal["exact", "fast"]

# Rows of a step, as actors/target/engine.py and actors/draft/drafter.py have them (tests/test_footprint.py compares).
PREFILL_ROWS_ALONE = 256
PREFILL_ROWS_BESIDE = 32
CATCH_UP_ROWS = 128
DEVICE_DRAW_ROWS = 16

# A Ray worker with torch (CPU build), everything imported, OpenMP and oneDNN used once: 309-312 MiB resident (Ray 2.60,
# torch 2.13, 2 threads; private 267, the rest libraries that actors share). Outside Ray 253.
CPU_PROCESS_BYTES = 320 * MIB
# What malloc keeps of loading though it was freed: 5-60 MiB (int8 30-170), of which actors give nearly all back
# (malloc_trim in actors/loading.py).
HEAP_RETAINED_BYTES = 16 * MIB
# oneDNN keeps a kernel for every shape of a packed product, so for every number of rows: 2.3-2.8 MiB for the five
# shapes of a model (1 thread, AVX2; 120 numbers of rows took 280 MiB). Nothing was seen to bound it; this is for 32
# numbers of rows, while a prompt's last chunk may have any up to 256.
KERNEL_BYTES = 550 * 1024
NUM_KERNELS = 32 * 5
# A context with torch's kernels and cuBLAS's workspaces: with this, predictions for five actors on an H200 (torch 2.11,
# driver 580) are 1-2% off; they took 70-95 MiB more than with the 600 MiB that are documented.
CUDA_CONTEXT_BYTES = 680 * MIB
# torch's allocator takes 2 MiB (small) and 20 MiB (larger) segments, one pool of each for loading and for steps.
CUDA_SLACK_BYTES = 64 * MIB
# The RAM of a process with a CUDA context: libraries, pinned buffers. On that H200 1190-1760 MiB in all, at its most.
CUDA_HOST_BYTES = 1664 * MIB

FLOAT32_BYTES = 4
BFLOAT16_BYTES = 2
INT8_ROW_BYTES = 12  # a scale (float32), a zero point and a sum (int32) for every output row
NOISE_BYTES = 24  # for every token: offsets and two buffers of 64 bits
MAPPED_ID_BYTES = 40  # a Python integer in a list
TARGET_TOKEN_BYTES = 120  # a committed token in Python: the id, and its part of a round's record
DRAFT_TOKEN_BYTES = 40
HOST_DRAW_BYTES = 32  # for every token of one row that is drawn: copies, bounds, a sort
PLAIN_READ_BYTES = 4  # reading an element: its page of the file, or its float32 copy
BLOCK_READ_BYTES = 9  # from a GGUF file's blocks: stored, copied, scaled in float32 (8.5 measured, Q8_0)
DEVICE_DRAW_BYTES = 72  # on a GPU, for every token of each of DEVICE_DRAW_ROWS rows: 64-bit noise, sums, a sort


@dataclass(frozen=True)
class CpuKernels:
    """Which layouts a node's torch has, as actors/nets/linear.py finds out by trying. A tied embedding in a packed
    layout is a copy, so what is not known is better taken to be there.
    """

    packs_float32: bool = True
    packs_bfloat16: bool = True
    int8: bool = True


EVERY_KERNEL = CpuKernels()


@dataclass(frozen=True)
class Footprint:
    """Bytes of one actor, or of what a colocated head adds to one. `host_bytes` are taken in the node's RAM beside the
    device, where that is a GPU; an actor on a CPU has none, as its device is the RAM.

    `loading_bytes` is RAM that an actor on a CPU takes beyond `device_bytes` for a moment, while it reads the matrices
    of the vocabulary; of an actor on a GPU, `host_bytes` has it.
    """

    weights_bytes: int
    kv_bytes: int
    workspace_bytes: int
    overhead_bytes: int
    host_bytes: int
    loading_bytes: int = 0

    @property
    def device_bytes(self) -> int:
        """All that is taken on the device the actor computes on."""
        return self.weights_bytes + self.kv_bytes + self.workspace_bytes + self.overhead_bytes


def target_footprint(
    model: ModelSize,
    *,
    kind: Kind,
    dtype: Dtype,
    numerics: Numerics,
    context: int,
    num_seqs: int,
    verify_length: int,
    kernels: CpuKernels = EVERY_KERNEL,
) -> Footprint:
    """A target's actor. `verify_length` 0 is one without a draft. Raises ValueError for numbers that cannot be."""
    load = _Load(kind, dtype, context, num_seqs, verify_length, kernels)
    if dtype == "int8":
        raise ValueError("a target must be float32 or bfloat16, got int8")
    rows = max(PREFILL_ROWS_ALONE, load.step_rows + PREFILL_ROWS_BESIDE)
    hidden = rows * model.layer.hidden_size * load.real_bytes
    logits = load.step_rows * model.vocab_size * load.logit_bytes(numerics)
    drawing = logits + load.drawing(load.step_rows, model.vocab_size)
    return load.actor(
        weights=load.decoder(model, model.num_layers)
        + load.matrix(model.lm_head_elements, model.vocab_size)
        + load.copy_of(0 if model.lm_head_elements else model.embedding_elements, load.real_bytes)
        + load.real(model.final_norm_elements)
        + load.noise(model.vocab_size),
        kv=(num_seqs + 1) * load.kv_of_a_slot(model.layer, model.num_layers, context),
        workspace=2 * hidden + max(load.layer_pass(model.layer, rows, numerics == "fast"), drawing),
        python=num_seqs * context * TARGET_TOKEN_BYTES,
        noise=model.vocab_size,
        model=model,
        lm_head=model.lm_head_elements,
    )


def draft_footprint(
    model: ModelSize,
    head: HeadSize,
    *,
    kind: Kind,
    dtype: Dtype,
    context: int,
    num_seqs: int,
    verify_length: int,
    kernels: CpuKernels = EVERY_KERNEL,
) -> Footprint:
    """A draft's own actor: the target's embedding, the trunk, the head. With int8 the trunk is bfloat16."""
    load = _Load(kind, dtype, context, num_seqs, verify_length, kernels)
    trunk = load.in_dtype("bfloat16") if dtype == "int8" else load
    rows = CATCH_UP_ROWS + load.step_rows
    taps = _taps(model, head, rows, trunk.real_bytes)
    trunk_pass = trunk.layer_pass(model.layer, rows, masked=True) if head.num_trunk_layers else 0
    extend = load.extend(head, rows, trunk.real_bytes)
    return load.actor(
        weights=trunk.decoder(model, head.num_trunk_layers) + _head_weights(load, model, head, trunk.real_bytes),
        kv=(num_seqs + 1) * trunk.kv_of_a_slot(model.layer, head.num_trunk_layers, context)
        + num_seqs * load.kv_of_a_slot(head.layer, head.num_layers, context + head.block_size),
        workspace=max(taps + max(trunk_pass, extend), load.propose(head)),
        python=num_seqs * context * DRAFT_TOKEN_BYTES + _mapped_ids(head),
        noise=head.draft_vocab_size,
        model=model,
        lm_head=head.lm_head_elements or model.lm_head_elements,
    )


def colocated_footprint(
    model: ModelSize,
    head: HeadSize,
    *,
    kind: Kind,
    dtype: Dtype,
    context: int,
    num_seqs: int,
    verify_length: int,
    target_dtype: Dtype | None = None,
    kernels: CpuKernels = EVERY_KERNEL,
) -> Footprint:
    """What a head adds to its target's actor: no trunk, no process, but the taps of a step and its own caches.

    The two run by turns, so their workspaces need not be there at once; both are priced. `target_dtype` None: the
    draft's own, bfloat16 for an int8 one.
    """
    load = _Load(kind, dtype, context, num_seqs, verify_length, kernels)
    beside = load.in_dtype(target_dtype or ("bfloat16" if dtype == "int8" else dtype))
    rows = max(PREFILL_ROWS_ALONE, load.step_rows + PREFILL_ROWS_BESIDE)
    taps = _taps(model, head, rows, beside.real_bytes)
    workspace = taps + max(load.extend(head, rows, beside.real_bytes), load.propose(head))
    python = _mapped_ids(head)
    return Footprint(
        weights_bytes=_head_weights(load, model, head, beside.real_bytes),
        kv_bytes=num_seqs * load.kv_of_a_slot(head.layer, head.num_layers, context + head.block_size),
        workspace_bytes=workspace + (python if kind == "cpu" else 0),
        overhead_bytes=0,
        host_bytes=load.noise_on_host(head.draft_vocab_size) + python if kind == "cuda" else 0,
    )


def kv_bytes_per_seq(model: ModelSize, *, dtype: Dtype, context: int) -> int:
    """Cache of one request at a target: a slot is `context` positions. A target has one slot more than requests."""
    return _Load("cpu", dtype, context, 1, 0, EVERY_KERNEL).kv_of_a_slot(model.layer, model.num_layers, context)


@dataclass(frozen=True)
class _Load:
    """What everything is priced for."""

    kind: Kind
    dtype: Dtype
    context: int
    num_seqs: int
    verify_length: int
    kernels: CpuKernels

    def __post_init__(self) -> None:
        for name, value, least in (
            ("context", self.context, 1),
            ("num_seqs", self.num_seqs, 1),
            ("verify_length", self.verify_length, 0),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")

    def in_dtype(self, dtype: Dtype) -> _Load:
        return replace(self, dtype=dtype)

    @property
    def step_rows(self) -> int:
        """Rows of a round in which everyone decodes: anchors and drafts."""
        return self.num_seqs * (1 + self.verify_length)

    @property
    def real_bytes(self) -> int:
        """An element of what is never quantised: embeddings, norms, caches, activations."""
        return BFLOAT16_BYTES if self.dtype == "bfloat16" else FLOAT32_BYTES

    def real(self, elements: int) -> int:
        return elements * self.real_bytes

    # Weights ----------------------------------------------------------------------------------------------------------

    @property
    def is_int8(self) -> bool:
        return self.dtype == "int8" and self.kind == "cpu" and self.kernels.int8

    @property
    def matrix_bytes(self) -> int:
        """An element of a linear layer; what has no int8 falls back to bfloat16."""
        if self.is_int8:
            return 1
        return FLOAT32_BYTES if self.dtype == "float32" else BFLOAT16_BYTES

    @property
    def packs(self) -> bool:
        """Whether a linear layer is a copy in another layout than its weight came in."""
        if self.kind == "cuda":
            return False
        return self.kernels.packs_float32 if self.matrix_bytes == FLOAT32_BYTES else self.kernels.packs_bfloat16

    def matrix(self, elements: int, rows: int) -> int:
        return elements * self.matrix_bytes + (rows * INT8_ROW_BYTES if self.is_int8 and elements else 0)

    def copy_of(self, elements: int, held_bytes: int) -> int:
        """What a linear layer takes over a weight that is there already, with `held_bytes` an element."""
        shared = not self.is_int8 and not self.packs and held_bytes == self.matrix_bytes
        return 0 if shared else elements * self.matrix_bytes

    def layers(self, layer: LayerSize, num_layers: int) -> int:
        return num_layers * (self.matrix(layer.matrix_elements, layer.matrix_rows) + self.real(layer.vector_elements))

    def rope(self, layer: LayerSize, positions: int) -> int:
        return self.real(2 * positions * layer.head_dim)

    def decoder(self, model: ModelSize, num_layers: int) -> int:
        """Embedding, layers and rope tables: what a target and a trunk have alike."""
        return (
            self.real(model.embedding_elements)
            + self.layers(model.layer, num_layers)
            + self.rope(model.layer, self.context)
        )

    def noise(self, vocab_size: int) -> int:
        """On the device: all of it on a CPU, one table on a GPU."""
        return vocab_size * (NOISE_BYTES if self.kind == "cpu" else 8)

    def noise_on_host(self, vocab_size: int) -> int:
        return vocab_size * NOISE_BYTES

    def kv_of_a_slot(self, layer: LayerSize, num_layers: int, positions: int) -> int:
        return self.real(2 * num_layers * layer.num_kv_heads * layer.head_dim * positions)

    # Workspace --------------------------------------------------------------------------------------------------------

    def layer_pass(self, layer: LayerSize, rows: int, masked: bool) -> int:
        """Activations of `rows` in the larger half of a layer, and, where spans are `masked`, their biases."""
        hidden, inner, head_dim = layer.hidden_size, layer.intermediate_size, layer.head_dim
        queries, keys = layer.num_heads * head_dim, layer.num_kv_heads * head_dim
        attention = 2 * hidden + 5 * queries + 2 * keys
        activations = max(attention, 4 * hidden + 4 * inner) * self.real_bytes
        if self.is_int8:
            activations += max(hidden, inner) * (2 * FLOAT32_BYTES + 1)  # the input, quantised
        bias = 0
        if masked:
            copies = 2 if self.kind == "cuda" else 1  # the fused kernels there want aligned rows
            bias = self.context * ((copies * layer.group + 1) * self.real_bytes + 1)
        return rows * (activations + bias)

    def logit_bytes(self, numerics: Numerics) -> int:
        """One logit: float32, with the copy it is made from, and the tiles that `exact` joins."""
        narrow = 0 if self.matrix_bytes == FLOAT32_BYTES else self.matrix_bytes
        return FLOAT32_BYTES * (2 if numerics == "exact" else 1) + narrow

    def drawing(self, rows: int, vocab_size: int) -> int:
        if self.kind == "cpu":
            return vocab_size * HOST_DRAW_BYTES
        return min(rows, DEVICE_DRAW_ROWS) * vocab_size * DEVICE_DRAW_BYTES

    def extend(self, head: HeadSize, rows: int, tap_bytes: int) -> int:
        """Taps becoming context: cast, projected, and each layer's keys and values of them."""
        layer = head.layer
        qkv = (layer.num_heads + 2 * layer.num_kv_heads) * layer.head_dim
        cast = 0 if tap_bytes == self.real_bytes and not self.is_int8 else head.num_taps * layer.hidden_size
        if self.is_int8:
            cast *= 3
        return rows * (cast + 3 * layer.hidden_size + 2 * qkv) * self.real_bytes

    def propose(self, head: HeadSize) -> int:
        """A block of everyone, its base logits, and one step of the Markov loop."""
        length = min(head.block_size, self.verify_length + 1)
        block = self.layer_pass(head.layer, self.num_seqs * head.block_size, head.causal_windows)
        narrow = 0 if self.matrix_bytes == FLOAT32_BYTES or self.is_int8 else BFLOAT16_BYTES
        logits = self.num_seqs * length * head.draft_vocab_size * (FLOAT32_BYTES + narrow)
        markov = self.num_seqs * head.draft_vocab_size * 3 * FLOAT32_BYTES
        hidden = self.num_seqs * head.block_size * head.layer.hidden_size * 2 * self.real_bytes
        return hidden + max(block, logits + markov + self.drawing(self.num_seqs, head.draft_vocab_size))

    # A process --------------------------------------------------------------------------------------------------------

    def actor(
        self, *, weights: int, kv: int, workspace: int, python: int, noise: int, model: ModelSize, lm_head: int
    ) -> Footprint:
        """An actor of its own, with tokens in Python, noise for `noise` tokens, and an untied `lm_head` to read."""
        read = BLOCK_READ_BYTES if model.stored_in_blocks else PLAIN_READ_BYTES
        if self.kind == "cuda":
            largest = max(model.embedding_elements, lm_head)
            return Footprint(
                weights_bytes=weights,
                kv_bytes=kv,
                workspace_bytes=workspace,
                overhead_bytes=CUDA_CONTEXT_BYTES + CUDA_SLACK_BYTES,
                host_bytes=CUDA_HOST_BYTES + largest * read + python + self.noise_on_host(noise),
            )
        workspace += python
        # The embedding is read first, into an empty process; an untied lm_head last, and cast before it is packed.
        embedding_peak = model.embedding_elements * (read + self.real_bytes)
        lm_head_peak = weights + lm_head * (read + self.matrix_bytes)
        return Footprint(
            weights_bytes=weights,
            kv_bytes=kv,
            workspace_bytes=workspace,
            overhead_bytes=CPU_PROCESS_BYTES + HEAP_RETAINED_BYTES + NUM_KERNELS * KERNEL_BYTES,
            host_bytes=0,
            loading_bytes=max(0, max(embedding_peak, lm_head_peak) - weights - kv - workspace),
        )


def _head_weights(load: _Load, model: ModelSize, head: HeadSize, embedding_bytes: int) -> int:
    """A head's own weights. What it takes from the target: the embedding as it is (`embedding_bytes` an element), the
    lm_head read again where it is not the embedding.
    """
    if head.lm_head_elements:
        lm_head = load.matrix(head.lm_head_elements, head.draft_vocab_size)
    elif model.tied:
        lm_head = load.copy_of(model.embedding_elements, embedding_bytes)
    else:
        lm_head = load.matrix(model.lm_head_elements, model.vocab_size)
    inner = load.in_dtype("float32") if load.dtype == "int8" else load
    return (
        lm_head
        + head.embedding_elements * embedding_bytes
        + load.layers(head.layer, head.num_layers)
        + load.matrix(head.fc_elements, head.layer.hidden_size)
        + load.real(head.norm_elements)
        + load.real(head.markov_w1_elements)
        + load.matrix(head.markov_w2_elements, head.draft_vocab_size)
        + inner.matrix(head.markov_inner_elements, 0)
        + head.confidence_elements * FLOAT32_BYTES
        + load.rope(head.layer, load.context + head.block_size)
        + load.noise(head.draft_vocab_size)
    )


def _taps(model: ModelSize, head: HeadSize, rows: int, real_bytes: int) -> int:
    """Each tap held as the pass goes on, and all of them joined."""
    return 2 * rows * head.num_taps * model.layer.hidden_size * real_bytes


def _mapped_ids(head: HeadSize) -> int:
    return head.draft_vocab_size * MAPPED_ID_BYTES if head.maps_ids else 0
