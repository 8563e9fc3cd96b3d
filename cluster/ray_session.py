"""A Ray to work in: a private local one that leaves nothing behind, or somebody's cluster by its address."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from twinspark.cluster.errors import SpawnError

SPARE_CPUS = (
    2  # logical CPUs beyond the real ones, so that a new draft can come up while a lost one still holds its own
)


@contextmanager
def ray_session(address: str | None, *, num_cpus: int, num_gpus: int) -> Iterator[None]:
    """Connect for the duration. Without an address a private Ray is started on the loopback and removed afterwards.

    Raises SpawnError where `address` cannot be reached.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    if address is not None:
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise SpawnError(f"no Ray cluster answered at {address} ({error})") from error
        try:
            yield
        finally:
            ray.shutdown()
        return
    # Ray refuses long paths: sockets live below this folder.
    folder = Path(tempfile.mkdtemp(prefix="tw-", dir="/tmp" if Path("/tmp").is_dir() else None))
    try:
        ray.init(
            address="local",
            num_cpus=num_cpus + SPARE_CPUS,
            num_gpus=num_gpus,
            _node_ip_address="127.0.0.1",
            _temp_dir=str(folder),
            **quiet,
        )
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
