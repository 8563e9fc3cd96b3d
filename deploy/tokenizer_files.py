"""What a checkpoint keeps about text: a folder's tokenizer files, or a GGUF file's metadata. Builds no chat template.

Which ids end the output: every one that generation_config.json names (config.json where that file names none), and the
tokenizer's own eos_token.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from twinspark.actors.checkpoint.gguf_header import read_gguf_header
from twinspark.actors.errors import CheckpointError

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class TokenizerFolder:
    """`special_tokens`: spellings by Hugging Face's names (`bos_token`, ...)."""

    backend: Any
    special_tokens: dict[str, str]
    eos_ids: tuple[int, ...]
    template: str | None


def read_tokenizer_folder(path: Path) -> TokenizerFolder:
    """Raises CheckpointError where a file is missing or damaged."""
    file = path / "tokenizer.json"
    if not file.is_file():
        raise CheckpointError(f"a checkpoint folder must hold tokenizer.json, and {path} does not")
    text = json.dumps(_read_json(file))
    try:
        backend = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(f"{file} must be a tokenizer the library can read, got: {error}") from error
    config = {**_read_json(path / "special_tokens_map.json"), **_read_json(path / "tokenizer_config.json")}
    named = {name: spelling for name in _NAMED_TOKENS if (spelling := _spelling(config.get(name))) is not None}
    return TokenizerFolder(backend, named, _eos_ids(path), _template(path, config))


def read_gguf_metadata(path: Path) -> dict[str, object]:
    """The tokenizer's part of a GGUF file's metadata. Raises CheckpointError."""
    return {name: value for name, value in read_gguf_header(path).metadata.items() if name.startswith("tokenizer.")}


def _read_json(file: Path) -> dict[str, Any]:
    """The object in `file`; empty where there is no such file."""
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_bytes())
    except ValueError as error:
        raise CheckpointError(f"{file} must hold JSON, got: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} must hold a JSON object, got {type(value).__name__}")
    return value


def _spelling(value: object) -> str | None:
    """A special token is written as its text, or as an object with it."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _eos_ids(path: Path) -> tuple[int, ...]:
    for name in ("generation_config.json", "config.json"):
        value = _read_json(path / name).get("eos_token_id")
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(index, int) and not isinstance(index, bool) and index >= 0 for index in ids):
            raise CheckpointError(f"{path / name}: eos_token_id must be a token id or a list of them, got {value!r}")
        return tuple(ids)
    return ()


def _template(path: Path, config: dict[str, Any]) -> str | None:
    """A file of its own goes before tokenizer_config.json; of several named ones it is `default`."""
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    value = config.get("chat_template")
    if isinstance(value, list):
        value = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}.get("default")
    return value if isinstance(value, str) else None
