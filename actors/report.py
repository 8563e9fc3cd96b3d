"""What an actor says of itself: process, threads, memory, the device its weights are really on."""

from __future__ import annotations

import os
import socket

import psutil
import torch

from twinspark.actors.compute import ComputeThread
from twinspark.actors.specs import ActorReport


def report_of(weights: torch.Tensor, dtype: str, compute: ComputeThread) -> ActorReport:
    """A snapshot, taken now; `weights` is any large tensor of the network."""
    process = psutil.Process()
    times = process.cpu_times()
    on_gpu = weights.device.type == "cuda"
    device = f"cuda:{weights.device.index or 0} {torch.cuda.get_device_name(weights.device)}" if on_gpu else "cpu"
    return ActorReport(
        pid=os.getpid(),
        node=socket.gethostname(),
        device=device,
        dtype=dtype,
        num_threads=compute.num_threads,
        resident_bytes=process.memory_info().rss,
        cpu_s=times.user + times.system,
        cuda_bytes=torch.cuda.memory_reserved() if on_gpu else 0,
    )
