"""Text that comes in rounds: whole characters only, the same as decoding everything at once, ended by stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

from twinspark.deploy.detokenize import Detokenizer
from twinspark.deploy.stops import StopMatcher, checked_stops
from twinspark.deploy.text_stream import TextStream
from twinspark.deploy.tokenizer import Tokenizer, open_tokenizer

COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def smol(demo_model: Path) -> Tokenizer:
    return open_tokenizer(demo_model)


@pytest.fixture(scope="module", params=[1, 2])
def byte_fallback(request: pytest.FixtureRequest) -> Tokenizer:
    """The sentencepiece kind: words with a mark for the space before them, single bytes for all else."""
    words = ["<unk>", "▁", "▁a", "b", "▁▁", "中", "é", "▁the", "\ufffd", "<s>"]
    vocab = {word: index for index, word in enumerate([*words, *(f"<0x{byte:02X}>" for byte in range(256))])}
    backend = Backend(models.BPE(vocab, [], byte_fallback=True, unk_token="<unk>"))
    steps = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", request.param, 0),
    ]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens([AddedToken("<s>", special=True)])
    return Tokenizer(backend, eos_ids=[], bos_id=9)


@pytest.fixture(scope="module")
def bytes_and_more() -> Tokenizer:
    """Byte-level, but with another step behind it, so that single tokens' bytes are not the whole story."""
    words = ["a", "Ġ", "x", "ä", "\u00b8", "Ń", "Ã", "©", "ÿ", "<s>"]
    backend = Backend(models.BPE({word: index for index, word in enumerate(words)}, []))
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("x", "yy")])
    backend.add_special_tokens([AddedToken("<s>", special=True)])
    return Tokenizer(backend, eos_ids=[], bos_id=9)


@pytest.fixture(scope="module")
def metaspace() -> Tokenizer:
    words = ["▁", "▁a", "b", "▁▁", "▁the", "x▁", "<s>"]
    backend = Backend(models.BPE({word: index for index, word in enumerate(words)}, []))
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens([AddedToken("<s>", special=True)])
    return Tokenizer(backend, eos_ids=[], bos_id=6)


def rounds_of(ids: Sequence[int], cuts: Sequence[int]) -> list[list[int]]:
    """`ids` in rounds whose lengths are `cuts`, used over and over."""
    rounds, start, turn = [], 0, 0
    while start < len(ids):
        length = cuts[turn % len(cuts)]
        rounds.append(list(ids[start : start + length]))
        start, turn = start + length, turn + 1
    return rounds


CUTS = st.lists(st.integers(1, 8), min_size=1, max_size=5)
TEXTS = st.text(max_size=40) | st.text(st.sampled_from("aé中👍🏽\u200d\n 12"), max_size=40)
SMOL_IDS = st.lists(st.integers(0, 49151) | st.integers(0, 300), max_size=40)  # the first 300 hold specials and bytes
SMALL_IDS = st.lists(
    st.integers(0, 9) | st.sampled_from([9 + 1 + b for b in b"a\xc3\xa9\xe4\xb8\xad\xff "]), max_size=30
)


def check_incremental(tokenizer: Tokenizer, ids: list[int], cuts: list[int], skip_special: bool) -> None:
    detokenizer = Detokenizer(tokenizer, skip_special=skip_special)
    parts = [detokenizer.push(part) for part in rounds_of(ids, cuts)]
    assert "".join([*parts, detokenizer.finish()]) == tokenizer.decode(ids, skip_special=skip_special)


@COMMON
@given(text=TEXTS, cuts=CUTS)
def test_rounds_of_a_text_are_the_text(smol: Tokenizer, text: str, cuts: list[int]) -> None:
    # The demo vocabulary lacks some single bytes (0xF1, the rarest planes): BPE drops those, in transformers too.
    assume(set(text.encode("utf-8")) <= set(b"".join(map(smol.token_bytes, range(17, 300)))))
    detokenizer = Detokenizer(smol)
    parts = [detokenizer.push(part) for part in rounds_of(smol.encode(text, parse_special=False), cuts)]
    # Valid text never needs finish(), and never shows a replacement character of its own making.
    assert "".join(parts) == text
    assert detokenizer.finish() == ""


@COMMON
@given(ids=SMOL_IDS, cuts=CUTS, skip_special=st.booleans())
def test_rounds_of_any_ids_are_their_decode(
    smol: Tokenizer, ids: list[int], cuts: list[int], skip_special: bool
) -> None:
    check_incremental(smol, ids, cuts, skip_special)


@COMMON
@given(ids=SMALL_IDS, cuts=CUTS, skip_special=st.booleans())
def test_rounds_of_a_byte_fallback_tokenizer(
    byte_fallback: Tokenizer, ids: list[int], cuts: list[int], skip_special: bool
) -> None:
    check_incremental(byte_fallback, ids, cuts, skip_special)


@COMMON
@given(ids=st.lists(st.integers(0, 6), max_size=30), cuts=CUTS, skip_special=st.booleans())
def test_rounds_of_a_metaspace_tokenizer(
    metaspace: Tokenizer, ids: list[int], cuts: list[int], skip_special: bool
) -> None:
    check_incremental(metaspace, ids, cuts, skip_special)


@COMMON
@given(ids=st.lists(st.integers(0, 9), max_size=30), cuts=CUTS, skip_special=st.booleans())
def test_rounds_of_a_byte_level_tokenizer_with_more_steps(
    bytes_and_more: Tokenizer, ids: list[int], cuts: list[int], skip_special: bool
) -> None:
    assert not bytes_and_more.is_byte_level
    check_incremental(bytes_and_more, ids, cuts, skip_special)


def test_a_character_waits_for_its_last_byte(smol: Tokenizer) -> None:
    byte_ids = {smol.token_bytes(index): index for index in range(17, 300)}
    ids = [byte_ids[bytes([byte])] for byte in "👍".encode()]
    detokenizer = Detokenizer(smol)
    assert [detokenizer.push([index]) for index in ids] == ["", "", "", "👍"]
    assert detokenizer.push(ids[:2]) == ""
    assert detokenizer.finish() == "\ufffd"


def test_pieces_name_the_token_that_completed_them(smol: Tokenizer) -> None:
    byte_ids = {smol.token_bytes(index): index for index in range(17, 300)}
    ids = [byte_ids[b"x"], *(byte_ids[bytes([byte])] for byte in "é".encode()), 2, byte_ids[b"y"], byte_ids[b"\xc3"]]
    detokenizer = Detokenizer(smol)
    pieces = detokenizer.push_pieces(ids[:2]) + detokenizer.push_pieces(ids[2:]) + detokenizer.finish_pieces()
    assert [(piece.text, piece.num_tokens) for piece in pieces] == [("x", 1), ("é", 3), ("y", 5), ("\ufffd", 6)]


def test_a_window_decoder_does_not_hold_back_plain_text(byte_fallback: Tokenizer) -> None:
    detokenizer = Detokenizer(byte_fallback)
    assert [detokenizer.push([index]) for index in (9, 7, 3, 7, 1, 2)] == ["", "the", "b", " the", " ", " a"]


# Stop strings, against a search of the whole text.


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, int] | None:
    """(start, end) of the match that ends first, the longest of those: by looking at every end, in order."""
    for end in range(1, len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return end - max(lengths), end
    return None


STOPS = st.lists(st.text(st.sampled_from("ab"), min_size=2, max_size=6) | st.sampled_from(["b", "é\n"]), max_size=4)


@COMMON
@given(parts=st.lists(st.text(st.sampled_from("aab\né"), max_size=6), max_size=12), stops=STOPS)
@example(parts=["a", "aa", "bx"], stops=["aab"])
@example(parts=["abac", "abab"], stops=["abab", "cabb"])
@example(parts=["xabcd"], stops=["bc", "abc", "abcd"])
def test_stops_equal_a_search_of_the_whole_text(parts: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    results = [matcher.push(part, number) for number, part in enumerate(parts, start=1)]
    shown = "".join(result.text for result in [*results, matcher.finish()])
    text = "".join(parts)
    found = first_stop(text, stops)
    if found is None:
        assert shown == text
        assert not any(result.stopped for result in results)
        return
    start, end = found
    assert shown == text[:start]
    ends = [len("".join(parts[:number])) for number in range(1, len(parts) + 1)]
    kept = 1 + next(index for index, last in enumerate(ends) if last >= end)
    assert [result.stopped for result in results] == [number >= kept for number in range(1, len(parts) + 1)]
    assert {result.num_tokens_kept for result in results[kept - 1 :]} == {kept}
    assert {result.stop for result in results[kept - 1 :]} == {text[start:end]}


@COMMON
@given(text=st.text(st.sampled_from("ab\n"), max_size=30), stops=STOPS)
def test_only_a_possible_beginning_is_held_back(text: str, stops: list[str]) -> None:
    if first_stop(text, stops) is not None:
        return
    shown = StopMatcher(stops).push(text, 1).text
    held = text[len(shown) :]
    beginnings = [text[start:] for start in range(len(text)) if any(s.startswith(text[start:]) for s in stops)]
    assert text == shown + held
    assert held == max(beginnings, key=len, default="")


@COMMON
@given(text=st.text(st.sampled_from("abé 👍1"), max_size=30), stops=STOPS, cuts=CUTS)
def test_streamed_stops_do_not_depend_on_the_rounds(
    smol: Tokenizer, text: str, stops: list[str], cuts: list[int]
) -> None:
    ids = smol.encode(text)
    stream = TextStream(smol, stops)
    pieces = [stream.push(part) for part in rounds_of(ids, cuts)]
    last = stream.finish()
    shown = "".join(piece.text for piece in [*pieces, last])
    found = first_stop(text, stops)
    if found is None:
        assert (shown, last.stopped, last.num_tokens_kept) == (text, False, len(ids))
        return
    start, end = found
    kept = next(n for n in range(1, len(ids) + 1) if len(smol.decode(ids[:n]).rstrip("\ufffd")) >= end)
    assert (shown, last.stopped, last.num_tokens_kept) == (text[:start], True, kept)
    assert next(piece for piece in pieces if piece.stopped).num_tokens_kept == kept


def test_a_stop_inside_a_token_cuts_the_rest_of_it(smol: Tokenizer) -> None:
    ids = smol.encode("say hello world")
    stream = TextStream(smol, ["ell"])
    piece = stream.push(ids)
    hello = next(n for n, index in enumerate(ids, start=1) if "hello" in smol.decode([index]))
    assert (piece.text, piece.stopped, piece.num_tokens_kept) == ("say h", True, hello)
    assert stream.push(ids) == stream.finish()
    assert stream.finish().num_tokens_kept == hello


def test_held_back_text_comes_at_the_end(smol: Tokenizer) -> None:
    stream = TextStream(smol, ["###END"])
    assert stream.push(smol.encode("done ###")).text == "done "
    last = stream.finish()
    assert (last.text, last.stopped) == ("###", False)


@pytest.mark.parametrize(
    ("stops", "words"),
    [
        ([""], "1 to 256 characters, got 0"),
        (["x" * 257], "1 to 256 characters, got 257"),
        (["x"] * 17, "at most 16 stop strings are taken, got 17"),
        ("abc", "must be a list of strings"),
        ([3], "must be a list of strings"),
    ],
)
def test_stop_strings_have_bounds(stops: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        StopMatcher(stops)


def test_the_largest_stop_strings_are_taken() -> None:
    assert len(checked_stops(["x" * 256] * 16)) == 16
