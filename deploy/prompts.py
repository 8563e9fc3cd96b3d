"""Prompts as people give them (an argument, standard input, a jsonl file) to prompts as token ids.

Lines of a jsonl file: {"messages": [...]} as in OpenAI's API, {"prompt": "..."}, {"turns": ["...", ...]} (evaluation
sets; the first turn is the prompt), or a plain JSON string. Other keys are labels and ignored; blank lines too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from twinspark.deploy.chat_template import checked_messages
from twinspark.deploy.tokenizer import Tokenizer

_SHOWN_ERRORS = 3
_LINE_FORMS = 'a JSON string, {"messages": [...]}, {"prompt": "..."} or {"turns": ["..."]}'


class PromptFileError(ValueError):
    """A prompt file has bad lines: one entry of `errors` for each, naming its line."""

    def __init__(self, errors: Sequence[str]) -> None:
        shown = "; ".join(errors[:_SHOWN_ERRORS])
        more = len(errors) - _SHOWN_ERRORS
        super().__init__(shown + (f"; and {more} more bad lines" if more > 0 else ""))
        self.errors = tuple(errors)


@dataclass(frozen=True)
class Prompt:
    """Either a lone `text` (a user's message, or raw text) or a conversation of `messages`."""

    text: str | None = None
    messages: tuple[dict[str, object], ...] | None = None

    def __post_init__(self) -> None:
        if (self.text is None) == (self.messages is None):
            raise ValueError("a prompt must have either text or messages")
        if self.text is not None:
            _check_text(self.text)
        else:
            for message in checked_messages(self.messages):
                _check_unicode(str(message["content"]))


def prompt_from_stdin(stream: TextIO | None) -> Prompt:
    """All of standard input as one prompt, without the newline that ends it. Raises ValueError where it is closed."""
    if stream is None:
        raise ValueError("a prompt must come as an argument, by --file or on standard input, got none of them")
    return Prompt(text=stream.read().removesuffix("\n").removesuffix("\r"))


def prompts_from_file(path: Path) -> list[Prompt]:
    """The prompts of a jsonl file. Raises PromptFileError with every bad line, ValueError if there is no prompt."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"the prompt file must be readable: {error}") from error
    prompts, errors = [], []
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            prompts.append(_prompt_of_line(line))
        except ValueError as error:
            errors.append(f"{path}, line {number}: {error}")
    if errors:
        raise PromptFileError(errors)
    if not prompts:
        raise ValueError(f"{path} must hold at least one prompt, got none")
    return prompts


def encode_prompts(tokenizer: Tokenizer, prompts: Sequence[Prompt], raw: bool) -> list[list[int]]:
    """Token ids of each prompt. `raw` sends text as it is (with the checkpoint's BOS, if it has one), else as a chat.

    Raises ValueError naming the prompt (counted from 1) that cannot be encoded so.
    """
    encoded = []
    for number, prompt in enumerate(prompts, start=1):
        try:
            encoded.append(_encode(tokenizer, prompt, raw))
        except ValueError as error:
            raise ValueError(f"prompt {number}: {error}") from error
    return encoded


def _encode(tokenizer: Tokenizer, prompt: Prompt, raw: bool) -> list[int]:
    if raw:
        if prompt.text is None:
            raise ValueError("a raw prompt must be text, got messages")
        ids = tokenizer.encode(prompt.text, add_special=True)
    else:
        ids = tokenizer.chat(prompt.messages or [{"role": "user", "content": prompt.text}])
    if not ids:
        raise ValueError("a prompt must have at least one token, got none")
    return ids


def _prompt_of_line(line: bytes) -> Prompt:
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"must be UTF-8, got byte 0x{line[error.start]:02x} at offset {error.start}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"must be JSON: {error.msg} at column {error.colno}") from error
    if isinstance(value, str):
        return Prompt(text=value)
    present = [key for key in ("messages", "prompt", "turns") if isinstance(value, dict) and key in value]
    if len(present) != 1:
        got = f"an object with {' and '.join(present) or 'none of these'}" if isinstance(value, dict) else repr(value)
        raise ValueError(f"must be one of {_LINE_FORMS}, got {got[:80]}")
    key, content = present[0], value[present[0]]
    if key == "messages":
        return Prompt(messages=tuple(checked_messages(content)))
    if key == "turns":
        if not isinstance(content, list) or not content:
            raise ValueError("turns must be a list of at least one string")
        content = content[0]
    if not isinstance(content, str):
        raise ValueError(f"{key} must hold text, got {type(content).__name__}")
    return Prompt(text=content)


def _check_text(text: str) -> None:
    if not text:
        raise ValueError("a prompt must not be empty")
    _check_unicode(text)


def _check_unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"a prompt must be valid Unicode, got a lone surrogate at character {error.start}") from error
