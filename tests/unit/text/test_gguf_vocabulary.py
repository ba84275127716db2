"""Tokenizers from the headers of GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from tests.models.gguf_files import vocabulary, write_value
from tests.tiny_tokenizer import TEXTS, write_tokenizer

from stoker.text.tokenizer import Tokenizer, TokenizerError

BYTES = [f"<0x{value:02X}>" for value in range(256)]
PIECES = ["<unk>", "<s>", "</s>", *BYTES, "▁", "a", "b", "▁a", "ab", "▁ab", "bb", "abb"]
KINDS = [2, 3, 3, *[6] * 256, *[1] * 8]
SCORES = [0.0] * 259 + [-100.0, -101.0, -102.0, -4.0, -2.0, -3.0, -1.0, -5.0]
SENTENCE_PIECE = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": PIECES,
    "tokenizer.ggml.token_type": KINDS,
    "tokenizer.ggml.scores": SCORES,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
}


def write_header(folder: Path, values: dict[str, Any]) -> Path:
    path = folder / "a.gguf"
    writer = GGUFWriter(path, "llama")
    for key, value in values.items():
        if value is not None:
            write_value(writer, key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.effect("model.tokenizer")
def test_a_byte_level_vocabulary_gives_the_tokens_of_its_tokenizer_json(tmp_path: Path) -> None:
    own = write_tokenizer(tmp_path / "own")
    values = vocabulary(tmp_path / "own", "gpt-2") | {"tokenizer.chat_template.tool_use": "{{ tools }}"}
    theirs, ours = Tokenizer.load(own), Tokenizer.load(write_header(tmp_path, values))
    for each in TEXTS:
        ids = theirs.encode(each, add_special_tokens=False)
        assert ours.encode(each, add_special_tokens=False) == ids
        assert ours.decode(ids) == theirs.decode(ids)
    assert ours.special_ids == theirs.special_ids
    assert ours.pieces == "byte_level"
    assert ours.chat_templates["tool_use"].text == "{{ tools }}"


def test_sentencepiece_merges_the_best_pair_first(tmp_path: Path) -> None:
    ours = Tokenizer.load(write_header(tmp_path, SENTENCE_PIECE))
    tokens = [ours.backend.id_to_token(each) for each in ours.encode("abb ab")]
    assert tokens == ["<s>", "▁a", "bb", "▁ab"]
    assert ours.decode(ours.encode("abb é\n")) == "abb é\n"
    assert ours.pieces == "sentencepiece"
    assert ours.token_bytes(3 + 0xC3) == b"\xc3"
    changes = {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_space_prefix": False}
    plain = Tokenizer.load(write_header(tmp_path, SENTENCE_PIECE | changes))
    assert [plain.backend.id_to_token(each) for each in plain.encode("abb")] == ["abb"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokenizer.ggml.model": "gpt2"}, "`tokenizer.ggml.pre` is 'default', which is not one of llama-bpe"),
        ({"tokenizer.ggml.model": "rwkv"}, "vocabularies of gpt2 and llama are read"),
        ({"tokenizer.ggml.tokens": None}, "the vocabulary has 0 tokens"),
        ({"tokenizer.ggml.scores": [0.5]}, "must have a score for each token"),
        ({"tokenizer.ggml.bos_token_id": 4000}, "the vocabulary has 267 tokens"),
        ({"tokenizer.ggml.tokens": ["a"] * 267}, "no token may be there twice"),
    ],
)
def test_a_vocabulary_that_would_give_other_tokens_is_refused(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = write_header(tmp_path, SENTENCE_PIECE | changes)
    with pytest.raises(TokenizerError, match=said) as caught:
        Tokenizer.load(path)
    assert str(caught.value).startswith(f"{path}: ")
