"""The frames, one table each: every field by name, with its range and what it means.

A frame is written as one msgpack array: its kind, then its fields in the table's order. Nothing is checked when a frame
is made; the codec checks it when it is encoded or decoded.
"""

from __future__ import annotations

from dataclasses import dataclass

from twinspark.actors.sampling.settings import MAX_SEED, MAX_TEMPERATURE, MAX_TOP_K, MILLION, Sampling
from twinspark.actors.wire.faults import FAULTS, SESSION_FAULTS
from twinspark.actors.wire.schema import Ids, Int, Layout, Many

WIRE_VERSION = 1
MAX_EPOCH = 2**31 - 1
MAX_SESSION = 2**31 - 1
MAX_ROUND = 2**63 - 1
MAX_POSITION = 2**31 - 1
MAX_MICROSECONDS = 2**31 - 1
MAX_VOCAB_SIZE = 2**31 - 1
MAX_BLOCK = 64
MAX_IDS_PER_FRAME = 65536
MAX_ENTRIES = 1024
MAX_STEP_ROWS = 65536
MAX_STEP_COSTS = 64
NONCE_HALF_BITS = 64


@dataclass(frozen=True)
class Hello:
    """Target to draft, first on a link: who calls, and with which one-time nonce."""

    version: int
    nonce_high: int
    nonce_low: int
    epoch: int
    vocab_size: int


@dataclass(frozen=True)
class Welcome:
    """Draft to target: the link is open. `block` is the largest number of draft tokens in a proposal."""

    version: int
    epoch: int
    block: int
    vocab_size: int


@dataclass(frozen=True)
class Open:
    """Target to draft: a session begins. A prompt longer than `ids` may be goes on in Round entries."""

    epoch: int
    session: int
    temperature_millionths: int
    top_k: int
    top_p_millionths: int
    min_p_millionths: int
    seed: int
    context: int
    ids: tuple[int, ...]

    @classmethod
    def of(cls, *, epoch: int, session: int, sampling: Sampling, context: int, ids: tuple[int, ...]) -> Open:
        """An Open that carries `sampling`."""
        return cls(
            epoch=epoch,
            session=session,
            temperature_millionths=sampling.temperature_millionths,
            top_k=sampling.top_k,
            top_p_millionths=sampling.top_p_millionths,
            min_p_millionths=sampling.min_p_millionths,
            seed=sampling.seed,
            context=context,
            ids=ids,
        )

    @property
    def sampling(self) -> Sampling:
        """The settings it carries."""
        return Sampling(
            temperature_millionths=self.temperature_millionths,
            top_k=self.top_k,
            top_p_millionths=self.top_p_millionths,
            min_p_millionths=self.min_p_millionths,
            seed=self.seed,
        )


@dataclass(frozen=True)
class Close:
    """Target to draft: a session ends."""

    epoch: int
    session: int


@dataclass(frozen=True)
class RoundEntry:
    """One session's part in a round: `ids` were committed after the `start` ids the draft already has."""

    session: int
    start: int
    cap: int
    ids: tuple[int, ...]


@dataclass(frozen=True)
class StepCost:
    """A target step of `rows` rows takes this long, as measured."""

    rows: int
    step_us: int


@dataclass(frozen=True)
class Round:
    """Target to draft: what was committed, and a request for proposals.

    `other_rows` and `step_costs` are what the draft's scheduler cannot see for itself: rows of the coming target step
    that belong to nobody in `entries`, and the target's step times. Empty means unknown, or as told before.
    """

    epoch: int
    round: int
    entries: tuple[RoundEntry, ...]
    other_rows: int = 0
    step_costs: tuple[StepCost, ...] = ()


@dataclass(frozen=True)
class ProposalEntry:
    """Draft tokens for one session; how many is the draft's decision."""

    session: int
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Proposal:
    """Draft to target: the answer to the Round of the same number."""

    epoch: int
    round: int
    draft_us: int
    catching_up: int
    entries: tuple[ProposalEntry, ...]


@dataclass(frozen=True)
class Refused:
    """Draft to target: a frame was refused. `fault` is an index into FAULTS.

    `round` is the refused Round's number, else the last one seen (0 before the first). `session` means something only
    where `concerns_session` holds, and is 0 otherwise.
    """

    epoch: int
    round: int
    session: int
    fault: int

    @property
    def name(self) -> str:
        return FAULTS[self.fault]

    @property
    def concerns_session(self) -> bool:
        return self.name in SESSION_FAULTS


Frame = Hello | Welcome | Open | Close | Round | Proposal | Refused
FROM_TARGET = (Hello, Open, Close, Round)
FROM_DRAFT = (Welcome, Proposal, Refused)

_VERSION = Int("version", 1, 2**16 - 1, "version of this protocol")
_EPOCH = Int("epoch", 0, MAX_EPOCH, "incarnation of the pair")
_ROUND = Int("round", 0, MAX_ROUND, "round number")
_SESSION = Int("session", 0, MAX_SESSION, "session number")
_VOCAB_SIZE = Int("vocab_size", 1, MAX_VOCAB_SIZE, "tokens in the target's vocabulary")
_NONCE_HALF = 2**NONCE_HALF_BITS - 1

KIND = Int("kind", 1, 7, "which frame this is")

LAYOUTS: dict[int, Layout] = {
    1: Layout(
        Hello,
        (
            _VERSION,
            Int("nonce_high", 0, _NONCE_HALF, "upper half of the one-time nonce"),
            Int("nonce_low", 0, _NONCE_HALF, "lower half of the one-time nonce"),
            _EPOCH,
            _VOCAB_SIZE,
        ),
    ),
    2: Layout(Welcome, (_VERSION, _EPOCH, Int("block", 1, MAX_BLOCK, "most draft tokens in a proposal"), _VOCAB_SIZE)),
    3: Layout(
        Open,
        (
            _EPOCH,
            _SESSION,
            Int("temperature_millionths", 0, int(MAX_TEMPERATURE) * MILLION, "temperature"),
            Int("top_k", 0, MAX_TOP_K, "tokens kept by top-k, 0 for all"),
            Int("top_p_millionths", 1, MILLION, "probability kept by top-p"),
            Int("min_p_millionths", 0, MILLION, "least share of the top probability"),
            Int("seed", 0, MAX_SEED, "seed of the shared noise"),
            Int("context", 1, MAX_POSITION, "most positions the session may reach"),
            Ids("ids", MAX_IDS_PER_FRAME, "first part of the prompt"),
        ),
    ),
    4: Layout(Close, (_EPOCH, _SESSION)),
    5: Layout(
        Round,
        (
            _EPOCH,
            _ROUND,
            Many(
                "entries",
                Layout(
                    RoundEntry,
                    (
                        _SESSION,
                        Int("start", 0, MAX_POSITION, "how many ids were sent before"),
                        Int("cap", 0, MAX_BLOCK, "most draft tokens wanted"),
                        Ids("ids", MAX_IDS_PER_FRAME, "newly committed ids"),
                    ),
                ),
                MAX_ENTRIES,
                "session",
                "sessions in this round",
            ),
            Int("other_rows", 0, MAX_STEP_ROWS, "rows of the target's step that belong to no entry"),
            Many(
                "step_costs",
                Layout(
                    StepCost,
                    (
                        Int("rows", 1, MAX_STEP_ROWS, "rows of a target step"),
                        Int("step_us", 0, MAX_MICROSECONDS, "microseconds such a step takes"),
                    ),
                ),
                MAX_STEP_COSTS,
                "rows",
                "measured step times",
            ),
        ),
    ),
    6: Layout(
        Proposal,
        (
            _EPOCH,
            _ROUND,
            Int("draft_us", 0, MAX_MICROSECONDS, "microseconds the draft computed"),
            Int("catching_up", 0, MAX_ENTRIES, "sessions still being caught up"),
            Many(
                "entries",
                Layout(ProposalEntry, (_SESSION, Ids("ids", MAX_BLOCK, "draft tokens"))),
                MAX_ENTRIES,
                "session",
                "sessions answered",
            ),
        ),
    ),
    7: Layout(Refused, (_EPOCH, _ROUND, _SESSION, Int("fault", 0, len(FAULTS) - 1, "index of the fault's name"))),
}

KIND_OF: dict[type[object], int] = {layout.record: kind for kind, layout in LAYOUTS.items()}
