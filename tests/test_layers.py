"""Which way imports run (DESIGN section 5), read off the sources: nothing here is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = {
    "planner": {"planner"},
    "actors": {"actors", "planner"},
    "cluster": {"cluster", "actors", "planner"},
    "deploy": {"deploy", "cluster", "actors", "planner"},
}
RAY_IN_ACTORS = {"actors/link/ray_call.py"}
ENVIRONMENT_IN_CLUSTER = {
    "cluster/probe/node.py",  # CUDA_VISIBLE_DEVICES
    "cluster/ray_session.py",  # Ray's own settings, which Ray reads from there
}
PICKLES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[str]:
    """Every module a file imports, anywhere in it, by its full name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}: imports are absolute"
            module = node.module or ""
            yield from (f"{module}.{alias.name}" for alias in node.names)


def attributes(path: Path) -> set[str]:
    """Every `a.b` of a file, as written."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def reads_environment(path: Path) -> bool:
    names = {"os.environ", "os.getenv", "os.environb", "os.getenvb", "os.putenv", "os.unsetenv"}
    return bool(names & (attributes(path) | set(imports(path))))


@pytest.mark.parametrize("folder", ALLOWED)
def test_a_folder_imports_only_the_folders_below_it(folder: str) -> None:
    assert sources(folder)
    for path in sources(folder):
        ours = {name.split(".")[1] for name in imports(path) if name.startswith("twinspark.")}
        assert ours <= ALLOWED[folder], f"{name_of(path)} imports {sorted(ours - ALLOWED[folder])}"


@pytest.mark.parametrize("folder", ALLOWED)
def test_nothing_imports_our_folders_by_a_plain_name(folder: str) -> None:
    for path in sources(folder):
        plain = {name for name in imports(path) if name.split(".")[0] in ALLOWED}
        assert not plain, f"{name_of(path)} must import twinspark.*, got {sorted(plain)}"


def test_the_planner_is_pure() -> None:
    impure = {"torch", "ray", "time", "datetime", "os", "random", "secrets", "socket", "psutil", "pynvml", "pathlib"}
    for path in sources("planner"):
        found = {name.split(".")[0] for name in imports(path)} & impure
        assert not found, f"{name_of(path)} imports {sorted(found)}"


def test_actors_know_ray_in_one_place_only() -> None:
    knowing = {name_of(path) for path in sources("actors") if any(i.split(".")[0] == "ray" for i in imports(path))}
    assert knowing == RAY_IN_ACTORS


def test_settings_from_the_environment_are_read_in_deploy_only() -> None:
    reading = {name_of(path) for folder in ("planner", "actors", "cluster") for path in sources(folder)}
    reading = {name for name in reading if reads_environment(ROOT / name)}
    assert reading <= ENVIRONMENT_IN_CLUSTER


@pytest.mark.parametrize("folder", ALLOWED)
def test_nothing_is_ever_unpickled(folder: str) -> None:
    for path in sources(folder):
        found = {name for name in imports(path) if name.split(".")[0] in PICKLES or name == "torch.load"}
        found |= attributes(path) & {"torch.load", "torch.jit.load", "torch.hub.load"}
        assert not found, f"{name_of(path)} uses {sorted(found)}"
        # numpy unpickles where it is told so
        assert "allow_pickle" not in path.read_text(encoding="utf-8"), name_of(path)
