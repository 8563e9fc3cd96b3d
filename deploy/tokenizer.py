"""A checkpoint's text side: text and chat messages to token ids, and back. Knows where a checkpoint keeps it.

Ids are those of Hugging Face's tokenizer for the same checkpoint, with one difference on purpose: a special token
spelled out in a chat message stays text. Spaces around punctuation are never cleaned up (an old option there).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from twinspark.actors.errors import CheckpointError
from twinspark.deploy.chat_template import CHATML, SMOLLM2_CHATML, ChatTemplate, Message, checked_messages
from twinspark.deploy.gguf_tokenizer import build_tokenizer, gguf_token_id, gguf_tokens
from twinspark.deploy.special_text import SpecialText
from twinspark.deploy.tokenizer_files import read_gguf_metadata, read_tokenizer_folder

# GGUF names the ids that end a turn separately; any of them ends the output.
_GGUF_ENDS = ("eos", "eot", "eom")
_GGUF_NAMED = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


class Tokenizer:
    """Use `from_gguf`, `from_directory` or `open_tokenizer`. Safe to share between threads."""

    def __init__(
        self, backend: Any, *, eos_ids: Iterable[int], bos_id: int | None, template: ChatTemplate | None = None
    ) -> None:
        # A checkpoint may have been saved with these on; they would cut or fill prompts silently.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._template = template
        self.eos_ids: tuple[int, ...] = tuple(sorted(set(eos_ids)))
        self.bos_id = bos_id
        added = backend.get_added_tokens_decoder()
        self._added: dict[int, str] = {index: token.content for index, token in added.items()}
        self.special_ids: frozenset[int] = frozenset(index for index, token in added.items() if token.special)
        self._special_text = SpecialText(self._added[index] for index in self.special_ids)
        decoder = json.loads(backend.to_str())["decoder"] or {}
        steps = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
        self.is_byte_level: bool = [step.get("type") for step in steps] == ["ByteLevel"]

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """From a GGUF file's metadata, as plain Python values under GGUF's key names. Raises CheckpointError."""
        tokens = gguf_tokens(metadata)
        backend = build_tokenizer(metadata)
        ids = {name: gguf_token_id(metadata, name) for name in (*_GGUF_NAMED, *_GGUF_ENDS)}
        named = {hf_name: tokens[index] for name, hf_name in _GGUF_NAMED.items() if (index := ids[name]) is not None}
        source = metadata.get("tokenizer.chat_template")
        if source is None and {"<|im_start|>", "<|im_end|>"} <= set(tokens):
            source = SMOLLM2_CHATML if metadata.get("tokenizer.ggml.pre") == "smollm" else CHATML
        return cls(
            backend,
            eos_ids=[index for name in _GGUF_ENDS if (index := ids[name]) is not None],
            bos_id=ids["bos"],
            template=ChatTemplate(source, named) if isinstance(source, str) else None,
        )

    @classmethod
    def from_directory(cls, path: Path) -> Tokenizer:
        """From a checkpoint folder with tokenizer.json and its companions. Raises CheckpointError."""
        files = read_tokenizer_folder(path)
        named = {name: files.backend.token_to_id(token) for name, token in files.special_tokens.items()}
        eos_ids = set(files.eos_ids)
        if named.get("eos_token") is not None:
            eos_ids.add(named["eos_token"])
        template = None if files.template is None else ChatTemplate(files.template, files.special_tokens)
        return cls(files.backend, eos_ids=eos_ids, bos_id=named.get("bos_token"), template=template)

    @property
    def vocab_size(self) -> int:
        """Ids that have a token. A model's vocabulary may be padded beyond it; such ids decode to nothing."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @property
    def identity(self) -> str:
        """A hash: two tokenizers with the same one give the same ids."""
        return hashlib.sha256(self._backend.to_str().encode()).hexdigest()

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def encode(self, text: str, add_special: bool = False, *, parse_special: bool = True) -> list[int]:
        """Token ids of `text`. `add_special` adds what the checkpoint puts around a sequence (often a BOS).

        With `parse_special`, special tokens spelled out in the text become those tokens, as Hugging Face has it. Raises
        ValueError for text that is not valid Unicode (a lone surrogate).
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"text must be valid Unicode, got a lone surrogate at character {error.start}") from error
        backend = self._backend if parse_special else self._plain_backend
        return list(backend.encode(text, add_special_tokens=add_special).ids)

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        return str(self._backend.decode([int(index) for index in ids], skip_special_tokens=skip_special))

    def token_text(self, token_id: int) -> str:
        """The vocabulary's entry, in the tokenizer's own spelling; empty for an id without one."""
        return self._backend.id_to_token(token_id) or ""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token of a byte-level tokenizer stands for; none for an id without a token. Raises ValueError."""
        if not self.is_byte_level:
            raise ValueError("token_bytes needs a byte-level tokenizer, and this one is of another kind")
        if token_id < 0:
            raise ValueError(f"a token id must not be negative, got {token_id}")
        token = self.token_text(token_id)
        try:
            return bytes(_BYTE_OF_CHAR[char] for char in token)
        except KeyError:
            # Only added tokens hold characters that stand for no byte; the library's decoder takes them as they are.
            return token.encode("utf-8")

    def chat(self, messages: Sequence[Message], variables: Mapping[str, object] | None = None) -> list[int]:
        """The prompt's ids by the checkpoint's chat template, up to where the assistant's answer begins.

        As in Hugging Face, the rendered template is encoded with its special tokens parsed and no BOS added (a template
        writes its own). Unlike there, a special token that a *message* spells out stays text. Raises ValueError.
        """
        if self._template is None:
            raise ValueError("a chat needs a checkpoint with a chat template, and this one has none: send raw text")
        broken, mark = self._special_text.break_up(checked_messages(messages))
        text = self._template.render(broken, variables)
        if mark is None:
            return self.encode(text)
        ids: list[int] = []
        for piece, is_special in self._special_text.segments(text, mark):
            ids += self.encode(piece, parse_special=is_special)
        return ids

    @cached_property
    def _plain_backend(self) -> Any:
        # A second copy, because the switch is a property of the whole tokenizer and others may be encoding just now.
        backend = tokenizers.Tokenizer.from_str(self._backend.to_str())
        backend.encode_special_tokens = True
        return backend


def open_tokenizer(model_path: str | Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder or a .gguf file. Raises CheckpointError."""
    path = Path(model_path)
    if path.is_dir():
        return Tokenizer.from_directory(path)
    if path.is_file() and path.suffix == ".gguf":
        return Tokenizer.from_gguf(read_gguf_metadata(path))
    raise CheckpointError(f"a model must be a checkpoint folder or a .gguf file, got {model_path}")


def _byte_characters() -> dict[str, int]:
    """Byte-level BPE's alphabet (GPT-2): visible Latin-1 stands for itself, the others follow from U+0100."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + rank): byte for rank, byte in enumerate(hidden)}


_BYTE_OF_CHAR = _byte_characters()
