"""A head along held-out texts: whether each slot's draft would have been kept, greedy and sampled, and what it told.

Teacher-forced: the previous tokens are the text's. So greedy figures are of blocks that the target itself would have
written greedily: there the text is what would have been verified.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from twinspark.actors.sampling.noise import Noise, signed, stream_key
from twinspark.deploy.distill.anchors import block_places, tokens_at
from twinspark.deploy.distill.calibration import Floats
from twinspark.deploy.distill.head_net import HeadNet
from twinspark.deploy.distill.teacher import Teacher

TEXTS_AT_ONCE = 4
ROWS_AT_ONCE = 256
NOISE_SEED = 12345


@dataclass(frozen=True)
class Judged:
    """`told` are confidence logits, `kept` whether the draft of a slot was; `[blocks, slots]` each."""

    told: Floats
    kept: Floats

    @property
    def survived(self) -> Floats:
        """Whether the whole prefix was kept."""
        return np.cumprod(self.kept, axis=1, dtype=np.float64)

    @property
    def conditional(self) -> list[float]:
        """Chance by slot that a draft is kept, given that those before it were; as far as any were."""
        survived = self.survived.sum(axis=0)
        reached = np.concatenate(([len(self.kept)], survived[:-1]))
        return [float(s / r) for s, r in zip(survived, reached, strict=True) if r > 0]

    @property
    def acceptance_length(self) -> float:
        """Tokens a verify commits, bonus included, at the whole block."""
        return float(1 + self.survived.sum(axis=1).mean())


@dataclass(frozen=True)
class Blocks:
    """All blocks, text after text: confidence logits, whether a slot's draft was kept `greedy` or `sampled`, each
    [blocks, slots]; `written` [blocks] where the text is what the target says greedily.
    """

    told: Floats
    greedy: Floats
    sampled: Floats
    written: npt.NDArray[np.bool_]


def rounds_of(kept: Floats) -> npt.NDArray[np.int64]:
    """Of `kept` [texts, anchors, slots], the anchors being consecutive, the numbers (text after text) of the blocks
    that decoding would have verified: behind a block comes the one after all it committed. Easy stretches of a text
    are few rounds; a mean over rounds is lower than one over places.
    """
    accepted = np.cumprod(kept, axis=2).sum(axis=2).astype(int)
    found = []
    for text, steps in enumerate(accepted):
        at = 0
        while at < len(steps):
            found.append(text * len(steps) + at)
            at += 1 + steps[at]
    return np.array(found, dtype=np.int64)


@torch.no_grad()
def judge(net: HeadNet, teacher: Teacher, ids: Tensor, anchors: Tensor, target_ids: Tensor | None) -> Blocks:
    """Greedy and at temperature 1 with shared noise. `ids` [texts, positions], `anchors` [texts, anchors]."""
    noise = Noise(teacher.config.vocab_size, teacher.device)
    told: list[Tensor] = []
    greedy: list[Tensor] = []
    right: list[Tensor] = []
    sampled: list[Tensor] = []
    for part, places in zip(torch.split(ids, TEXTS_AT_ONCE), torch.split(anchors, TEXTS_AT_ONCE), strict=True):
        part = part.to(teacher.device, torch.int64)
        places = places.to(teacher.device)
        size = net.config.block_size
        taps, target = teacher.along(part, net.config.tap_ids, places, size)
        made = net(part, taps, places)
        labels = tokens_at(part, block_places(places, size) + 1).flatten(0, 1)
        draft = made.logits.float().flatten(0, 1)
        target = target.flatten(0, 1)
        shape = (len(draft), size)
        rows = [
            _rows(a, b, noise, target_ids, first=i * ROWS_AT_ONCE)
            for i, (a, b) in enumerate(_parts(draft.flatten(0, 1), target.flatten(0, 1)))
        ]
        firm, drafted, equal = (torch.cat(column).view(shape) for column in zip(*rows, strict=True))
        right.append((firm == labels).all(dim=1))
        greedy.append(drafted == firm)
        sampled.append(equal)
        told.append(torch.zeros(shape) if made.confidence is None else made.confidence.float().view(shape))
    return Blocks(
        told=_array(torch.cat(told)),
        greedy=_array(torch.cat(greedy)),
        sampled=_array(torch.cat(sampled)),
        written=torch.cat(right).cpu().numpy(),
    )


def _parts(draft: Tensor, target: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(torch.split(draft, ROWS_AT_ONCE), torch.split(target, ROWS_AT_ONCE), strict=True))


def _rows(
    draft: Tensor, target: Tensor, noise: Noise, target_ids: Tensor | None, *, first: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Of each row: the target's likeliest id, the draft's (as target ids), and whether both drew the same."""
    keys = [signed(stream_key(NOISE_SEED, position)) for position in range(first, first + len(draft))]
    gumbel = noise.gumbel_rows(torch.tensor(keys, dtype=torch.int64, device=target.device))

    def as_target(index: Tensor) -> Tensor:
        return index if target_ids is None else target_ids[index]

    own = gumbel if target_ids is None else gumbel[:, target_ids]
    likeliest, drafted = target.argmax(dim=-1), as_target(draft.argmax(dim=-1))
    return likeliest, drafted, (target + gumbel).argmax(dim=-1) == as_target((draft + own).argmax(dim=-1))


def _array(values: Tensor) -> Floats:
    found: Floats = values.double().cpu().numpy()
    return found
