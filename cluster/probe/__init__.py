"""What one node has now: CPUs, memory, GPUs, each with where it was read. Allocates nothing, makes no CUDA context."""

from twinspark.cluster.probe.node import probe_node
from twinspark.cluster.probe.snapshot import Snapshot

__all__ = ["Snapshot", "probe_node"]
