"""Training: it learns, a killed run goes on to the same end, and what it makes runs in every placement."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from distill_driver import LENGTH, trainer_of
from in_process import finish, local_draft, off_tokens, run, same, some_requests, target_host, target_spec
from safetensors.torch import load_file

from twinspark.actors.errors import CheckpointError
from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.specs import DraftSettings
from twinspark.actors.target.request import Report, Request
from twinspark.deploy.distill import record as record_module
from twinspark.deploy.distill.head_files import write_head
from twinspark.deploy.distill.judge import Judged, judge, rounds_of
from twinspark.deploy.distill.record import judged_record
from twinspark.deploy.distill.trainer import Trainer
from twinspark.deploy.distill.turns import Turns

DRIVER = Path(__file__).with_name("distill_driver.py")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def target(shared: Path) -> str:
    return str(shared / "golden/deepspec/targets/untied")


@pytest.fixture(scope="module")
def trained(target: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, dict[str, torch.Tensor]]:
    torch.set_num_threads(1)
    trainer = trainer_of(target, tmp_path_factory.mktemp("trained"), steps=150)
    weights = trainer.run(lambda row: None)
    trainer.net.load_state_dict(weights)
    return trainer, weights


def test_acceptance_rises(trained: tuple[Trainer, dict[str, torch.Tensor]]) -> None:
    trainer, _ = trained
    history = trainer.progress.history
    assert history[0]["step"] == 0
    assert history[-1]["step"] == 150
    assert history[-1]["loss"] < 0.8 * history[0]["loss"]
    assert all(last > first + 0.1 for first, last in zip(history[0]["kept"], history[-1]["kept"], strict=True))
    anchors = torch.arange(2, LENGTH - 6, 3).repeat(len(trainer.data.held_out), 1)
    found = judge(trainer.net, trainer.teacher, trainer.data.held_out, anchors, None)
    assert len(found.sampled) == len(found.greedy) == len(found.written) == anchors.numel()
    assert Judged(found.told[found.written], found.greedy[found.written]).acceptance_length > 1.3
    assert Judged(found.told, found.sampled).acceptance_length > 1.1
    # What the loss calls the chance to be kept is, with the best of rules, above what shared noise keeps.
    assert found.sampled[:, 0].mean() < history[-1]["kept"][0] + 0.1


def test_rounds_along_texts_are_those_of_decoding(
    shared: Path, trained: tuple[Trainer, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    trainer, weights = trained
    write_head(tmp_path, trainer.config, weights, None, torch.float32, {"conditional_acceptance": [0.5]})
    size, start, num_new = trainer.config.block_size, 8, 52
    requests = [Request(i, tuple(range(20 + 9 * i, 20 + 9 * i + start)), Sampling(), num_new) for i in range(4)]

    async def body() -> dict[int, Report]:
        async with target_host(target_spec(shared), DraftSettings(str(tmp_path), "float32", size)) as host:
            return await finish(host, requests)

    reports = run(body)
    ids = torch.tensor([[*request.prompt, *reports[request.number].token_ids] for request in requests])
    anchors = torch.arange(start, start + num_new - size).repeat(len(ids), 1)
    found = judge(trainer.net, trainer.teacher, ids, anchors, None)
    rounds = rounds_of(found.greedy.reshape(*anchors.shape, -1))
    accepted = Judged(found.told, found.greedy).survived.sum(axis=1).astype(int)
    for text, request in enumerate(requests):
        own = [int(accepted[i]) for i in rounds if i // anchors.shape[1] == text]
        decoded = [record.num_accepted for record in reports[request.number].rounds]
        assert len(own) > 5
        assert own == decoded[: len(own)]


def test_which_blocks_are_rounds() -> None:
    """Numbers by hand: two texts of four anchors, two slots."""
    kept = np.array([[[1, 1], [0, 0], [0, 0], [0, 1]], [[0, 1], [1, 0], [1, 1], [1, 1]]], dtype=np.float64)
    assert rounds_of(kept).tolist() == [0, 3, 4, 5, 7]
    assert rounds_of(kept[:0]).tolist() == []


@pytest.mark.parametrize("greedy", [True, False])
def test_the_record_is_of_the_rounds_of_greedy_answers(
    trained: tuple[Trainer, dict[str, torch.Tensor]], greedy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_module, "DECODED_ANCHORS", 20)
    monkeypatch.setattr(Turns, "answers", lambda self, ids: torch.arange(ids.shape[1]).expand(ids.shape) >= 3)
    trainer, _ = trained
    data = replace(trainer.data, held_out_is_greedy=trainer.data.held_out_is_greedy & greedy)
    record, _ = judged_record(trainer.net, trainer.teacher, data, None)
    decoded = record["decoded"]
    assert record["conditional_acceptance"] == (decoded if greedy else record["greedy"])["conditional_acceptance"]
    if greedy:
        anchors = 20 * int(data.held_out_is_greedy.sum())
        assert anchors / (1 + trainer.config.block_size) <= decoded["num_blocks"] < anchors
        assert decoded["acceptance_length"] > 1.1
    else:
        assert decoded == {"num_blocks": 0}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_killed_run_comes_to_the_same_end(target: str, tmp_path: Path, optimizer: str) -> None:
    """Killed twice, in the middle of whatever it did; state is saved at every step here."""
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"

    def start(out: Path) -> subprocess.Popen[str]:
        command = [sys.executable, str(DRIVER), target, str(out), "12", optimizer]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    with start(whole) as run_through:
        assert run_through.stdout is not None
        assert run_through.stdout.read().split() == [str(i) for i in range(1, 13)]
    seen = 0
    for until in (4, 9):
        with start(pieces) as killed:
            assert killed.stdout is not None
            for line in killed.stdout:
                assert int(line) in (seen, seen + 1), "what was saved is not done again, but for the step that was cut"
                seen = int(line)
                if seen == until:
                    killed.send_signal(signal.SIGKILL)
                    break
    with start(pieces) as last:
        assert last.wait() == 0
    one, other = load_file(whole / "end.safetensors"), load_file(pieces / "end.safetensors")
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert not [path for path in pieces.iterdir() if path.name.startswith(".")], "no half-written state stays"


def test_a_state_of_other_settings(target: str, tmp_path: Path) -> None:
    trainer = trainer_of(target, tmp_path, steps=2)
    trainer.run(lambda row: None)
    assert trainer_of(target, tmp_path, steps=2).progress.step == 2
    with pytest.raises(CheckpointError, match=r"learning_rate 0\.5, got 0\.003"):
        trainer_of(target, tmp_path, steps=2, learning_rate=0.5)
    state = tmp_path / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match="damaged"):
        trainer_of(target, tmp_path, steps=2)


def test_the_head_runs_in_every_placement(
    shared: Path, trained: tuple[Trainer, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    """Beside the target and in a draft of its own (in this process; Ray has its tests): the same tokens as without."""
    trainer, weights = trained
    write_head(tmp_path, trainer.config, weights, None, torch.float32, {"conditional_acceptance": [0.5]})
    requests = some_requests(6)
    expected = off_tokens(shared, requests)
    settings = DraftSettings(str(tmp_path), "float32", trainer.config.block_size)

    async def body() -> list[int]:
        lengths = []
        async with target_host(target_spec(shared), settings) as host:
            colocated = await finish(host, requests)
            assert same(colocated, expected)
            lengths.append(sum(r.num_accepted for report in colocated.values() for r in report.rounds))
        async with target_host(target_spec(shared)) as host, local_draft(shared, settings=settings) as draft:
            await draft.attach(host)
            apart = await finish(host, requests)
            assert same(apart, expected)
            lengths.append(sum(r.num_accepted for report in apart.values() for r in report.rounds))
        return lengths

    beside, apart = run(body)
    assert beside == apart > 0
