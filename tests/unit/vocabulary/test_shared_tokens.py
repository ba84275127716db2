"""The tokens of two vocabularies that stand for the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from stoker.config import ModelFilesError
from stoker.vocabulary import shared_tokens


def write(folder: Path, tokens: list[str], decoder: decoders.Decoder, *special: str) -> Path:
    folder.mkdir()
    vocabulary = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, []))
    vocabulary.decoder = decoder
    vocabulary.add_special_tokens([AddedToken(name, special=True) for name in special])
    vocabulary.save(str(folder / "tokenizer.json"))
    return folder


def of_pieces() -> decoders.Decoder:
    """The decoder of vocabularies that sentencepiece has trained."""
    return decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])


def test_tokens_are_the_same_if_their_bytes_are(tmp_path: Path) -> None:
    """A space and a byte are written differently in the two kinds of vocabularies."""
    model = write(tmp_path / "model", ["a", "Ġa", "Ċ", "bca", "é"], decoders.ByteLevel(), "<end>", "<other>")
    draft = write(tmp_path / "draft", ["<0x0A>", "<0xE9>", "ca", "▁a", "a"], of_pieces(), "<end>")
    found = shared_tokens(model, "auto", 10, draft, 8)
    assert found.model_ids.tolist() == [0, 1, 2, 4, 5]
    assert found.draft_ids.tolist() == [4, 3, 0, 1, 5]
    # `bca` ends with `ca`; nothing is an end of `<other>`, and the ids from 7 on have no token
    assert found.translated.tolist() == [4, 3, 0, 2, 1, 5, 0, 0, 0, 0]


def test_a_vocabulary_with_other_paddings_is_the_same(tmp_path: Path) -> None:
    model = write(tmp_path / "model", ["a", "b"], decoders.ByteLevel(), "<end>")
    draft = write(tmp_path / "draft", ["a", "b"], decoders.ByteLevel(), "<end>", "<more>")
    assert shared_tokens(model, "auto", 8, draft, 4).is_identity
    assert not shared_tokens(draft, "auto", 8, model, 4).is_identity
    turned = write(tmp_path / "turned", ["b", "a"], decoders.ByteLevel(), "<end>")
    assert not shared_tokens(model, "auto", 8, turned, 4).is_identity


def test_tokens_beyond_the_output_layer_do_not_count(tmp_path: Path) -> None:
    model = write(tmp_path / "model", ["a", "b", "c"], decoders.ByteLevel())
    draft = write(tmp_path / "draft", ["c", "b", "a"], decoders.ByteLevel())
    found = shared_tokens(model, "auto", 2, draft, 2)
    assert found.model_ids.tolist() == [1]
    assert found.draft_ids.tolist() == [1]
    assert found.translated.tolist() == [0, 1]


def test_of_two_tokens_with_the_same_bytes_the_first_is_drafted(tmp_path: Path) -> None:
    model = write(tmp_path / "model", ["▁", "<0x20>", "a"], of_pieces())
    draft = write(tmp_path / "draft", ["a", "Ġ"], decoders.ByteLevel())
    found = shared_tokens(model, "auto", 3, draft, 2)
    assert found.model_ids.tolist() == [0, 2]
    assert found.translated.tolist() == [1, 1, 0]


def test_vocabularies_without_common_tokens_are_refused(tmp_path: Path) -> None:
    model = write(tmp_path / "model", ["a", "b"], decoders.ByteLevel())
    draft = write(tmp_path / "draft", ["c", "d"], decoders.ByteLevel())
    with pytest.raises(ModelFilesError, match="0 of its 2 tokens are tokens of the model, too few") as refused:
        shared_tokens(model, "auto", 2, draft, 2)
    assert refused.value.option == "speculative.model"
    (draft / "tokenizer.json").write_text("{")
    with pytest.raises(ModelFilesError, match=r"tokenizer\.json"):
        shared_tokens(model, "auto", 3, draft, 2)
