"""What devices cost, for the objective `cost`: tokens per money."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ANY_GPU = "*"


@dataclass(frozen=True)
class Prices:
    """Money per hour, in any one currency. `gpu_hour` by model name (or a part of it), `"*"` for every other GPU; a
    GPU is paid by the share of its memory that is taken, CPU cores by number.
    """

    gpu_hour: Mapping[str, float] = field(default_factory=dict)
    core_hour: float = 0.0

    def of_gpu(self, name: str) -> float | None:
        """Per hour of a whole GPU; the longest matching name counts. None where no price is known."""
        matching = [key for key in self.gpu_hour if key != ANY_GPU and key.lower() in name.lower()]
        return self.gpu_hour.get(max(matching, key=len) if matching else ANY_GPU)

    def rent(self, gpu: tuple[str, int | None] | None, taken_bytes: int, cores: int) -> float | None:
        """Per hour of `cores` and of the share of a GPU (model, memory) that is taken; None: no price is known."""
        if gpu is None:
            return cores * self.core_hour
        model, total_bytes = gpu
        hour = self.of_gpu(model)
        if hour is None:
            return None
        return hour * (min(1.0, taken_bytes / total_bytes) if total_bytes else 1.0) + cores * self.core_hour
