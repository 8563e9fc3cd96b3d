"""The target writes conversations, many at once, each from its own beginning on: both sides' turns are its own words.

Every text has the same length and all stand at the same position, so a step is the same work each time: on a GPU it is
a CUDA graph for each reach of the cache. What a template puts between turns is forced, token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from twinspark.deploy.distill.batch_net import BatchCache, BatchNet
from twinspark.deploy.distill.turns import Turns

USER_TEMPERATURE = 0.9
REACH = 128  # positions by which the part of the cache grows that a step looks at
USER, ANSWER = 0, 1


class Writer:
    """Writes `num_texts` texts of `length` ids at a time."""

    def __init__(self, net: BatchNet, turns: Turns, *, num_texts: int, length: int) -> None:
        self.net, self.turns = net, turns
        self.num_texts, self.length = num_texts, length
        device = net.device
        forced = (turns.after_user, turns.after_answer)
        longest = max(1, *map(len, forced))
        self._forced = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in forced], device=device)
        self._num_forced = torch.tensor([len(ids) for ids in forced], device=device)
        self._ends = torch.tensor(turns.end_ids, device=device)
        self._cache: BatchCache = net.cache(num_texts, length)
        self._ids = torch.zeros(num_texts, length, dtype=torch.int64, device=device)
        self._given = torch.zeros(num_texts, dtype=torch.int64, device=device)
        self._temperature = torch.zeros(num_texts, device=device)
        self._role = torch.zeros(num_texts, dtype=torch.int64, device=device)
        self._at = torch.zeros(num_texts, dtype=torch.int64, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._steps: dict[int, Callable[[], None]] = {}

    def write(self, prompts: Sequence[Sequence[int]], temperatures: Sequence[float], seed: int) -> Tensor:
        """int32 `[num_texts, length]` on the host. A text opens with its prompt (up to an answer's first token), or
        with the template alone where that is empty; `temperatures` are the answers'. Equal arguments give equal texts.
        """
        rows = [list(prompt) or list(self.turns.opening) for prompt in prompts]
        if len(rows) != self.num_texts or len(temperatures) != self.num_texts or max(map(len, rows)) >= self.length:
            raise ValueError(f"there must be {self.num_texts} prompts shorter than {self.length} ids")
        device = self.net.device
        torch.manual_seed(seed)
        self._ids.copy_(torch.tensor([row + [0] * (self.length - len(row)) for row in rows]))
        self._given.copy_(torch.tensor([len(row) for row in rows]))
        self._temperature.copy_(torch.tensor(list(temperatures)))
        self._role.copy_(torch.tensor([ANSWER if prompt else USER for prompt in prompts]))
        self._at.fill_(-1)
        self._position.zero_()
        for position in range(self.length - 1):
            reach = min(self.length, (position // REACH + 1) * REACH)
            if reach not in self._steps:
                self._steps[reach] = self._captured(reach) if device.type == "cuda" else partial(self._step, reach)
            self._steps[reach]()
        return self._ids.to("cpu", torch.int32)

    @torch.no_grad()
    def _step(self, reach: int) -> None:
        """Write position + 1 of every text."""
        ids = self._ids.gather(1, self._position.expand(self.num_texts, 1))[:, 0]
        logits = self.net.step(ids, self._position, self._cache, reach)
        temperature = torch.where(self._role == USER, USER_TEMPERATURE, self._temperature)
        gumbel = torch.empty_like(logits).exponential_().log_().neg_()
        drawn = gumbel.mul_(temperature[:, None]).add_(logits).argmax(dim=-1)
        forcing = self._at >= 0
        token = torch.where(forcing, self._forced[self._role, self._at.clamp(min=0)], drawn)
        self._position += 1
        given = self._given > self._position
        here = self._ids.gather(1, self._position.expand(self.num_texts, 1))[:, 0]
        token = torch.where(given, here, token)
        self._ids.index_copy_(1, self._position, token[:, None])
        # Who speaks next: a turn's end starts what is forced, and behind that it is the other's turn.
        ended = ~given & ~forcing & torch.isin(drawn, self._ends)
        at = torch.where(ended, 0, torch.where(forcing & ~given, self._at + 1, self._at))
        turned = (at >= self._num_forced[self._role]) & ~given & (at >= 0)
        self._role.copy_(torch.where(turned, 1 - self._role, self._role))
        self._at.copy_(torch.where(turned, -1, at))

    def _captured(self, reach: int) -> Callable[[], None]:
        """The step as a CUDA graph. Warming up and capturing leave the texts as they were."""
        state = (self._ids, self._role, self._at, self._position)
        kept = [tensor.clone() for tensor in state]
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._step(reach)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step(reach)
        for tensor, before in zip(state, kept, strict=True):
            tensor.copy_(before)
        return graph.replay
