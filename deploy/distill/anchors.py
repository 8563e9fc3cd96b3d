"""Where blocks begin in texts, and the tokens of the text that belong to them."""

from __future__ import annotations

import torch
from torch import Tensor


def random_anchors(wanted: Tensor, count: int, block_size: int, random: torch.Generator) -> Tensor:
    """Distinct anchors `[texts, anchors]`, ascending, on the host: at most `count` in a text, each with a block of the
    text behind it; those whose next token is `wanted` (bool [texts, positions]) as long as there are any.
    """
    places = wanted.shape[1] - block_size - 1
    ranks = torch.rand(len(wanted), places, generator=random) + wanted[:, 2 : places + 2].cpu()
    return (ranks.topk(min(count, places), dim=1).indices + 1).sort(dim=1).values


def first_run(wanted: Tensor, count: int, block_size: int) -> tuple[Tensor, Tensor]:
    """Which texts have their first wanted stretch (bool [texts, positions]) long enough for `count` consecutive anchors
    from its first token on, each with a block of the stretch behind it; and those anchors, `[such texts, count]`.
    """
    needed = count + block_size
    windows = wanted.unfold(1, min(needed, wanted.shape[1]), 1).all(dim=-1)
    begins = wanted.int().argmax(dim=1)
    fits = wanted.any(dim=1) & (begins + needed <= wanted.shape[1])
    texts = torch.nonzero(fits & windows.gather(1, begins.clamp(max=windows.shape[1] - 1)[:, None])[:, 0])[:, 0]
    return texts, begins[texts, None] + torch.arange(count, device=wanted.device)


def block_places(anchors: Tensor, block_size: int) -> Tensor:
    """Positions `[texts, anchors, block]` of every block's rows, the anchor's own first."""
    return anchors[:, :, None] + torch.arange(block_size, device=anchors.device)


def tokens_at(ids: Tensor, places: Tensor) -> Tensor:
    """The ids at `places` [texts, ...] of `ids` [texts, positions], in the shape of `places`."""
    return ids.gather(1, places.flatten(1)).view(places.shape)
