"""A file of prices (TOML): `core_hour = 0.02` and `[gpu_hour]` with `"H200" = 4.0`, `"*" = 2.0`."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from twinspark.deploy.validation import first_fault
from twinspark.planner.prices import Prices


class _PriceFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    core_hour: float = Field(0.0, ge=0, allow_inf_nan=False)
    gpu_hour: dict[str, float] = Field(default_factory=dict)


def read_prices(path: str | None) -> Prices:
    """Prices from a file; none where there is no file. Raises ValueError for one that cannot be read."""
    if path is None:
        return Prices()
    try:
        found = _PriceFile.model_validate(tomllib.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"--prices: {path} must be a readable TOML file ({error})") from None
    except ValidationError as error:
        raise ValueError(f"--prices: {path}: {first_fault(error)}") from None
    if any(not 0 <= price < float("inf") for price in found.gpu_hour.values()):
        raise ValueError(f"--prices: {path}: a price must be at least 0, got {found.gpu_hour}")
    return Prices(found.gpu_hour, found.core_hour)
