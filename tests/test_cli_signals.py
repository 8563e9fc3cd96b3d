"""Ctrl-C, SIGTERM and a lost draft, as the process of the command sees them: clean streams, and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import psutil
import pytest
from cli_process import COMMAND, DEADLINE_S, clean_environment

LONG = ("generate", "--ignore-eos", "--max-new-tokens", "1500", "Tell me a long story.")
POLL_S = 0.05


class Running:
    """A `twinspark` in a process group of its own, as a shell gives one to its jobs."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
            env=clean_environment(),
        )
        self._out, self._err = bytearray(), bytearray()
        pipes = ((self.process.stdout, self._out), (self.process.stderr, self._err))
        self._readers = [threading.Thread(target=self._read, args=pipe, daemon=True) for pipe in pipes]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(pipe: IO[bytes] | None, into: bytearray) -> None:
        assert pipe is not None
        while chunk := os.read(pipe.fileno(), 4096):
            into += chunk

    @property
    def out(self) -> str:
        return self._out.decode()

    @property
    def err(self) -> str:
        return self._err.decode()

    def children(self, name: str = "") -> list[psutil.Process]:
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if child.name().startswith(name):
                    found.append(child)
        return found

    def wait_until(self, reached: Callable[[], object]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not reached():
            assert self.process.poll() is None, f"ended with {self.process.returncode} before that:\n{self.err}"
            assert time.monotonic() < deadline, self.err
            time.sleep(POLL_S)

    def wait(self) -> int:
        code = self.process.wait(DEADLINE_S)
        for reader in self._readers:
            reader.join(DEADLINE_S)
        return code


@contextmanager
def running(*arguments: str) -> Iterator[Running]:
    run = Running(*arguments)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            for process in [*run.children(), run.process]:
                with suppress(psutil.Error):
                    process.kill()
            run.wait()


def folders_of(processes: list[psutil.Process]) -> set[Path]:
    """The folders of a private Ray that these processes were told of."""
    found = set()
    for process in processes:
        with suppress(psutil.Error):
            for word in " ".join(process.cmdline()).replace("=", " ").replace(":", " ").split():
                path = Path(word)
                found |= {p for p in (path, *path.parents) if p.name.startswith("tw-")}
    return found


STAGES: dict[str, Callable[[Running], object]] = {
    "Ray is starting": lambda run: run.children("gcs_server"),
    "the target is loading": lambda run: run.children("ray::TargetActor"),
    "text is coming": lambda run: len(run.out) > 20,
}


@pytest.mark.parametrize(
    ("stage", "place", "number", "whole_group", "times"),
    [
        ("Ray is starting", "cpu", signal.SIGINT, False, 1),
        ("the target is loading", "colocated", signal.SIGINT, True, 3),
        ("text is coming", "cpu", signal.SIGINT, True, 2),
        ("text is coming", "off", signal.SIGTERM, False, 1),
        ("the target is loading", "off", signal.SIGTERM, True, 1),
        ("text is coming", "cpu", signal.SIGHUP, True, 1),
    ],
)
def test_a_signal_ends_everything(
    demo_model: Path, stage: str, place: str, number: signal.Signals, whole_group: bool, times: int
) -> None:
    """To one process, or to its group as a terminal does; a second Ctrl-C does not cut the cleaning up short."""
    with running(*LONG, "--dspark-place", place) as run:
        run.wait_until(lambda: STAGES[stage](run))
        family = run.children()
        for _ in range(times):
            (os.killpg if whole_group else os.kill)(run.process.pid, number)
            time.sleep(POLL_S)
            family += [child for child in (run.children() if run.process.poll() is None else []) if child not in family]
        folders = folders_of(family)
        code = run.wait()
        assert code == 128 + number, run.err
        _, alive = psutil.wait_procs(family, timeout=60)
        assert not alive
        assert folders or stage == "Ray is starting"
        assert not [folder for folder in folders if folder.exists()]
        assert "Traceback" not in run.err
        assert run.err.splitlines()[-1] == f"twinspark: ended by {number.name}"


def test_a_signal_before_ray_ends_it_at_once(demo_model: Path) -> None:
    """While it waits for a prompt on stdin that never comes."""
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [*COMMAND, "generate"], stdin=reading, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment()
    )
    try:
        os.close(reading)
        waiting = psutil.Process(process.pid)
        while waiting.status() != psutil.STATUS_SLEEPING or waiting.cpu_times().user < 0.1:
            assert process.poll() is None
            time.sleep(POLL_S)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 130
        assert out == b""
        assert err == b"twinspark: ended by SIGINT\n"
    finally:
        os.close(writing)
        process.kill()


def test_a_killed_draft_leaves_one_document_on_stdout(demo_model: Path) -> None:
    """Ray tells of dead workers on stdout, unless it is kept from it."""
    arguments = ("generate", "--json", "--dspark-place", "cpu", "--max-new-tokens", "160", "--ignore-eos", "Count.")
    with running(*arguments) as run:
        run.wait_until(lambda: "loaded draft" in run.err)
        time.sleep(1.0)
        [draft] = run.children("ray::DraftActor")
        draft.kill()
        assert run.wait() == 0, run.err
        assert len(json.loads(run.out)["token_ids"]) == 160
        assert "the draft was lost" in run.err


def test_a_reader_that_goes_away_is_no_failure_to_tell_of(demo_model: Path) -> None:
    """`twinspark generate | head -c 1`"""
    with running(*LONG, "--dspark-place", "off") as run:
        assert run.process.stdout is not None
        run.wait_until(lambda: run.out)
        family = run.children()
        os.dup2(os.open(os.devnull, os.O_RDONLY), run.process.stdout.fileno())
        assert run.wait() == 1
        assert "Broken" not in run.err
        assert "Traceback" not in run.err
        assert not psutil.wait_procs(family, timeout=60)[1]
