"""Prompts from an argument, standard input and files, and every way in which a line can be wrong."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from twinspark.deploy.prompts import Prompt, PromptFileError, encode_prompts, prompt_from_stdin, prompts_from_file
from twinspark.deploy.tokenizer import Tokenizer, open_tokenizer


@pytest.fixture(scope="module")
def smol(demo_model: Path) -> Tokenizer:
    return open_tokenizer(demo_model)


def file_of(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_every_form_of_line(tmp_path: Path) -> None:
    path = file_of(
        tmp_path,
        '\ufeff{"messages": [{"role": "user", "content": "one"}]}',
        "",
        '{"prompt": "two", "id": 7}\r',
        '{"turns": ["three", "later"]}',
        '"four"',
        "",
    )
    expected = [
        Prompt(messages=({"role": "user", "content": "one"},)),
        Prompt(text="two"),
        Prompt(text="three"),
        Prompt(text="four"),
    ]
    assert prompts_from_file(path) == expected


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "must be JSON: .* at column"),
        ("3", "must be one of a JSON string"),
        ("{}", "got an object with none of these"),
        ('{"prompt": "a", "turns": ["b"]}', "got an object with prompt and turns"),
        ('{"prompt": 3}', "prompt must hold text, got int"),
        ('{"turns": []}', "turns must be a list of at least one string"),
        ('{"turns": [3]}', "turns must hold text, got int"),
        ('{"messages": []}', "at least one message"),
        ('{"messages": [{"role": "user"}]}', r"messages\[0\].content must be text"),
        ('""', "must not be empty"),
        ('{"prompt": ""}', "must not be empty"),
        (r'"\ud800"', "lone surrogate"),
        (r'{"messages": [{"role": "user", "content": "\udc00"}]}', "lone surrogate"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(PromptFileError, match=f"line 3: .*{words}") as caught:
        prompts_from_file(file_of(tmp_path, '"good"', "", line, '"good"'))
    assert len(caught.value.errors) == 1


def test_every_bad_line_has_its_own_error(tmp_path: Path) -> None:
    with pytest.raises(PromptFileError, match="and 2 more bad lines") as caught:
        prompts_from_file(file_of(tmp_path, "{", '"good"', "[", "1", "2", "{}"))
    assert [error.split("line ")[1].split(":")[0] for error in caught.value.errors] == ["1", "3", "4", "5", "6"]
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "latin1.jsonl"
    path.write_bytes(b'"good"\n"caf\xe9"\n')
    with pytest.raises(PromptFileError, match="line 2: must be UTF-8, got byte 0xe9 at offset 4"):
        prompts_from_file(path)


def test_no_prompt_at_all(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one prompt"):
        prompts_from_file(file_of(tmp_path, "", ""))
    with pytest.raises(ValueError, match="must be readable"):
        prompts_from_file(tmp_path / "missing.jsonl")


def test_standard_input_is_one_prompt() -> None:
    assert prompt_from_stdin(io.StringIO("a\nb\n")) == Prompt(text="a\nb")
    with pytest.raises(ValueError, match="must not be empty"):
        prompt_from_stdin(io.StringIO("\n"))


def test_a_prompt_is_one_thing() -> None:
    for arguments in ({}, {"text": "a", "messages": ({"role": "user", "content": "b"},)}):
        with pytest.raises(ValueError, match="either text or messages"):
            Prompt(**arguments)  # type: ignore[arg-type]


def test_encoding(smol: Tokenizer) -> None:
    message: dict[str, object] = {"role": "user", "content": "hi 12"}
    prompts = [Prompt(text="hi 12"), Prompt(messages=(message,))]
    assert encode_prompts(smol, prompts, raw=False) == [smol.chat([message])] * 2
    assert encode_prompts(smol, prompts[:1], raw=True) == [smol.encode("hi 12")]
    with pytest.raises(ValueError, match="prompt 2: a raw prompt must be text, got messages"):
        encode_prompts(smol, prompts, raw=True)


def test_the_evaluation_sets_can_be_read(shared: Path) -> None:
    for file in sorted((shared / "eval").glob("*.jsonl")):
        assert len(prompts_from_file(file)) == 60
