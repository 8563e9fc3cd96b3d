"""Fixtures that several parts share: the files beside the repository, and the embedded model (fetched once)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from twinspark.cluster.signals import ENDING
from twinspark.deploy.embedded import DEMO, cache_dir, demo_model_path
from twinspark.deploy.errors import DemoModelError


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference files beside the repository; without it the test is skipped."""
    path = Path(__file__).resolve().parents[2] / "shared"
    if not path.is_dir():
        pytest.skip(f"needs the reference files in {path}, which are not there")
    return path


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of the suite's own, with the user's model in it: what tests time and remember is nobody else's."""
    with suppress(DemoModelError):
        demo_model_path()
    own = tmp_path_factory.mktemp("cache")
    theirs = cache_dir()
    (own / theirs.name).mkdir()
    for file in theirs.glob(f"{DEMO.file_name}*"):
        (own / theirs.name / file.name).symlink_to(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(own))
        yield


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The embedded target's GGUF file."""
    return demo_model_path()


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """A suite started in the background, or by nohup, inherits ignored signals, and so would what it tests."""
    for number in ENDING:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch on one thread: what is computed does not depend on the machine's cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
