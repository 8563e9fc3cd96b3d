"""Fixtures that several parts share: the files beside the repository, and the embedded model (fetched once)."""

from __future__ import annotations

from pathlib import Path

import pytest

from twinspark.deploy.embedded import demo_model_path


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference files beside the repository; without it the test is skipped."""
    path = Path(__file__).resolve().parents[2] / "shared"
    if not path.is_dir():
        pytest.skip(f"needs the reference files in {path}, which are not there")
    return path


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The embedded target's GGUF file."""
    return demo_model_path()
