from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiny_tokenizer import write_tokenizer
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from stoker.engine.api import SamplingParams
from stoker.text.detokenizer import Detokenizer, TextStream
from stoker.text.tokenizer import Tokenizer


def sentencepiece() -> Tokenizer:
    """Byte fallback and a visible space character, as in Llama 2, Mistral and Gemma."""
    words = ["\u2581", "\u2581Hello", "a", "é", "語", "\u2581\u2581b"]
    vocab = {"<unk>": 0} | {f"<0x{byte:02X}>": 1 + byte for byte in range(256)}
    vocab |= {word: len(vocab) + index for index, word in enumerate(words)}
    backend = Backend(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(backend)


def wordpiece() -> Tokenizer:
    vocab = {word: index for index, word in enumerate(["[UNK]", "he", "##llo", "world", "!", "##s", "é"])}
    backend = Backend(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece(cleanup=False)
    return Tokenizer(backend)


def pieces(tokenizer: Tokenizer, token_ids: Sequence[int], **options: bool) -> list[str]:
    detokenizer = Detokenizer(tokenizer, **options)
    return [*(detokenizer.step(token_id) for token_id in token_ids), detokenizer.finish()]


def test_a_character_divided_between_two_tokens_is_returned_once(tokenizer: Tokenizer):
    """Every pair of tokens of the vocabulary whose bytes together are valid UTF-8."""
    num_split = 0
    for first, second in itertools.product(range(tokenizer.vocab_size), repeat=2):
        whole = tokenizer.token_bytes(first) + tokenizer.token_bytes(second)
        try:
            whole.decode()
        except UnicodeDecodeError:
            continue
        shown = pieces(tokenizer, [first, second], skip_special_tokens=False)
        assert "".join(shown) == whole.decode()
        assert "\ufffd" not in "".join(shown)
        num_split += b"\x80" <= tokenizer.token_bytes(second)[:1] < b"\xc0"
    assert num_split > 1000


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_the_joined_pieces_equal_the_full_decode(tokenizer: Tokenizer, data: st.DataObject, skip: bool):
    """For any tokens, also if their bytes are not valid UTF-8."""
    token_ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=12))  # words: ok
    shown = "".join(pieces(tokenizer, token_ids, skip_special_tokens=skip))
    assert shown == tokenizer.decode(token_ids, skip_special_tokens=skip)


@pytest.mark.slow
@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet="aé語😀 Hello", max_size=12))
def test_byte_fallback_returns_complete_characters(text: str):
    tokenizer = SENTENCEPIECE
    token_ids = [1 + byte for byte in text.encode()]
    shown = pieces(tokenizer, token_ids)
    assert "".join(shown) == text
    assert "\ufffd" not in "".join(shown)


SENTENCEPIECE = sentencepiece()


def test_an_output_keeps_its_leading_space():
    """decode() removes it, so a continuation would follow its prompt without a space."""
    token_ids = [SENTENCEPIECE.backend.token_to_id(token) for token in ("\u2581Hello", "\u2581\u2581b")]
    assert "".join(pieces(SENTENCEPIECE, token_ids)) == " Hello  b"


def test_other_decoders_decode_a_window_of_tokens():
    tokenizer = wordpiece()
    token_ids = [1, 2, 3, 5, 4]
    shown = pieces(tokenizer, token_ids)
    assert shown[:2] == ["he", "llo"]
    assert "".join(shown) == tokenizer.decode(token_ids) == "hello worlds !"


def test_an_incomplete_character_at_the_end_is_a_replacement_character(tokenizer: Tokenizer):
    tokens = tokenizer.encode("☃")  # not in the texts of the tokenizer's training
    assert [tokenizer.token_bytes(token_id) for token_id in tokens] == [b"\xe2", b"\x98", b"\x83"]
    assert pieces(tokenizer, tokens[:2]) == ["", "", "\ufffd"]


def test_ids_without_a_token_have_no_text(tokenizer: Tokenizer):
    assert pieces(tokenizer, [tokenizer.vocab_size + 5]) == ["", ""]
    assert tokenizer.decode([tokenizer.vocab_size + 5]) == ""


def reference(text: str, stops: Sequence[str], include: bool) -> tuple[str, str | None]:
    """The text up to the first complete stop string; if several end there, the longest."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return (text[:end] if include else text[: end - len(stop)]), stop
    return text, None


LETTERS = st.text(alphabet="ab語", min_size=1, max_size=6)


@settings(max_examples=400, deadline=None)
@given(text=st.text(alphabet="ab語", max_size=40), stops=st.lists(LETTERS, max_size=4), include=st.booleans(),
       sizes=st.lists(st.integers(1, 5), max_size=40))  # fmt: skip
def test_stop_strings_end_the_text_however_it_is_divided_into_tokens(
    tokenizer: Tokenizer, text: str, stops: list[str], include: bool, sizes: list[int]
):
    """For every division into tokens and outputs; and no text is returned that a stop string should have removed."""
    byte_ids = {tokenizer.token_bytes(token_id): token_id for token_id in reversed(range(tokenizer.vocab_size))}
    token_ids = [byte_ids[bytes([byte])] for byte in text.encode()]
    stream = TextStream(tokenizer, SamplingParams(stop=tuple(stops), include_stop_str_in_output=include))
    wanted, wanted_stop = reference(text, stops, include)
    shown, stop, sizes = "", None, [*sizes, len(token_ids)]
    while token_ids and stop is None:
        size = sizes.pop(0) if sizes else len(token_ids)
        now, token_ids = token_ids[:size], token_ids[size:]
        delta = stream.add(now, finished=not token_ids)
        shown, stop = shown + delta.text, delta.stop
        assert wanted.startswith(shown)
    assert (shown, stop) == (wanted, wanted_stop)


def test_only_text_that_may_become_a_stop_string_is_held_back(tokenizer: Tokenizer):
    byte_ids = {tokenizer.token_bytes(token_id): token_id for token_id in reversed(range(tokenizer.vocab_size))}
    stream = TextStream(tokenizer, SamplingParams(stop=("aab",)))
    shown = [stream.add([byte_ids[letter.encode()]]).text for letter in "xaaab"]
    assert shown == ["x", "", "", "a", ""]


def test_tokens_after_a_stop_string_are_not_counted(tokenizer: Tokenizer):
    byte_ids = {tokenizer.token_bytes(token_id): token_id for token_id in reversed(range(tokenizer.vocab_size))}
    stream = TextStream(tokenizer, SamplingParams(stop=("b",)))
    delta = stream.add([byte_ids[letter] for letter in (b"a", b"b", b"c", b"d")])
    assert (delta.text, delta.num_tokens, delta.stop) == ("a", 2, "b")


@pytest.mark.parametrize(("min_tokens", "shown"), [(0, "a"), (2, "a"), (3, "abca"), (5, "abca"), (6, "abcabc")])
def test_stop_strings_have_no_effect_before_min_tokens(tokenizer: Tokenizer, min_tokens: int, shown: str):
    byte_ids = {tokenizer.token_bytes(token_id): token_id for token_id in reversed(range(tokenizer.vocab_size))}
    stream = TextStream(tokenizer, SamplingParams(stop=("b",), min_tokens=min_tokens))
    assert stream.add([byte_ids[letter.encode()] for letter in "abcabc"], finished=True).text == shown


@pytest.mark.parametrize("include", [False, True])
def test_the_text_of_a_stop_token_is_returned_only_on_request(tokenizer: Tokenizer, include: bool):
    token_ids = tokenizer.encode("Hello world")
    stream = TextStream(tokenizer, SamplingParams(include_stop_str_in_output=include))
    text = stream.add(token_ids, finished=True, ends_with_stop_token=True).text
    assert text == tokenizer.decode(token_ids if include else token_ids[:-1])


def test_a_tokenizer_read_from_disk_decodes_the_same(tmp_path: Path, tokenizer: Tokenizer):
    assert Tokenizer.load(write_tokenizer(tmp_path)).decode(range(300)) == tokenizer.decode(range(300))
