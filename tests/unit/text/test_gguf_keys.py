"""Tokenizers written as GGUF headers, read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.tiny_tokenizer import TEXTS, write_tokenizer
from tokenizers import Tokenizer as Backend
from tokenizers import models

from stoker.config.checkpoint.gguf import GgufHeader
from stoker.vocabulary.files import TokenizerError
from stoker.vocabulary.gguf import WORDS_OF, gguf_tokenizer, with_words
from stoker.vocabulary.gguf_keys import _cut, _name_of, tokenizer_keys

from .test_gguf_vocabulary import SENTENCE_PIECE


def read(values: dict[str, Any]) -> Backend:
    return gguf_tokenizer(GgufHeader(Path("a.gguf"), values, {}))[0]


@pytest.mark.parametrize("has_bos", [False, True])
def test_a_byte_level_tokenizer(has_bos: bool, tmp_path: Path) -> None:
    bos = {"bos_token": "<|endoftext|>"} if has_bos else {}
    folder = write_tokenizer(tmp_path, has_bos=has_bos, **bos)
    values = tokenizer_keys(folder, 403, [2, 0])
    assert values["tokenizer.ggml.pre"] == "gpt-2"
    assert (values["tokenizer.ggml.eos_token_id"], values["tokenizer.ggml.eot_token_id"]) == (2, 0)
    assert values["tokenizer.ggml.add_bos_token"] is has_bos
    assert len(values["tokenizer.ggml.tokens"]) == 403
    assert values["tokenizer.ggml.token_type"][:4] == [3, 3, 3, 1]
    assert values["tokenizer.ggml.tokens"][-1] == "[PAD402]"
    theirs, ours = Backend.from_file(str(folder / "tokenizer.json")), read(values)
    for text in (*TEXTS, "<|im_start|>user\n"):
        assert ours.encode(text).ids == theirs.encode(text).ids


@pytest.mark.parametrize("has_prefix", [True, False])
def test_pieces_get_scores_in_the_order_of_their_merges(has_prefix: bool, tmp_path: Path) -> None:
    theirs = read(SENTENCE_PIECE | {"tokenizer.ggml.add_space_prefix": has_prefix})
    theirs.save(str(tmp_path / "tokenizer.json"))
    special = '{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}'
    (tmp_path / "tokenizer_config.json").write_text(special)
    values = tokenizer_keys(tmp_path, 267, [2])
    assert values["tokenizer.ggml.token_type"] == SENTENCE_PIECE["tokenizer.ggml.token_type"]
    assert (values["tokenizer.ggml.add_bos_token"], values["tokenizer.ggml.add_space_prefix"]) == (True, has_prefix)
    ours = read(values)
    for text in ("abb ab", "abbabb a b é\n", " ab  bb"):
        assert ours.encode(text).ids == theirs.encode(text).ids
        assert ours.decode(ours.encode(text).ids) == theirs.decode(theirs.encode(text).ids)


def test_the_pattern_is_found_by_what_it_does() -> None:
    for name, words in WORDS_OF.items():
        backend = with_words(Backend(models.BPE()), words)
        found = _name_of(Path("a"), backend, words.is_merged)
        assert (WORDS_OF[found].pattern, WORDS_OF[found].is_composed) == (words.pattern, words.is_composed), name
    cuts = {tuple(_cut(with_words(Backend(models.BPE()), words)) or ()) for words in WORDS_OF.values()}
    assert len(cuts) == len({(each.pattern, each.is_composed, each.has_single_digits) for each in WORDS_OF.values()})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rows": 300}, "the vocabulary has the id 399, the embedding 300 rows"),
        ({"ends": [0, 1, 2, 3]}, "4 tokens end an answer; a GGUF header names at most three"),
        ({"has_bos": True}, "adds other tokens to a text than the first and the last"),  # which the file does not name
    ],
)
def test_what_a_header_cannot_say_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path, has_bos=changes.get("has_bos", False))
    with pytest.raises(TokenizerError, match=said):
        tokenizer_keys(folder, changes.get("rows", 400), changes.get("ends", [2]))
