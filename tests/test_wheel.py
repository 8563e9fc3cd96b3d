"""The wheel that people install: every package folder is in it, the draft head too, and nothing by a plain name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("planner", "cluster", "actors", "deploy")


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """What the wheel of a clean tree of the sources holds: no earlier build can lend it anything."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for folder in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, source / folder, ignore=ignored, copy_function=os.symlink)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (source / name).symlink_to(ROOT / name)
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    [wheel] = out.glob("twinspark-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        return set(archive.namelist())


def test_every_package_is_in_the_wheel_with_every_module(names: set[str]) -> None:
    packages = [path.parent for folder in FOLDERS for path in (ROOT / folder).rglob("__init__.py")]
    assert {path.relative_to(ROOT).parts[0] for path in packages} == set(FOLDERS)
    wanted = {
        f"twinspark/{module.relative_to(ROOT).as_posix()}" for package in packages for module in package.glob("*.py")
    }
    assert wanted <= names, sorted(wanted - names)


def test_every_folder_with_modules_is_a_package() -> None:
    for folder in FOLDERS:
        for module in (ROOT / folder).rglob("*.py"):
            assert (module.parent / "__init__.py").is_file(), module.parent


def test_the_embedded_head_is_in_the_wheel(names: set[str]) -> None:
    heads = [path for path in (ROOT / "deploy" / "heads").rglob("*") if path.is_file()]
    assert any(path.suffix == ".safetensors" for path in heads)
    assert any(path.name == "config.json" for path in heads)
    wanted = {f"twinspark/{path.relative_to(ROOT).as_posix()}" for path in heads}
    assert wanted <= names, sorted(wanted - names)


def test_the_wheel_holds_nothing_else(names: set[str]) -> None:
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"twinspark"}
    assert any(name.endswith("/entry_points.txt") for name in names)
    assert any("LICENSE" in name for name in names)
