"""`twinspark distill`: text, training, calibration and the head's files, each going on where it was stopped."""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from twinspark.actors.checkpoint.identity import checkpoint_identity
from twinspark.actors.checkpoint.opening import open_target
from twinspark.actors.checkpoint.source import TargetCheckpoint
from twinspark.actors.nets.linear import DTYPES, Precision
from twinspark.deploy.devices import device_of
from twinspark.deploy.distill.batch_net import BatchNet
from twinspark.deploy.distill.corpus import HELD_OUT_EVERY, About, Corpus
from twinspark.deploy.distill.head_files import head_config_of, most_frequent, write_head
from twinspark.deploy.distill.head_net import HeadNet
from twinspark.deploy.distill.plots import plot_reliability, plot_training
from twinspark.deploy.distill.record import judged_record
from twinspark.deploy.distill.settings import DistillSettings, TextSettings
from twinspark.deploy.distill.teacher import Teacher
from twinspark.deploy.distill.trainer import Data, Trainer
from twinspark.deploy.distill.turns import Turns, turns_of
from twinspark.deploy.distill.writer import Writer
from twinspark.deploy.embedded import demo_model_path
from twinspark.deploy.progress import note, share_bar
from twinspark.deploy.prompts import encode_prompts, prompts_from_file
from twinspark.deploy.tokenizer import Tokenizer, open_tokenizer

STATE_FOLDER = "run"
PREVIEWED = 3
PREVIEW_CHARACTERS = 240


def distill_command(
    model: str,
    corpus: Path,
    texts: TextSettings,
    settings: DistillSettings,
    out: Path,
    *,
    device: str,
    as_json: bool,
) -> None:
    """`distill` for the command line."""
    place = device_of(device)
    precision: Precision = "bfloat16" if place.type == "cuda" else "float32"
    path = str(demo_model_path(note)) if model == "demo" else model
    record = distill(path, corpus, texts, settings, out, device=place, precision=precision)
    for name in ("decoded", "greedy", "temperature_1"):
        found = record[name]
        if not found["num_blocks"]:
            note(f"{name}: nothing to tell it by, no held-out text has a long enough answer of that kind")
            continue
        kept = " ".join(f"{value:.3f}" for value in found["conditional_acceptance"])
        note(f"{name}: acceptance length {found['acceptance_length']:.3f} on held-out text, by slot {kept}")
    note(f"the head is in {out} (training.png, reliability.png and training.json tell of it)")
    if as_json:
        print(json.dumps(record))


def distill(
    model: str,
    corpus_folder: Path,
    texts: TextSettings,
    settings: DistillSettings,
    out: Path,
    *,
    device: torch.device,
    precision: Precision,
) -> dict[str, Any]:
    """Makes the head in `out`; what `training.json` says of it. Raises CheckpointError or ValueError for what cannot
    be, OSError where the disk is full.
    """
    _check_folders_and_counts(corpus_folder, out, texts, settings)
    target = open_target(model)
    tokenizer = open_tokenizer(model)
    config = head_config_of(settings, target.config, mask_token_id(tokenizer, target.config.vocab_size))
    corpus = Corpus.create(corpus_folder, _about(target, tokenizer, texts, settings.seed))
    teacher = Teacher(target, precision=precision, length=texts.length, device=device)
    turns = turns_of(tokenizer)
    write_texts(corpus, teacher.net, tokenizer, turns, texts)
    data = Data(*corpus.texts(), corpus.held_out_is_greedy(), turns)
    target_ids = (
        most_frequent(data.train, target.config.vocab_size, settings.draft_vocab) if config.reduced_vocab else None
    )
    trainer = Trainer(
        teacher,
        config,
        settings,
        data,
        target_ids,
        out / STATE_FOLDER,
        {"corpus": asdict(corpus.about)},
    )
    _show_head(trainer.net, trainer.progress.step)
    with share_bar("training") as on_step:
        weights = trainer.run(_show_look, on_step)
    trainer.net.load_state_dict(weights)
    progress = trainer.progress
    made = {"format": 1, "about": trainer.about, "steps": progress.step, "seconds": round(progress.seconds, 1)}
    judged, told = judged_record(trainer.net, teacher, data, target_ids)
    record = made | judged | {"history": progress.history}
    out.mkdir(parents=True, exist_ok=True)
    plot_training(progress.history, out / "training.png")
    plot_reliability(told, out / "reliability.png")
    write_head(out, config, weights, target_ids, _saved_dtype(settings), record)
    return record


def _check_folders_and_counts(corpus: Path, out: Path, texts: TextSettings, settings: DistillSettings) -> None:
    """What would fail only once the texts are written. Raises ValueError."""
    for name, folder in (("--corpus", corpus), ("--out", out)):
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{name} must be a folder, got the file {folder}")
    written = -(-texts.texts // texts.at_once) * texts.at_once
    trained_on = written - -(-written // HELD_OUT_EVERY)
    if settings.texts_per_step > trained_on:
        raise ValueError(
            f"--texts-per-step must be at most {trained_on} (of {written} texts one of {HELD_OUT_EVERY} is held out), "
            f"got {settings.texts_per_step}"
        )


def mask_token_id(tokenizer: Tokenizer, vocab_size: int) -> int:
    """A token that no text has: the last special one that ends nothing, else the vocabulary's last."""
    free = tokenizer.special_ids - set(tokenizer.eos_ids) - {tokenizer.bos_id}
    return max(free, default=vocab_size - 1)


def write_texts(corpus: Corpus, net: BatchNet, tokenizer: Tokenizer, turns: Turns, texts: TextSettings) -> None:
    """Shards until there are as many texts as wanted."""
    wanted = -(-texts.texts // texts.at_once)
    if corpus.num_shards >= wanted:
        return
    pools = _pools(_prompts(tokenizer, texts))
    writer = Writer(net, turns, num_texts=texts.at_once, length=texts.length)
    began_s, written = time.monotonic(), 0
    with share_bar("writing texts") as on_share:
        for shard in range(corpus.num_shards, wanted):
            numbers = range(shard * texts.at_once, (shard + 1) * texts.at_once)
            ids = writer.write(
                [_prompt(i, pools, texts, corpus.about.seed) for i in numbers],
                [texts.temperatures[i % len(texts.temperatures)] for i in numbers],
                corpus.about.seed * 2**20 + shard,
            )
            corpus.add(ids)
            written += ids.numel()
            on_share((shard + 1) / wanted)
            if not shard:
                _preview(tokenizer, ids)
    took_s = time.monotonic() - began_s
    note(f"wrote {written:,} tokens in {took_s:.1f} s, {written / took_s:,.0f} tokens/s")


def _pools(prompts: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts of held-out texts and those of the others: no prompt is in both, unless there is but one."""
    held_out = prompts[::HELD_OUT_EVERY]
    return held_out, [prompts[i] for i in range(len(prompts)) if i % HELD_OUT_EVERY] or held_out


def _prompt(
    number: int, pools: tuple[list[list[int]], list[list[int]]], texts: TextSettings, seed: int
) -> Sequence[int]:
    """What text `number` opens with; nothing where the target asks, too. Every temperature has its share of prompts."""
    turn, share = number // len(texts.temperatures), texts.prompts_share
    held_out, others = pools
    if not held_out or int((turn + 1) * share) == int(turn * share):
        return ()
    pool = held_out if number % HELD_OUT_EVERY == 0 else others
    return random.Random(seed * 2**32 + number).choice(pool)


def _prompts(tokenizer: Tokenizer, texts: TextSettings) -> list[list[int]]:
    if texts.prompts is None:
        return []
    encoded = encode_prompts(tokenizer, prompts_from_file(Path(texts.prompts)), False)
    room = [ids for ids in encoded if len(ids) < texts.length // 2]
    if len(room) < len(encoded):
        note(f"{len(encoded) - len(room)} of {len(encoded)} prompts are longer than half a text and are left out")
    if not room:
        raise ValueError(f"{texts.prompts} must hold prompts shorter than {texts.length // 2} tokens, got none")
    return room


def _about(target: TargetCheckpoint, tokenizer: Tokenizer, texts: TextSettings, seed: int) -> About:
    prompts = ""
    if texts.prompts is not None:
        told = (texts.prompts_share, prompts_from_file(Path(texts.prompts)))
        prompts = hashlib.sha256(repr(told).encode()).hexdigest()
    gains = target.tensors.load("model.norm.weight").float().numpy().tobytes()  # fine-tuned targets differ in them
    return About(
        tokenizer=tokenizer.identity,
        target=hashlib.sha256(checkpoint_identity(target).encode() + gains).hexdigest(),
        vocab_size=target.config.vocab_size,
        length=texts.length,
        texts_per_shard=texts.at_once,
        temperatures=texts.temperatures,
        prompts=prompts,
        seed=seed,
    )


def _saved_dtype(settings: DistillSettings) -> torch.dtype:
    return torch.float16 if settings.save_dtype == "float16" else DTYPES[settings.save_dtype]


def _show_head(net: HeadNet, step: int) -> None:
    count = sum(parameter.numel() for parameter in net.parameters())
    note(f"a head of {count / 1e6:.1f} M parameters" + (f", going on from step {step}" if step else ""))


def _show_look(row: dict[str, Any]) -> None:
    kept = " ".join(f"{value:.3f}" for value in row["kept"])
    note(f"step {row['step']:6d}  {row['seconds']:7.1f} s  loss {row['loss']:.4f}  kept by slot {kept}")


def _preview(tokenizer: Tokenizer, ids: Tensor) -> None:
    for row in ids[:PREVIEWED].tolist():
        note(
            "sample: " + json.dumps(tokenizer.decode(row, skip_special=False)[:PREVIEW_CHARACTERS], ensure_ascii=False)
        )
