"""The pairs of shared/golden as our own networks: a target, a head, and the reference vectors beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from twinspark.actors.checkpoint.opening import open_head, open_target, target_ids_of_draft
from twinspark.actors.nets.decoder import Decoder
from twinspark.actors.nets.head import Head, HeadPrecision
from twinspark.actors.nets.rows import Rows, Span

CPU = torch.device("cpu")
CONTEXT, SLOTS = 256, 2
ATOL = 1e-4  # golden/README.md, Tolerances
DEEPSPEC = [f"deepspec/{v}" for v in ("vanilla", "gated", "rnn", "nomarkov", "shallow_b4")]
SPECULATORS = [
    f"speculators/{v}" for v in ("reduced_vocab_anchor", "full_vocab_dflash", "gated_anchor", "sliding_causal")
]


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a.float().cpu(), b.float().cpu().view_as(a), atol=ATOL, rtol=0)


@dataclass(frozen=True)
class GoldenPair:
    """`vectors` is golden.safetensors, `told` golden.json; `target_ids` as the proposer takes it."""

    target: Decoder
    head: Head
    target_ids: Tensor | None
    vectors: dict[str, Tensor]
    told: dict[str, Any]

    def prompts(self) -> list[str]:
        return sorted({key.split(".")[0] for key in self.vectors if key.startswith("p")})

    def ids(self, prompt: str) -> list[int]:
        ids: list[int] = self.vectors[f"{prompt}.prompt_ids"][0].tolist()
        return ids

    def run(self, slot: int, start: int, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Hidden states and taps of `ids` at `start`."""
        rows = Rows([Span(slot, start, len(ids))], ids, self.target.device)
        hidden, taps = self.target.forward(rows, self.head.config.tap_ids)
        assert taps is not None
        return hidden, taps

    def prefill(self, slot: int, prompt: str) -> tuple[int, int, int]:
        """The prompt into the slot's caches, of target and head: (slot, position, id) of the anchor."""
        ids = self.ids(prompt)
        _, taps = self.run(slot, 0, ids)
        self.head.extend([Span(slot, 0, len(ids))], taps)
        return slot, len(ids), int(self.vectors[f"{prompt}.anchor_id"])


def golden_pair(shared: Path, variant: str, device: torch.device = CPU) -> GoldenPair:
    folder = shared / "golden" / variant
    head = open_head(str(folder / "draft"))
    target = open_target(str(shared / "golden/deepspec/targets/untied"))
    names = head.tensors.infos()

    def own_or_target(name: str, theirs: str) -> Tensor:
        return head.tensors.load(name) if name in names else target.tensors.load(theirs)

    network = Decoder(
        target.config, target.tensors.load, precision="float32", num_slots=SLOTS, context=CONTEXT, device=device
    )
    net = Head(
        head.config,
        head.tensors.load,
        embedding=own_or_target("embed_tokens.weight", "model.embed_tokens.weight").to(device),
        lm_head=own_or_target("lm_head.weight", "lm_head.weight"),
        precision=HeadPrecision.uniform("float32"),
        num_slots=SLOTS,
        context=CONTEXT,
        device=device,
    )
    told = json.loads((folder / "golden.json").read_text())
    return GoldenPair(network, net, target_ids_of_draft(head), load_file(folder / "golden.safetensors"), told)


def golden_trunk(shared: Path, num_layers: int) -> Decoder:
    """Only the layers that recompute the taps, as a draft actor has them."""
    target = open_target(str(shared / "golden/deepspec/targets/untied"))
    return Decoder(
        target.config,
        target.tensors.load,
        num_layers=num_layers,
        head=False,
        precision="float32",
        num_slots=SLOTS,
        context=CONTEXT,
        device=CPU,
    )
