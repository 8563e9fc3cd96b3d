"""A Ray to work in: a private local one that leaves nothing behind, or somebody's cluster by its address."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from twinspark.cluster.errors import Interrupted, SpawnError
from twinspark.cluster.signals import cancelling_signals

log = logging.getLogger(__name__)

# Logical CPUs for each real one, and some more: a draft beside a target that takes all cores has its place too, and a
# new one can come up while a lost one still holds its own. In a private Ray nothing else asks for them.
CPUS_FOR_EACH = 3
SPARE_CPUS = 2
PRIVATE = {"_node_ip_address": "127.0.0.1", "include_dashboard": False}
REACH_TIMEOUT_S = 10.0
REMOVE_ATTEMPTS = 10
REMOVE_PAUSE_S = 0.3


@contextmanager
def ray_session(address: str | None, *, num_cpus: int, num_gpus: int) -> Iterator[None]:
    """Connect for the duration. Without an address a private Ray is started on the loopback and removed afterwards.

    Inside a task, a signal that asks for the end cancels that task, and Interrupted leaves the session.
    Raises SpawnError where `address` cannot be reached.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with cancelling_signals() as take_signals_back:
        if address is not None:
            _check_reachable(address)
            with _connected(take_signals_back, address):
                yield
            return
        # Ray runs its workers at niceness 15: anything else on the machine would starve the two that do the work.
        os.environ.setdefault("RAY_worker_niceness", "0")
        # And it would start a process for every CPU at once, though two actors are all that will run.
        os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
        resources = {"num_cpus": CPUS_FOR_EACH * num_cpus + SPARE_CPUS, "num_gpus": num_gpus}
        with (
            _private_folder() as folder,
            _connected(take_signals_back, "local", _temp_dir=str(folder), **PRIVATE, **resources),
        ):
            yield


@contextmanager
def _connected(take_signals_back: Callable[[], None], address: str, **settings: Any) -> Iterator[None]:
    import ray

    try:
        try:
            with _group_of_its_own():
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **settings)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise SpawnError(f"no Ray came up at {address} ({error})") from error
        except SystemExit as error:
            raise Interrupted(signal.SIGTERM) from error  # Ray's own answer to SIGTERM, until it is taken back
        take_signals_back()
        with _messages_logged():
            yield
    finally:
        ray.shutdown()


@contextmanager
def _group_of_its_own() -> Iterator[None]:
    """What is started inside belongs to another process group. A signal to ours, as `timeout` sends it, would else end
    Ray before us, and whoever then asks Ray to tidy up waits a minute and is ended by it.

    Ray has no setting for that, so this process joins another group meanwhile. Not where a terminal reads our signals
    from its keyboard (Ray's processes do not listen to Ctrl-C), nor as the leader of a session, which cannot.
    """
    home = os.getpgrp()
    if os.getsid(0) == os.getpid() or _is_in_the_foreground(home):
        yield
        return
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, process_group=0) as holder:
        os.setpgid(0, holder.pid)
        try:
            yield
        finally:
            try:
                os.setpgid(0, home)
            except PermissionError:  # nobody else was in it
                os.setpgid(0, 0)


def _is_in_the_foreground(group: int) -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == group
    except OSError:
        return False
    finally:
        os.close(terminal)


@contextmanager
def _messages_logged() -> Iterator[None]:
    """Ray prints what its nodes tell a driver (a worker has died) on stdout, which is ours. No setting stops it."""
    from ray._private import worker

    def note(data: dict[str, Any], ignore_prefix: bool) -> None:
        log.info("Ray: %s", " ".join(str(line) for line in data.get("lines", ())))

    printing = worker.print_to_stdstream
    worker.print_to_stdstream = note
    try:
        yield
    finally:
        worker.print_to_stdstream = printing


@contextmanager
def _private_folder() -> Iterator[Path]:
    """A folder with a short name: Ray's sockets live below it, and their paths are limited."""
    folder = Path(tempfile.mkdtemp(prefix="tw-", dir="/tmp" if Path("/tmp").is_dir() else None))
    try:
        yield folder
    finally:
        # Ray's processes may still write into it while they end.
        for _ in range(REMOVE_ATTEMPTS):
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            time.sleep(REMOVE_PAUSE_S)


def _check_reachable(address: str) -> None:
    """Ray itself would knock for a minute, in many lines. Only `host:port` says where to knock."""
    found = re.fullmatch(r"\[?([^/\[\]]+)\]?:(\d{1,5})", address)
    if found is None:
        return
    try:
        socket.create_connection((found[1], int(found[2])), REACH_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise SpawnError(f"no Ray cluster answered at {address} ({error})") from error
