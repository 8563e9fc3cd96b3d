"""One step of a network, timed without any request: the caches hold garbage, only the milliseconds count.

Runs in an actor's compute thread while nothing is served: slots from 0 on are written over. Knows nothing of budgets
and repeats, nor of what the times are for (`cluster/calibrate.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from twinspark.actors.draft.drafter import Drafter
from twinspark.actors.draft.proposer import Ask, Proposer
from twinspark.actors.draft.stopwatch import Stopwatch
from twinspark.actors.nets.cache import SlotCache
from twinspark.actors.nets.decoder import Decoder
from twinspark.actors.nets.rows import Rows, Span
from twinspark.actors.sampling.draw import draw, draw_one
from twinspark.actors.sampling.noise import Noise
from twinspark.actors.sampling.settings import Sampling

GREEDY = Sampling()
COMMITTED = 2  # tokens a request commits a round, about: acceptance lengths of 1.9 to 2.2 were measured
NO_DOUBT = 1e-30  # a least confidence that ends no proposal, yet has the confidence computed
GARBAGE = 0.01


class Lap:
    """`ms` is set when the timed block ends."""

    ms = 0.0


@contextmanager
def _timed(device: torch.device) -> Iterator[Lap]:
    """Times a block, on a GPU up to the end of what it launched."""
    lap = Lap()
    _wait_for(device)
    began = time.perf_counter()
    yield lap
    _wait_for(device)
    lap.ms = 1e3 * (time.perf_counter() - began)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def verify_step(
    decoder: Decoder,
    noise: Noise,
    taps: tuple[int, ...] = (),
    *,
    num_requests: int,
    rows_per_request: int,
    position: int,
) -> float:
    """Milliseconds of a target's pass over `rows_per_request` rows from `position` on, in slots 0 .. num_requests - 1,
    with its logits and greedy draws. Raises ValueError where the slots do not hold that.
    """
    _check(decoder.cache, decoder.scratch_slot, num_requests, position, rows_per_request)
    _fill(decoder.cache, num_requests, position)
    spans = [Span(slot, position, rows_per_request) for slot in range(num_requests)]
    ids = [i % decoder.config.vocab_size for i in range(num_requests * rows_per_request)]
    with _timed(decoder.device) as lap:
        hidden, _ = decoder.forward(Rows(spans, ids, decoder.device), taps)
        logits = decoder.logits(hidden)
        if logits.device.type == "cpu":
            # As the engine: on the host a row is drawn only when it is reached.
            reached = min(COMMITTED, rows_per_request)
            for span in range(num_requests):
                for i in range(reached):
                    draw_one(logits[span * rows_per_request + i], GREEDY, position + 1 + i, noise)
        else:
            positions = [position + 1 + i for _ in spans for i in range(rows_per_request)]
            draw(logits, [GREEDY] * len(positions), positions, noise)
    return lap.ms


def draft_step(drafter: Drafter, *, num_requests: int, length: int, position: int) -> float:
    """Milliseconds of a draft actor's round: the trunk over what each request has just committed, the taps into the
    head's context, and a proposal of `length` tokens after an anchor at `position`. Raises as `verify_step`.
    """
    proposer, trunk = drafter.proposer, drafter.trunk
    _check(trunk.cache, trunk.scratch_slot, num_requests, position, length + 1)
    _fill(trunk.cache, num_requests, position)
    _fill(proposer.head.cache, num_requests, position)
    spans = _newly_committed(num_requests, position)
    ids = [i % trunk.config.vocab_size for i in range(sum(span.count for span in spans))]
    with _unnoticed(proposer), _timed(trunk.device) as lap:
        _, taps = trunk.forward(Rows(spans, ids, trunk.device), proposer.head.config.tap_ids)
        if taps is None:
            raise ValueError("a head must have tap ids, got none")
        proposer.head.extend(spans, taps)
        proposer.propose(_asks(num_requests, length, position))
    return lap.ms


def colocated_step(proposer: Proposer, *, num_requests: int, length: int, position: int) -> float:
    """As `draft_step` for a draft beside its target, whose taps (here: noise) are read."""
    head = proposer.head
    num_slots = head.cache.keys[0].shape[0]
    _check(head.cache, num_slots, num_requests, position, length + 1)
    _fill(head.cache, num_requests, position)
    spans = _newly_committed(num_requests, position)
    width = len(head.config.tap_ids) * head.config.decoder.hidden_size
    # The embedding is the target's own or has its dtype, and so have the taps.
    dtype, device = head.embedding.dtype, head.device
    taps = torch.randn(sum(span.count for span in spans), width, dtype=dtype, device=device)
    with _unnoticed(proposer), _timed(device) as lap:
        head.extend(spans, taps)
        proposer.propose(_asks(num_requests, length, position))
    return lap.ms


def _check(cache: SlotCache, num_slots: int, num_requests: int, position: int, num_rows: int) -> None:
    if not 1 <= num_requests <= num_slots:
        raise ValueError(f"a rehearsal must be of 1 to {num_slots} requests, got {num_requests}")
    if not (position >= 1 and num_rows >= 1 and position + num_rows <= cache.capacity):
        raise ValueError(
            f"a rehearsal's rows must lie between position 1 and the capacity of {cache.capacity}, "
            f"got {num_rows} from {position} on"
        )


def _fill(cache: SlotCache, num_requests: int, position: int) -> None:
    """Something in every position before `position` of slots that were never used. On a host, pages that nobody wrote
    are all one page of zeros, which never leaves the processor's caches: reading them is faster than real ones.
    """
    if cache.keys[0].device.type != "cpu":
        return
    for slot in range(num_requests):
        if not cache.keys[0][slot, 0, position - 1].any():
            for tensor in (*cache.keys, *cache.values):
                tensor[slot, :, :position] = GARBAGE


def _newly_committed(num_requests: int, position: int) -> list[Span]:
    count = min(COMMITTED, position)
    return [Span(slot, position - count, count) for slot in range(num_requests)]


def _asks(num_requests: int, length: int, position: int) -> list[Ask]:
    return [Ask(slot, position, 0, length, GREEDY) for slot in range(num_requests)]


@contextmanager
def _unnoticed(proposer: Proposer) -> Iterator[None]:
    """Nothing is added to the proposer's laps, and no lack of confidence cuts a proposal short."""
    watch, least = proposer.watch, proposer.min_confidence
    proposer.watch, proposer.min_confidence = Stopwatch(), min(least, NO_DOUBT)
    try:
        yield
    finally:
        proposer.watch, proposer.min_confidence = watch, least
