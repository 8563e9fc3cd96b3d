"""A pair's footprints for the settings it will run with: what the planner asks for each candidate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from twinspark.planner.footprint import (
    EVERY_KERNEL,
    CpuKernels,
    Dtype,
    Footprint,
    Numerics,
    colocated_footprint,
    draft_footprint,
    target_footprint,
)
from twinspark.planner.placement import Kind
from twinspark.planner.sizes import HeadSize, ModelSize


@dataclass(frozen=True)
class PairFootprints:
    """Dtypes by kind of device: what suits a CPU need not suit a GPU."""

    model: ModelSize
    head: HeadSize | None
    target_dtypes: Mapping[Kind, Dtype]
    draft_dtypes: Mapping[Kind, Dtype]
    numerics: Numerics
    context: int
    kernels: CpuKernels = EVERY_KERNEL

    @property
    def has_head(self) -> bool:
        return self.head is not None

    def target(self, kind: Kind, num_requests: int, verify_length: int) -> Footprint:
        return target_footprint(
            self.model,
            kind=kind,
            dtype=self.target_dtypes[kind],
            numerics=self.numerics,
            context=self.context,
            num_seqs=num_requests,
            verify_length=verify_length,
            kernels=self.kernels,
        )

    def draft(self, kind: Kind, num_requests: int, verify_length: int) -> Footprint:
        return draft_footprint(
            self.model,
            self._head,
            kind=kind,
            dtype=self.draft_dtypes[kind],
            context=self.context,
            num_seqs=num_requests,
            verify_length=verify_length,
            kernels=self.kernels,
        )

    def colocated(self, kind: Kind, num_requests: int, verify_length: int) -> Footprint:
        return colocated_footprint(
            self.model,
            self._head,
            kind=kind,
            dtype=self.draft_dtypes[kind],
            target_dtype=self.target_dtypes[kind],
            context=self.context,
            num_seqs=num_requests,
            verify_length=verify_length,
            kernels=self.kernels,
        )

    @property
    def _head(self) -> HeadSize:
        if self.head is None:
            raise ValueError("a draft's footprint needs a head, got none")
        return self.head
