"""For tests of the command line: `twinspark` as a process of its own, without settings from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEADLINE_S = 300.0
COMMAND = (sys.executable, "-m", "twinspark.deploy.cli")


def clean_environment(**changes: str) -> dict[str, str]:
    """This process's environment with no setting of ours but `changes`; nothing is timed unless they say so."""
    others = {k: v for k, v in os.environ.items() if not k.startswith("TWINSPARK_")}
    return {**others, "TWINSPARK_STATIC": "true", **changes}


@dataclass(frozen=True)
class Ran:
    """What a process left."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """All of stdout, as one JSON document."""
        assert self.code == 0, self.err
        assert self.out.count("\n") == 1
        return json.loads(self.out)


def twinspark(*arguments: str | Path, stdin: str = "", **environment: str) -> Ran:
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env=clean_environment(**environment),
    )
    assert "Traceback" not in done.stderr
    return Ran(done.returncode, done.stdout, done.stderr)
