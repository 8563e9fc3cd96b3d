"""The Markov head: a rank-r bias on a slot's base logits, from the previous token. Kinds: vanilla, gated, rnn.

Conventions are DeepSpec's (golden/README.md): the rnn state starts at zero in every block and the bias uses the state
from before the step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from twinspark.actors.nets.linear import DTYPES, Precision, make_linear

Load = Callable[[str], Tensor]


class Markov:
    """`step(prev, hidden, state)` gives the bias `[n, draft_vocab]` and the next state."""

    def __init__(self, kind: str, rank: int, load: Load, *, precision: Precision, device: torch.device) -> None:
        self.kind, self.rank = kind, rank
        dtype = DTYPES["float32" if precision == "int8" else precision]
        self.w1 = load("markov_head.markov_w1.weight").to(device=device, dtype=dtype)
        self.w2 = make_linear(load("markov_head.markov_w2.weight"), None, precision=precision, device=device)
        name = {"gated": "gate_proj", "rnn": "joint_proj"}.get(kind)
        if name is not None:
            weight, bias = load(f"markov_head.{name}.weight"), load(f"markov_head.{name}.bias")
            inner: Precision = "float32" if precision == "int8" else precision
            self.inner = make_linear(weight, bias, precision=inner, device=device)

    def start(self, num_requests: int) -> Tensor:
        """The state before slot 0, `[num_requests, rank]` zeros."""
        return torch.zeros(num_requests, self.rank, dtype=self.w1.dtype, device=self.w1.device)

    def rows(self, prev: Tensor) -> Tensor:
        """`w1[prev]`, `[n, rank]`: what the confidence head also sees."""
        return functional.embedding(prev, self.w1)

    def step(self, prev: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """`prev` int64 `[n]`, `hidden` `[n, hidden]`, `state` `[n, rank]`."""
        row = self.rows(prev)
        if self.kind == "gated":
            gate = torch.sigmoid(self.inner(torch.cat((hidden.to(row.dtype), row), dim=-1)))
            return self.w2(row * gate), state
        if self.kind == "rnn":
            joint = self.inner(torch.cat((state, row, hidden.to(row.dtype)), dim=-1))
            gate, candidate, out = joint.chunk(3, dim=-1)
            gate = torch.sigmoid(gate)
            return self.w2(torch.tanh(out)), gate * state + (1 - gate) * torch.tanh(candidate)
        return self.w2(row), state
