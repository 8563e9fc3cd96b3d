"""A training run in a process of its own, to be killed in the middle: reference target, texts of its own, few steps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from twinspark.actors.checkpoint.opening import open_target
from twinspark.deploy.distill import trainer as training
from twinspark.deploy.distill.batch_net import BatchNet
from twinspark.deploy.distill.head_files import head_config_of
from twinspark.deploy.distill.settings import DistillSettings
from twinspark.deploy.distill.teacher import Teacher
from twinspark.deploy.distill.trainer import Data, Trainer
from twinspark.deploy.distill.turns import Turns
from twinspark.deploy.distill.writer import Writer

LENGTH = 64
MASK = 511
TURNS = Turns((7, 8), (), (), ())
SETTINGS: dict[str, Any] = {
    "taps": (-1, 0, 1),
    "layers": 1,
    "block_size": 4,
    "markov_rank": 16,
    "texts_per_step": 8,
    "anchors": 12,
    "learning_rate": 3e-3,
    "average": 0.9,
}


def reference_data(teacher: Teacher, num_texts: int = 248) -> Data:
    """What the reference target writes at temperatures 0 and 0.8; one of 31 held out."""
    writer = Writer(BatchNet(teacher.net.decoder), TURNS, num_texts=num_texts, length=LENGTH)
    prompts = [(i % 500, i * 7 % 500) for i in range(num_texts)]
    ids = writer.write(prompts, [0.0, 0.8] * (num_texts // 2), 1)
    numbers = torch.arange(num_texts)
    held_out = numbers % 31 == 0
    return Data(ids[~held_out], ids[held_out], numbers[held_out] % 2 == 0, TURNS)


def trainer_of(target: str, out: Path, **changes: Any) -> Trainer:
    settings = DistillSettings.model_validate(SETTINGS | changes)
    opened = open_target(target)
    teacher = Teacher(opened, precision="float32", length=LENGTH, device=torch.device("cpu"))
    config = head_config_of(settings, opened.config, MASK)
    return Trainer(teacher, config, settings, reference_data(teacher), None, out, {"corpus": "reference"})


if __name__ == "__main__":
    torch.set_num_threads(1)
    training.SAVE_EVERY_S = 0.0
    trainer = trainer_of(sys.argv[1], Path(sys.argv[2]), steps=int(sys.argv[3]), optimizer=sys.argv[4])

    def on_step(done: float) -> None:
        print(trainer.progress.step, flush=True)

    save_file(trainer.run(lambda row: None, on_step), Path(sys.argv[2]) / "end.safetensors")
