"""How often a draft token is kept, from both sides' logits at the same positions: possible, guaranteed, and measured.

Figures over rows of logits, filters off: knows temperature and shared noise; networks and sampling of texts are
`forced_text`'s. The guarantee is arXiv 2408.07978's: shared noise keeps a draft token with a chance of at least
(1 - TV) / (1 + TV), where 1 - TV is the most that any rule could keep.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twinspark.actors.sampling.draw import draw
from twinspark.actors.sampling.noise import Noise
from twinspark.actors.sampling.settings import Sampling


@dataclass(frozen=True)
class Forced:
    """Both sides' logits along one text, the draft's previous tokens being the text's own.

    `target_logits` [num_anchors + K - 1, V]: row i is for the token at `first_position + i`. `draft_logits`
    [num_anchors, K, draft V]: slot k (from 0) of anchor i is for the token at `first_position + i + k`. `token_ids` are
    the text's own at those positions. `target_ids` maps a reduced draft vocabulary to the target's (None: the same).
    """

    first_position: int
    token_ids: tuple[int, ...]
    target_logits: Tensor
    draft_logits: Tensor
    target_ids: Tensor | None = None

    @property
    def num_anchors(self) -> int:
        return self.draft_logits.shape[0]

    @property
    def num_slots(self) -> int:
        return self.draft_logits.shape[1]


@dataclass(frozen=True)
class Chances:
    """Chances that the draft token of a row is kept, float64 `[rows]` each.

    `shared_noise` is what a perfect noise gives. `greedy_draft` is for a draft that sends its likeliest token.
    """

    optimal: Tensor
    bound: Tensor
    shared_noise: Tensor
    greedy_draft: Tensor


@dataclass(frozen=True)
class Acceptance:
    """One draft slot over many positions.

    `measured` is the share of `num_draws` in which both sides drew the same token under noise independent of the text;
    `expected` is what perfect noise would give and `standard_error` what chance does to `measured` around it.
    `own_noise` is the share of positions in which the draft drew the text's token under the noise that made the text.
    """

    num_positions: int
    num_draws: int
    optimal: float
    measured: float
    expected: float
    standard_error: float
    own_noise: float
    greedy_draft: float
    bound: float

    @property
    def share_of_optimal(self) -> float:
        return self.measured / self.optimal


@dataclass
class Tally:
    """Sums over positions of one draft slot that become an Acceptance."""

    num_positions: int = 0
    num_draws: int = 0
    num_equal: int = 0
    num_own_equal: int = 0
    optimal: float = 0.0
    bound: float = 0.0
    expected: float = 0.0
    variance: float = 0.0
    greedy_draft: float = 0.0

    def add(self, rows: Chances, equal: Sequence[int], own_equal: int) -> None:
        """`equal[j]` of the rows drew the same token under the j-th noise, `own_equal` under the text's own."""
        num_rows = len(rows.optimal)
        self.num_positions += num_rows
        self.num_draws += num_rows * len(equal)
        self.num_equal += sum(equal)
        self.num_own_equal += own_equal
        self.optimal += float(rows.optimal.sum())
        self.bound += float(rows.bound.sum())
        self.expected += float(rows.shared_noise.sum())
        self.variance += len(equal) * float((rows.shared_noise * (1 - rows.shared_noise)).sum())
        self.greedy_draft += float(rows.greedy_draft.sum())

    def acceptance(self) -> Acceptance:
        """Raises ValueError if nothing was added."""
        if not self.num_draws:
            raise ValueError("acceptance needs at least one position and one noise, got none")
        return Acceptance(
            num_positions=self.num_positions,
            num_draws=self.num_draws,
            optimal=self.optimal / self.num_positions,
            measured=self.num_equal / self.num_draws,
            expected=self.expected / self.num_positions,
            standard_error=math.sqrt(max(0.0, self.variance)) / self.num_draws,
            own_noise=self.num_own_equal / self.num_positions,
            greedy_draft=self.greedy_draft / self.num_positions,
            bound=self.bound / self.num_positions,
        )


def tally_text(
    tallies: Sequence[Tally], forced: Forced, own: Sampling, seeds: Sequence[int], target_noise: Noise, noise: Noise
) -> None:
    """Add one text to `tallies`, one a slot. `own` made the text; `seeds` are of noise that had no part in it.

    `noise` is the draft's: keyed by target ids where its vocabulary is reduced.
    """
    settings = [own, *(Sampling(own.temperature_millionths, seed=seed) for seed in seeds)]
    positions = range(forced.first_position, forced.first_position + len(forced.target_logits))
    target_draws = [draw(forced.target_logits, [s] * len(positions), positions, target_noise) for s in settings]
    target_draws[0] = list(forced.token_ids)
    for k, tally in enumerate(tallies):
        rows = slice(k, k + forced.num_anchors)
        slot = forced.draft_logits[:, k].contiguous()
        equal = []
        for drawn, sampling in zip(target_draws, settings, strict=True):
            drafts = draw(slot, [sampling] * len(slot), positions[rows], noise)
            ids = drafts if forced.target_ids is None else forced.target_ids[drafts].tolist()
            equal.append(sum(a == b for a, b in zip(drawn[rows], ids, strict=True)))
        found = chances(forced.target_logits[rows], slot, own.temperature, forced.target_ids)
        tally.add(found, equal[1:], equal[0])


def chances(
    target_logits: Tensor, draft_logits: Tensor, temperature: float, target_ids: Tensor | None = None
) -> Chances:
    """From `target_logits` [rows, V] and `draft_logits` [rows, draft V]; `target_ids` as in Forced.

    Raises ValueError unless the temperature is above 0.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    target_probs = torch.softmax(target_logits.double() / temperature, dim=-1)
    draft_probs = torch.softmax(draft_logits.double() / temperature, dim=-1)
    if target_ids is not None:
        index = target_ids.to(draft_probs.device).expand_as(draft_probs)
        draft_probs = torch.zeros_like(target_probs).scatter_(1, index, draft_probs)
    optimal = torch.minimum(target_probs, draft_probs).sum(dim=-1)
    likeliest = draft_probs.argmax(dim=-1, keepdim=True)
    return Chances(
        optimal=optimal,
        bound=optimal / (2 - optimal),  # (1 - TV) / (1 + TV)
        shared_noise=_chance_of_equal_draws(target_probs, draft_probs),
        greedy_draft=target_probs.gather(1, likeliest)[:, 0],
    )


def _chance_of_equal_draws(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """Both sides draw token i with chance 1 / sum_j max(target_j / target_i, draft_j / draft_i), exactly.

    For a draw is the token of the least E_j / prob_j with E_j exponential, so both are i where every other E_j exceeds
    E_i times that maximum. In rising order of draft / target it is the target's ratio up to i, and the draft's after.
    """
    order = (draft_probs / target_probs).nan_to_num(nan=1.0, posinf=math.inf).argsort(dim=-1)
    target, draft = target_probs.gather(1, order), draft_probs.gather(1, order)
    up_to = target.cumsum(dim=-1)
    after = draft.flip(-1).cumsum(dim=-1).flip(-1) - draft
    # Numerator and denominator times both probabilities: a token that a side never draws then adds 0.
    terms = target * draft / (up_to * draft + after * target)
    return terms.nan_to_num(nan=0.0).sum(dim=-1)
