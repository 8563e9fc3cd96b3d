"""A checkpoint's chat template: messages to one prompt text. Knows no token ids.

The template is a program out of a downloaded file, so it runs in jinja2's immutable sandbox, with the few names that
such templates may count on (those Hugging Face documents).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from twinspark.actors.errors import CheckpointError

Message = Mapping[str, object]

# For a file that has ChatML's marks but no template.
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# SmolLM2 was tuned with this turn in front of every conversation that has no system turn of its own.
SMOLLM2_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
SMOLLM2_CHATML = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n" + SMOLLM2_SYSTEM + "<|im_end|>\n' }}{% endif %}"
) + CHATML


class ChatTemplate:
    """`special_tokens` are the strings a template may ask for by name (`bos_token`, `eos_token`, ...)."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise CheckpointError(f"the chat template must be a jinja2 template, got: {error}") from error
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Message], variables: Mapping[str, object] | None = None) -> str:
        """The prompt up to where the assistant's answer begins. `variables` are the template's own switches.

        Raises ValueError where the template does not take these messages.
        """
        values: dict[str, object] = {**self._special_tokens, "tools": None, "documents": None, **(variables or {})}
        values.update(messages=[dict(message) for message in messages], add_generation_prompt=True)
        try:
            return self._template.render(values)
        # A template is foreign code: what it trips over in the messages is reported, not shown as our fault.
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise ValueError(f"messages must be what the model's chat template takes: {_one_line(error)}") from error


def checked_messages(messages: object) -> list[dict[str, object]]:
    """`messages` in OpenAI's form, with a list of text parts joined by newlines. Raises ValueError."""
    if not isinstance(messages, list | tuple) or not messages:
        raise ValueError(f"messages must be a list of at least one message, got {_shown(messages)}")
    return [_checked_message(index, message) for index, message in enumerate(messages)]


def _checked_message(index: int, message: object) -> dict[str, object]:
    if not isinstance(message, Mapping):
        raise ValueError(f"messages[{index}] must be an object with role and content, got {_shown(message)}")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise ValueError(f"messages[{index}].role must be a name, got {_shown(role)}")
    if isinstance(content, list):
        content = "\n".join(_part_text(index, part) for part in content)
    if not isinstance(content, str):
        raise ValueError(f"messages[{index}].content must be text, got {_shown(content)}")
    return {**message, "content": content}


def _part_text(index: int, part: object) -> str:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise ValueError(f"messages[{index}].content must hold parts of type text only, got {_shown(part)}")
    return text


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _to_json(value: object, indent: int | None = None, **options: Any) -> str:
    # Not jinja2's own filter: that one escapes for HTML, and prompts are no HTML.
    return json.dumps(value, ensure_ascii=options.pop("ensure_ascii", False), indent=indent, **options)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; for a prompt it means nothing."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
