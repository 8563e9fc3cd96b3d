"""The training loop: texts and anchors of a step follow from seed and step number alone, so a run that goes on from a
saved state is the run that was never stopped.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from twinspark.actors.checkpoint.configs import HeadConfig
from twinspark.deploy.distill.anchors import block_places, random_anchors, tokens_at
from twinspark.deploy.distill.head_net import Blocks, HeadNet
from twinspark.deploy.distill.losses import Weights, losses
from twinspark.deploy.distill.settings import DistillSettings
from twinspark.deploy.distill.states import load_state, save_state
from twinspark.deploy.distill.teacher import Teacher, draft_lm_head
from twinspark.deploy.distill.turns import Turns

WARM_UP = 0.02  # of the budget, up to the peak learning rate
LEAST_RATE = 0.02  # of the peak, at the end
GRADIENT_NORM = 1.0
SAVE_EVERY_S = 60.0
LOOKS = 40  # in a run
HELD_OUT_TEXTS = 64  # looked at while training
OnLook = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Data:
    """int32 `[texts, positions]`, to train on and held out; bool [held-out texts] which of those answer greedily. What
    is learnt is the answers between `turns`.
    """

    train: Tensor
    held_out: Tensor
    held_out_is_greedy: Tensor
    turns: Turns


class Trainer:
    """One head in the making, in `folder`, where its state is kept. `about` is what else the result depends on."""

    def __init__(
        self,
        teacher: Teacher,
        config: HeadConfig,
        settings: DistillSettings,
        data: Data,
        target_ids: Tensor | None,
        folder: Path,
        about: dict[str, Any],
    ) -> None:
        self.teacher, self.config, self.settings, self.data = teacher, config, settings, data
        length = data.train.shape[1]
        if length <= config.block_size + 1:
            raise ValueError(f"texts must be longer than a block of {config.block_size} and its anchor, got {length}")
        if len(data.train) < settings.texts_per_step:
            raise ValueError(f"a step of {settings.texts_per_step} texts needs as many, got {len(data.train)}")
        self.target_ids = None if target_ids is None else target_ids.to(teacher.device)
        self.net = HeadNet(
            config,
            embedding=teacher.embedding,
            lm_head=draft_lm_head(teacher, target_ids),
            length=length,
            seed=settings.seed,
        ).to(teacher.device)
        self.optimizers = _optimizers(self.net, settings)
        self.average = (
            {name: value.detach().clone() for name, value in self.net.named_parameters()} if settings.average else {}
        )
        self.weights = Weights()
        # Compiled, what it does to logits element by element is a few passes over them instead of a dozen.
        self._learned = torch.compile(losses, dynamic=False) if teacher.device.type == "cuda" else losses
        self.folder = folder
        self.about: dict[str, Any] = json.loads(json.dumps(about | settings.model_dump()))  # as it is read again
        self.progress = load_state(folder, self.about, self.net, self.optimizers, self.average)

    @property
    def done(self) -> float:
        """Share of the budget that is used."""
        settings, progress = self.settings, self.progress
        return progress.step / settings.steps if settings.steps else min(1.0, progress.seconds / settings.seconds)

    def run(self, on_look: OnLook, on_step: Callable[[float], None] = lambda done: None) -> dict[str, Tensor]:
        """Train to the end of the budget; the weights to keep, by their names in a checkpoint. Raises OSError where the
        state cannot be saved.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        saved_s = began_s = time.monotonic()
        before_s = self.progress.seconds
        next_look = len(self.progress.history) / LOOKS
        while True:
            history = self.progress.history
            if self.done >= next_look and (not history or history[-1]["step"] < self.progress.step):
                on_look(self._look())
                next_look = len(self.progress.history) / LOOKS
            if self.done >= 1:
                break
            self._step()
            self.progress.step += 1
            self.progress.seconds = before_s + time.monotonic() - began_s
            on_step(self.done)
            if time.monotonic() - saved_s > SAVE_EVERY_S:
                self.save()
                saved_s = time.monotonic()
        self.save()
        return self.average or {name: value.detach().clone() for name, value in self.net.named_parameters()}

    def save(self) -> None:
        save_state(self.folder, self.about, self.progress, self.net, self.optimizers, self.average)

    def _step(self) -> None:
        settings, step = self.settings, self.progress.step
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * self._rate()
        ids = self.data.train[self._order(step)].to(self.teacher.device, torch.int64)
        anchors = self._anchors(ids, step)
        self.net.zero_grad(set_to_none=True)
        at_once = settings.texts_at_once or len(ids)
        for part, places in zip(torch.split(ids, at_once), torch.split(anchors, at_once), strict=True):
            total = self._learned(*self._blocks(part, places)).total
            (total * (len(part) / len(ids))).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), GRADIENT_NORM)
        for optimizer in self.optimizers:
            optimizer.step()
        if self.average:
            with torch.no_grad():
                for name, value in self.net.named_parameters():
                    self.average[name].lerp_(value, 1 - min(settings.average, (1 + step) / (10 + step)))

    def _blocks(self, ids: Tensor, anchors: Tensor) -> tuple[Blocks, Tensor, Tensor, Tensor | None, Weights]:
        """Drafts of these blocks and all else that `losses` wants."""
        config = self.config
        taps, target_logits = self.teacher.along(ids, config.tap_ids, anchors, config.block_size)
        labels = tokens_at(ids, block_places(anchors, config.block_size) + 1)
        with self._autocast():
            blocks = self.net(ids, taps, anchors)
        return blocks, labels, target_logits, self.target_ids, self.weights

    def _look(self) -> dict[str, Any]:
        """The next row of the history: loss and chance by slot, on held-out texts."""
        ids = self.data.held_out[:HELD_OUT_TEXTS].to(self.teacher.device, torch.int64)
        anchors = self._anchors(ids, -1)
        totals: list[Tensor] = []
        kept: list[Tensor] = []
        with torch.no_grad():
            for part, places in zip(torch.split(ids, 8), torch.split(anchors, 8), strict=True):
                found = losses(*self._blocks(part, places))
                totals.append(found.total * len(part))
                kept.append(found.kept * len(part))
        row = {
            "step": self.progress.step,
            "seconds": round(self.progress.seconds, 1),
            "loss": float(torch.stack(totals).sum()) / len(ids),
            "kept": [round(value, 4) for value in (torch.stack(kept).sum(dim=0) / len(ids)).tolist()],
        }
        self.progress.history.append(row)
        return row

    def _rate(self) -> float:
        if self.done < WARM_UP:
            return (self.done + 1e-3) / (WARM_UP + 1e-3)
        return LEAST_RATE + (1 - LEAST_RATE) * 0.5 * (1 + math.cos(math.pi * (self.done - WARM_UP) / (1 - WARM_UP)))

    def _order(self, step: int) -> Tensor:
        """Which texts a step is made of: every text once, then every text again in another order."""
        size, num_texts = self.settings.texts_per_step, len(self.data.train)
        steps = num_texts // size
        order = torch.randperm(num_texts, generator=self._random(step // steps, 1))
        return order[step % steps * size :][:size]

    def _anchors(self, ids: Tensor, step: int) -> Tensor:
        wanted, random = self.data.turns.answers(ids), self._random(step, 2)
        return random_anchors(wanted, self.settings.anchors, self.config.block_size, random).to(ids.device)

    def _random(self, number: int, purpose: int) -> torch.Generator:
        return torch.Generator().manual_seed((self.settings.seed * 3 + purpose) * 2**32 + number + 1)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.teacher.device.type == "cuda":
            return torch.autocast("cuda", dtype=torch.bfloat16)
        return nullcontext()


def _optimizers(net: HeadNet, settings: DistillSettings) -> list[torch.optim.Optimizer]:
    """AdamW for everything, or Muon for what turns a hidden state into another and AdamW for the rest."""
    by_muon: list[torch.nn.Parameter] = []
    decayed: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for name, parameter in net.named_parameters():
        if settings.optimizer == "muon" and parameter.ndim == 2 and name.startswith(("fc.", "layers.")):
            by_muon.append(parameter)
        else:
            (decayed if parameter.ndim > 1 else others).append(parameter)
    found: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(
            [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=settings.learning_rate,
            betas=(0.9, 0.95),
        )
    ]
    if by_muon:
        muon = torch.optim.Muon(
            by_muon,
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            adjust_lr_fn="match_rms_adamw",  # one learning rate suits both
        )
        found.append(muon)
    return found
