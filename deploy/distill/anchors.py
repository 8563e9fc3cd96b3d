"""Where blocks begin in texts, and the tokens of the text that belong to them."""

from __future__ import annotations

import torch
from torch import Tensor


def random_anchors(ids: Tensor, count: int, block_size: int, random: torch.Generator) -> Tensor:
    """Distinct anchors `[texts, anchors]` for `ids` [texts, positions], ascending, on the host: at most `count` in a
    text, each with a block of the text behind it.
    """
    places = ids.shape[1] - block_size - 1
    ranks = torch.rand(len(ids), places, generator=random)
    return (ranks.topk(min(count, places), dim=1).indices + 1).sort(dim=1).values


def block_places(anchors: Tensor, block_size: int) -> Tensor:
    """Positions `[texts, anchors, block]` of every block's rows, the anchor's own first."""
    return anchors[:, :, None] + torch.arange(block_size, device=anchors.device)


def tokens_at(ids: Tensor, places: Tensor) -> Tensor:
    """The ids at `places` [texts, ...] of `ids` [texts, positions], in the shape of `places`."""
    return ids.gather(1, places.flatten(1)).view(places.shape)
