"""Control tokens in what users wrote: how they are marked, and how a text with marks is encoded."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tests.tiny_tokenizer import write_tokenizer
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from stoker.text.breaking_encoder import BreakingEncoder
from stoker.text.tokenizer import Tokenizer, Truncation
from stoker.text.user_text import ControlTokens, UserText, without_marks


def test_without_control_tokens_nothing_differs(tmp_path: Path):
    messages = [
        {"role": "user", "content": "a <b> c | d\ue100"},
        {"role": "assistant", "content": "<think>\nx</think>\n\ny"},
    ]
    control = Tokenizer.load(write_tokenizer(tmp_path)).control_tokens
    found = UserText(control, control, messages, tools=[{"name": "f"}])
    assert found.messages is messages
    assert found.mark == ""


@pytest.mark.parametrize("has_bos", [False, True])
def test_the_tokens_added_around_a_prompt_are_the_same(tmp_path: Path, has_bos: bool):
    tokenizer = Tokenizer.load(write_tokenizer(tmp_path, has_bos=has_bos))
    text = "<|im_start|>a<|im_end|>b"
    ids = tokenizer.encode(text, [13, 15])
    assert (ids[:1] == [0]) is has_bos
    assert ids[has_bos:] == tokenizer.encode(text, [13, 15], add_special_tokens=False)
    for side in ("left", "right"):
        cut = tokenizer.encode_cut(text, Truncation(3, side), [15])
        assert len(cut) == 3
        assert (cut[0] == 0) is has_bos


def test_breaks_are_where_marks_were():
    assert without_marks("ab", "") == ("ab", [])
    assert without_marks("#ab##c#", "#") == ("abc", [0, 2, 2, 3])


def test_the_longest_control_token_is_found_and_overlapping_ones_too():
    control = ControlTokens(["<a>", "<a><b>", "<b>", "[x", "a"])
    assert [found[0] for found in control.pattern.finditer("<a><b><a>[x a")] == ["<a><b>", "<a>", "[x"]
    assert control.marked("<a><b>", "#") == "<#a><#b>"
    assert control.marked({"<b>": ["<", "a>", "b", 1, None]}, "#") == {"<#b>": ["<#", "#a>", "b", 1, None]}


def unigram() -> tokenizers.Tokenizer:
    """The model itself finds control tokens in text, as models of sentencepiece do."""
    letters = [(letter, -3.0) for letter in "\u2581abcdes<>/|"]
    made = tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *letters], 0, False))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    made.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    made.add_special_tokens(["<s>", "</s>", AddedToken("<|e|>", lstrip=True)])
    made.add_tokens(["<d>"])
    return made


def byte_level() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE({letter: i for i, letter in enumerate("abcdes<>/|\u0120")}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<s>", "</s>", AddedToken("<|e|>", rstrip=True)])
    made.add_tokens(["<d>"])
    return made


@pytest.mark.parametrize("make", [unigram, byte_level])
def test_the_ids_are_those_of_the_whole_text_but_for_what_a_break_is_in(make: Any):
    backend = make()
    tokenizer = Tokenizer(backend)
    encoder = BreakingEncoder(backend, tokenizer.control_tokens)
    choices = random.Random(1)
    for _ in range(200):
        text = "".join(choices.choice(["a", "b ", " c", "<s>", "</s>", "<|e|>", "<d>", "<", ">"]) for _ in range(12))
        whole = backend.encode(text, add_special_tokens=False).ids
        prepared = encoder.backend.encode(encoder.text_to_encode(text, []), add_special_tokens=False).ids
        assert encoder.ids(prepared) == whole
        every = range(len(text) + 1)
        broken = tokenizer.encode(text, every, add_special_tokens=False)
        assert not tokenizer.special_ids.intersection(broken)
        assert backend.decode(broken, skip_special_tokens=False).strip() == text.strip()
