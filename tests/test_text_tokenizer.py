"""Tokenizers: ids against the reference run and against transformers, both file formats, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from twinspark.actors.errors import CheckpointError
from twinspark.deploy.gguf_tokenizer import build_tokenizer
from twinspark.deploy.tokenizer import Tokenizer, open_tokenizer
from twinspark.deploy.tokenizer_files import read_gguf_metadata

MIXED_TEXTS = [
    "a 1234567 b 3.14 x10 ½ ² ٣ 12:34:56",
    "  spaces   and\ttabs\n\n\nnewlines \r\n end  ",
    "don't we'll I'M they'VE",
    "naïve café e\u0301 Ünïcödé 中文字符 日本語 한국어 עברית العربية",
    "👍🏽 👨‍👩‍👧 🇫🇷 \u200b \ufeff \u00a0 \u2003",
    "def f(x):\n    return x**2 # <|im_end|> <|endoftext|><repo_name>",
    "<|im_start|>user\nhello<|im_end|> <|im_start|>",
    "",
    "\x00\x01\x7f\x80\xff",
]


@pytest.fixture(scope="module")
def metadata(demo_model: Path) -> dict[str, object]:
    return read_gguf_metadata(demo_model)


@pytest.fixture(scope="module")
def tokenizer(metadata: dict[str, object]) -> Tokenizer:
    return Tokenizer.from_gguf(metadata)


@pytest.fixture(scope="module")
def reference(demo_model: Path) -> Any:
    """transformers' own reading of the file, with the Digits step that it leaves out put back."""
    transformers = pytest.importorskip("transformers")
    hf = transformers.AutoTokenizer.from_pretrained(demo_model.parent, gguf_file=demo_model.name)
    backend = hf.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return hf


@pytest.fixture(scope="module")
def eval_texts(shared: Path) -> list[str]:
    files = sorted((shared / "eval").glob("*.jsonl"))
    return [turn for file in files for line in file.open(encoding="utf-8") for turn in json.loads(line)["turns"]]


def test_chat_and_decode_reproduce_the_reference_run(tokenizer: Tokenizer, shared: Path) -> None:
    entries = json.loads((shared / "heads/smollm2-135m-dspark/expected_greedy.json").read_text(encoding="utf-8"))
    assert len(entries) == 4
    for entry in entries:
        assert tokenizer.chat([{"role": "user", "content": entry["prompt"]}]) == entry["prompt_ids"]
        assert tokenizer.decode(entry["greedy_ids"]) == entry["text"]


def test_ids_of_the_demo_model(tokenizer: Tokenizer) -> None:
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.vocab_size) == (1, (2,), 49152)
    assert tokenizer.special_ids == frozenset(range(17))
    assert tokenizer.is_byte_level


def test_encode_equals_transformers(tokenizer: Tokenizer, reference: Any, eval_texts: list[str]) -> None:
    texts = eval_texts + MIXED_TEXTS
    assert len(texts) > 200
    assert [tokenizer.encode(text) for text in texts] == reference(texts, add_special_tokens=False)["input_ids"]


def test_the_digits_step_matters(reference: Any, tokenizer: Tokenizer, eval_texts: list[str]) -> None:
    """The parity above would prove little if these texts held no digits that merge."""
    backend = reference.backend_tokenizer
    kept = backend.pre_tokenizer
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    try:
        assert any(tokenizer.encode(text) != backend.encode(text).ids for text in eval_texts)
    finally:
        backend.pre_tokenizer = kept


def test_chat_equals_transformers(tokenizer: Tokenizer, reference: Any) -> None:
    for messages in (
        [{"role": "user", "content": "hi 42"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " ünï "}],
        [{"role": r, "content": c} for r, c in (("user", "a"), ("assistant", "b"), ("user", "c"))],
    ):
        expected = reference.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
        assert tokenizer.chat(messages) == expected


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text())
def test_decode_undoes_encode(tokenizer: Tokenizer, text: str) -> None:
    # The demo vocabulary lacks some single bytes (0xF1, the rarest planes): BPE drops those, in transformers too.
    assume(set(text.encode("utf-8")) <= set(b"".join(map(tokenizer.token_bytes, range(17, 300)))))
    plain = tokenizer.encode(text, parse_special=False)
    assert tokenizer.decode(plain) == text
    assert b"".join(map(tokenizer.token_bytes, plain)).decode("utf-8") == text


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=st.lists(st.integers(0, 49151) | st.integers(0, 300), max_size=20))
def test_token_bytes_are_what_decode_joins(tokenizer: Tokenizer, ids: list[int]) -> None:
    joined = b"".join(map(tokenizer.token_bytes, ids)).decode("utf-8", "replace")
    assert joined == tokenizer.decode(ids, skip_special=False)


def test_special_tokens_in_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<|im_end|>") == [2]
    plain = tokenizer.encode("<|im_end|>", parse_special=False)
    assert 2 not in plain
    assert tokenizer.decode(plain) == "<|im_end|>"
    assert tokenizer.decode([1, *plain, 2], skip_special=False) == "<|im_start|><|im_end|><|im_end|>"


def test_without_a_template_the_default_is_chatml(metadata: dict[str, object], tokenizer: Tokenizer) -> None:
    bare = {key: value for key, value in metadata.items() if key != "tokenizer.chat_template"}
    for messages in ([{"role": "user", "content": "hi"}], [{"role": "system", "content": "s"}]):
        assert Tokenizer.from_gguf(bare).chat(messages) == tokenizer.chat(messages)
    other = Tokenizer.from_gguf({**bare, "tokenizer.ggml.pre": "gpt-2"})
    ids = other.chat([{"role": "user", "content": "hi"}])
    assert other.decode(ids, skip_special=False) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def _small_gguf(**changes: object) -> dict[str, object]:
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "12", "123", "1234", "ab", "<s>", "</s>", "<think>"]
    values: dict[str, object] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [1] * (len(tokens) - 3) + [3, 3, 4],
        "merges": ["1 2", "12 3", "123 4", "a b"],
        "bos_token_id": tokens.index("<s>"),
        "eos_token_id": tokens.index("</s>"),
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (values | changes).items()}


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["1234"]),
        ("smollm", ["1", "2", "3", "4"]),
        ("llama-bpe", ["123", "4"]),
        ("qwen2", ["1", "2", "3", "4"]),
    ],
)
def test_each_pre_tokenizer_cuts_digits_its_way(pre: str, pieces: list[str]) -> None:
    tokenizer = Tokenizer.from_gguf(_small_gguf(pre=pre))
    assert [tokenizer.token_text(index) for index in tokenizer.encode("1234")] == pieces
    assert tokenizer.decode(tokenizer.encode(" aé\n\n 12, IT'S ab 中 ")) == " aé\n\n 12, IT'S ab 中 "


def test_qwen2_normalises_and_gpt2_does_not() -> None:
    text = "e\u0301"
    assert Tokenizer.from_gguf(_small_gguf(pre="qwen2")).decode(
        Tokenizer.from_gguf(_small_gguf(pre="qwen2")).encode(text)
    ) == ("\u00e9")
    gpt2 = Tokenizer.from_gguf(_small_gguf())
    assert gpt2.decode(gpt2.encode(text)) == text


def test_bos_is_added_where_the_file_or_the_kind_says_so() -> None:
    bos_id = Tokenizer.from_gguf(_small_gguf()).bos_id
    for changes, expected in (
        ({}, False),
        ({"add_bos_token": True}, True),
        ({"pre": "llama-bpe"}, True),
        ({"pre": "llama-bpe", "add_bos_token": False}, False),
    ):
        tokenizer = Tokenizer.from_gguf(_small_gguf(**changes))
        assert (tokenizer.encode("ab", add_special=True)[0] == bos_id) is expected
        assert tokenizer.encode("ab")[0] != bos_id


def test_user_defined_tokens_are_whole_but_not_special() -> None:
    tokenizer = Tokenizer.from_gguf(_small_gguf())
    ids = tokenizer.encode("<think>ab</s>")
    assert [tokenizer.token_text(index) for index in ids] == ["<think>", "ab", "</s>"]
    assert tokenizer.decode(ids) == "<think>ab"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "llama"}, "tokenizer.ggml.model must be 'gpt2'.*'llama'"),
        ({"pre": "tekken"}, "tokenizer.ggml.pre must be one of gpt-2, llama-bpe, qwen2, smollm, got 'tekken'"),
        ({"pre": None}, "tokenizer.ggml.pre must be one of"),
        ({"tokens": None}, "tokenizer.ggml.tokens must be a list"),
        ({"tokens": ["a", "a"]}, "distinct, got 1 repeated"),
        ({"merges": ["a zz"]}, "must join two tokens into a third, got 'a zz'"),
        ({"merges": ["ab"]}, "must join two tokens into a third, got 'ab'"),
        ({"token_type": [1, 1]}, "tokenizer.ggml.token_type must be a list of"),
        ({"eos_token_id": 10**6}, "tokenizer.ggml.eos_token_id must be an integer from 0 to"),
    ],
)
def test_a_doubtful_gguf_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        Tokenizer.from_gguf(_small_gguf(**changes))


def test_a_folder_gives_the_same_ids(
    tmp_path: Path, reference: Any, tokenizer: Tokenizer, eval_texts: list[str]
) -> None:
    reference.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    folder = open_tokenizer(str(tmp_path))
    assert (folder.bos_id, folder.eos_ids, folder.vocab_size) == (1, (0, 2), 49152)
    assert folder.is_byte_level
    messages = [{"role": "user", "content": "What is 1 + 1?"}]
    assert folder.chat(messages) == tokenizer.chat(messages)
    for text in eval_texts[:20] + MIXED_TEXTS:
        assert folder.encode(text) == tokenizer.encode(text)


def test_saved_truncation_and_padding_are_off(tmp_path: Path) -> None:
    backend = build_tokenizer(_small_gguf())
    backend.enable_truncation(2)
    backend.enable_padding(length=50)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert len(open_tokenizer(tmp_path).encode("1 2 3 4")) == 7


def test_lone_surrogates_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="lone surrogate at character 2"):
        tokenizer.encode("ab\ud800")


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"must hold tokenizer\.json"):
        open_tokenizer(str(tmp_path))
    with pytest.raises(CheckpointError, match=r"folder or a \.gguf file"):
        open_tokenizer(str(tmp_path / "missing.gguf"))
    (tmp_path / "bad.gguf").write_bytes(b"not a gguf file at all, really")
    with pytest.raises(CheckpointError, match="no GGUF file"):
        open_tokenizer(str(tmp_path / "bad.gguf"))
    (tmp_path / "short.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match="truncated or damaged"):
        open_tokenizer(str(tmp_path / "short.gguf"))
    for content, words in (("{", "must hold JSON"), ("[]", "JSON object"), ('{"a": 1}', "the library can read")):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(CheckpointError, match=words):
            open_tokenizer(str(tmp_path))
