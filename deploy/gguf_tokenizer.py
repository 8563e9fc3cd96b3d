"""The tokenizer a GGUF file describes in its metadata, built from it: byte-level BPE only.

A GGUF file names its pre-tokenizer but does not hold it, so each name known here carries the splitting rule that models
of that name were trained with; other names are refused, since a wrong rule silently gives other ids. Takes metadata as
plain values and opens no file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from twinspark.actors.errors import CheckpointError

_TYPE_CONTROL = 3  # GGUF's token_type: a special token
_TYPE_USER_DEFINED = 4  # added to the vocabulary, ordinary text otherwise

# One rule, with digits in groups of up to three (Llama 3) or one by one (Qwen2). Both model families publish it in
# their tokenizer.json.
_CL100K_STYLE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class _Style:
    """How models of one pre-tokenizer name treat text before and after BPE."""

    pre_tokenizer: Callable[[], Any]
    nfc: bool = False
    ignore_merges: bool = False
    bos_by_default: bool = False


def _gpt2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> Any:
    # Without the Digits step about one text in eight gets other ids (measured against the model's own tokenizer).
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _cl100k_style(digits: str) -> Any:
    split = pre_tokenizers.Split(Regex(_CL100K_STYLE.format(digits=digits)), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_STYLES: dict[str, _Style] = {
    "gpt-2": _Style(_gpt2),
    "smollm": _Style(_smollm),
    "llama-bpe": _Style(lambda: _cl100k_style(r"\p{N}{1,3}"), ignore_merges=True, bos_by_default=True),
    "qwen2": _Style(lambda: _cl100k_style(r"\p{N}"), nfc=True),
}


def build_tokenizer(metadata: Mapping[str, object]) -> Any:
    """A `tokenizers.Tokenizer` with the file's ids. Raises CheckpointError for a kind or value it cannot be sure of."""
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2":
        raise CheckpointError(f"tokenizer.ggml.model must be 'gpt2' (byte-level BPE), got {kind!r}")
    style = _STYLES.get(pre) if isinstance(pre, str) else None
    if style is None:
        raise CheckpointError(f"tokenizer.ggml.pre must be one of {', '.join(sorted(_STYLES))}, got {pre!r}")
    tokens = gguf_tokens(metadata)
    ids = {token: index for index, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        raise CheckpointError(f"tokenizer.ggml.tokens must be distinct, got {len(tokens) - len(ids)} repeated")
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=_merges(metadata, ids), ignore_merges=style.ignore_merges))
    if style.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = style.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    _add_special_tokens(tokenizer, tokens, metadata)
    if metadata.get("tokenizer.ggml.add_bos_token", style.bos_by_default):
        _prepend_bos(tokenizer, tokens, metadata)
    return tokenizer


def gguf_tokens(metadata: Mapping[str, object]) -> list[str]:
    """The vocabulary in the order of ids."""
    return _strings(metadata, "tokenizer.ggml.tokens")


def gguf_token_id(metadata: Mapping[str, object], name: str) -> int | None:
    """The id under `tokenizer.ggml.<name>_token_id`, None where the file has none."""
    key = f"tokenizer.ggml.{name}_token_id"
    value = metadata.get(key)
    if value is None:
        return None
    num_tokens = len(gguf_tokens(metadata))
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < num_tokens:
        raise CheckpointError(f"{key} must be an integer from 0 to {num_tokens - 1}, got {value!r}")
    return value


def _strings(metadata: Mapping[str, object], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list | tuple) or not value:
        raise CheckpointError(f"{key} must be a list of strings, got {type(value).__name__}")
    if not all(isinstance(entry, str) for entry in value):
        raise CheckpointError(f"{key} must hold strings only")
    return list(value)


def _merges(metadata: Mapping[str, object], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Pairs in order of rank. Checked here because the library names no entry when one is wrong."""
    merges = []
    for merge in _strings(metadata, "tokenizer.ggml.merges"):
        left, space, right = merge.partition(" ")
        if not space or not {left, right, left + right} <= ids.keys():
            raise CheckpointError(f"tokenizer.ggml.merges must join two tokens into a third, got {merge!r}")
        merges.append((left, right))
    return merges


def _add_special_tokens(tokenizer: Any, tokens: list[str], metadata: Mapping[str, object]) -> None:
    """Marks what BPE must not cut: control tokens (skipped when decoding) and user-defined ones (ordinary text)."""
    types = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(types, list | tuple) or len(types) != len(tokens):
        raise CheckpointError(f"tokenizer.ggml.token_type must be a list of {len(tokens)} integers")
    control, user_defined = [], []
    for token, token_type in zip(tokens, types, strict=True):
        if token_type == _TYPE_CONTROL:
            control.append(AddedToken(token, special=True, normalized=False))
        elif token_type == _TYPE_USER_DEFINED:
            user_defined.append(AddedToken(token, special=False, normalized=False))
    tokenizer.add_special_tokens(control)
    tokenizer.add_tokens(user_defined)


def _prepend_bos(tokenizer: Any, tokens: list[str], metadata: Mapping[str, object]) -> None:
    bos_id = gguf_token_id(metadata, "bos")
    if bos_id is None:
        raise CheckpointError("tokenizer.ggml.bos_token_id must be given where a beginning token is to be added")
    bos = tokens[bos_id]
    tokenizer.post_processor = processors.TemplateProcessing(single=[bos, "$A"], special_tokens=[(bos, bos_id)])
