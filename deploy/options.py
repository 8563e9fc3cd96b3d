"""What a person may set: each option once, with its default, its range and its help. Flag, then TWINSPARK_*, then file.

Everything from outside is validated here (pydantic); the rest of the program gets a frozen Options.
"""

from __future__ import annotations

import secrets
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import click
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from twinspark.actors.sampling.settings import MAX_SEED, MAX_TEMPERATURE, MAX_TOP_K, Sampling
from twinspark.deploy.stops import checked_stops

MAX_THREADS = 512  # more than any machine's cores: a slip of the finger would bring it to its knees
MAX_NEW_TOKENS = 2**31 - 1
READABLE_SEED_BITS = 53  # an unset seed is drawn so that JSON readers in every language keep it exact


Settings = TypeVar("Settings", bound=BaseModel)


class Options(BaseModel):
    """One run's settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    model: str = Field("demo", description="target: a Hugging Face directory, a .gguf file, or 'demo'")
    dspark_model: str = Field("demo", description="draft head: a directory, 'demo', or 'none'")
    dspark_place: Literal["auto", "off", "colocated", "cpu", "gpu"] = Field("auto", description="where the draft runs")
    dspark_verify_len: int = Field(0, ge=0, description="draft tokens verified a round; 0: chosen for the device")
    dspark_min_confidence: float = Field(0.0, ge=0, le=1, description="end a proposal at the first slot below this")
    dspark_dtype: Literal["auto", "float32", "bfloat16", "int8"] = Field(
        "auto",
        description="draft precision; int8 keeps the trunk in bfloat16; auto: as --dtype if given, else int8 on a CPU",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="target precision; auto: float32 on a CPU, bfloat16 on a GPU"
    )
    numerics: Literal["exact", "fast"] = Field("fast", description="exact: rounding independent of the batch")
    transport: Literal["stream", "ray"] = Field("stream", description="how frames travel between the actors")
    context: int = Field(0, ge=0, description="positions a request may reach; 0: the model's own, at most 2048")
    max_seqs: int = Field(16, ge=1, le=1024, description="requests decoded at once")
    threads: int = Field(0, ge=0, le=MAX_THREADS, description="CPU threads of the target; 0: all there are")
    dspark_threads: int = Field(1, ge=1, le=MAX_THREADS, description="CPU threads of a draft actor")
    objective: Literal["speed", "cost"] = Field(
        "speed", description="what auto maximises: tokens/s, or tokens per money"
    )
    prices: str | None = Field(
        None, description="TOML file with prices per core_hour and gpu_hour, for --objective cost"
    )
    recalibrate: bool = Field(False, description="auto: time the devices anew, whatever was kept of earlier timings")
    static: bool = Field(False, description="auto: plan by sizes alone; nothing is timed")
    address: str | None = Field(None, description="a Ray cluster; without it a private local one")
    seed: int | None = Field(None, ge=0, le=MAX_SEED, description="seed of the sampling noise; unset: drawn, and told")
    temperature: float = Field(0.0, ge=0, le=MAX_TEMPERATURE, allow_inf_nan=False, description="0 is greedy")
    top_p: float = Field(1.0, ge=1e-6, le=1, description="nucleus sampling")
    top_k: int = Field(0, ge=0, le=MAX_TOP_K, description="0 keeps all")
    min_p: float = Field(0.0, ge=0, le=1, description="least share of the top probability")
    max_new_tokens: int = Field(256, ge=1, le=MAX_NEW_TOKENS, description="tokens to generate at most")
    stop: tuple[str, ...] = Field((), description="end the text before this string (may be repeated)")
    ignore_eos: bool = Field(False, description="do not stop at the model's end tokens")

    @model_validator(mode="after")
    def _go_together(self) -> Options:
        if self.objective == "cost" and self.prices is None:
            raise ValueError("--objective cost needs --prices FILE, got none")
        if self.recalibrate and self.static:
            raise ValueError("--recalibrate and --static exclude each other, got both")
        return self

    @model_validator(mode="after")
    def _stops_are_sound(self) -> Options:
        checked_stops(list(self.stop))
        return self

    def sampling(self) -> Sampling:
        """This run's sampling, with a seed drawn now where none was given."""
        seed = secrets.randbits(READABLE_SEED_BITS) if self.seed is None else self.seed
        return Sampling.of(
            temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p, seed=seed
        )


def options_from(values: dict[str, Any]) -> Options:
    """Validated options. Raises as `validated`."""
    return validated(Options, values)


def validated(model: type[Settings], values: dict[str, Any]) -> Settings:
    """`values` as a `model`. Raises click.UsageError with one line: the option, what must hold, what was got."""
    try:
        return model(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = "--" + str(first["loc"][0]).replace("_", "-") if first["loc"] else "options"
        message = first["msg"].removeprefix("Value error, ")
        raise click.UsageError(f"{name}: {message}, got {first['input']!r}" if first["loc"] else message) from None


def _read_file(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    try:
        table = tomllib.loads(Path(value).read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.UsageError(f"--config: {value} must be a readable TOML file ({error})") from None
    keys = {key.replace("-", "_"): item for key, item in table.items()}
    unknown = sorted(keys.keys() - Options.model_fields.keys())
    if unknown:
        raise click.UsageError(f"--config: {value} has unknown keys: {', '.join(unknown)}")
    if isinstance(keys.get("stop"), list):
        keys["stop"] = tuple(keys["stop"])
    try:
        options_from(keys)
    except click.UsageError as error:
        raise click.UsageError(
            f"--config: {value}: {error.message.removeprefix('--').replace('tuple', 'list')}"
        ) from None
    context.default_map = keys


def common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds every option of Options to a click command, and `--config`."""
    return click.option(
        "--config", callback=_read_file, is_eager=True, expose_value=False, metavar="FILE", help="options as TOML"
    )(add_options(Options, command))


def add_options(model: type[BaseModel], command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds every field of `model` to a click command as an option."""
    for name, field in reversed(model.model_fields.items()):
        command = _option(name, field)(command)
    return command


class _List(click.ParamType[Any]):
    """Numbers with commas between them."""

    name = "numbers"

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        try:
            return tuple(self.kind(part) for part in str(value).split(",")) if isinstance(value, str) else value
        except ValueError:
            self.fail(f"must be numbers with commas between them, got {value!r}", parameter, context)


_LISTS: dict[Any, type] = {tuple[int, ...]: int, tuple[float, ...]: float}


def _range_of(field: Any) -> str:
    """The numeric limits of a field, for its help."""
    words = {"ge": "from", "gt": "above", "le": "to", "lt": "below"}
    limits = [f"{words[n]} {getattr(part, n)}" for n in words for part in field.metadata if hasattr(part, n)]
    return f" ({' '.join(limits)})" if limits else ""


def _option(name: str, field: Any) -> Callable[..., Any]:
    kinds: dict[Any, Any] = {int: int, float: float, str: str, int | None: int, str | None: str}
    choices = getattr(field.annotation, "__args__", ())
    settings: dict[str, Any] = {
        "default": field.default,
        "help": field.description + _range_of(field),
        "envvar": f"TWINSPARK_{name.upper()}",
    }
    if field.annotation is bool:
        settings["is_flag"] = True
    elif field.annotation in _LISTS:
        settings |= {"type": _List(_LISTS[field.annotation]), "default": ",".join(map(str, field.default))}
    elif field.annotation == tuple[str, ...]:
        settings |= {"multiple": True}
    elif field.annotation in kinds:
        settings |= {"type": kinds[field.annotation]}
    else:
        settings |= {"type": click.Choice(choices)}
    return click.option("--" + name.replace("_", "-"), name, show_default=True, **settings)
