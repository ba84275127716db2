"""Tokenizers from tekken.json, the vocabulary of Mistral AI's own format."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from tests.tiny_tokenizer import TEXTS, write_tokenizer

from stoker.engine.api import InvalidRequest
from stoker.text.renderer import Renderer
from stoker.text.tokenizer import Tokenizer, TokenizerError

from .processes import PROCESSES

WORDS = [*(bytes([value]) for value in range(256)), b"he", b"ll", b" w", b"hell", b"hello", " ü".encode(), b"padding"]
SPECIAL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]

CONFIG = {
    "pattern": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+",
    "default_vocab_size": 8 + len(WORDS) - 1,
    "default_num_special_tokens": 8,
    "version": "v7",
}


def write_tekken(folder: Path, **changes: Any) -> Path:
    """265 tokens: 8 special ones, of which three have no name, 256 bytes and the first words."""
    content = {
        "config": CONFIG,
        "special_tokens": [{"rank": rank, "token_str": name, "is_control": True} for rank, name in enumerate(SPECIAL)][
            ::-1
        ],
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(word).decode(), "token_str": None}
            for rank, word in enumerate(WORDS)
        ],
        **changes,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tekken.json").write_text(json.dumps(content))
    return folder


def test_special_tokens_have_the_first_ids_and_words_are_merged_by_their_rank(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_tekken(tmp_path))
    assert tokenizer.vocab_size == 8 + len(WORDS) - 1
    hello, blank_w = 8 + WORDS.index(b"hello"), 8 + WORDS.index(b" w")
    assert tokenizer.encode("[INST]hello w[/INST]") == [1, 3, hello, blank_w, 4]
    assert tokenizer.encode("hi", add_special_tokens=False) == [8 + ord("h"), 8 + ord("i")]
    assert tokenizer.decode(tokenizer.encode("hello wörld ü 語\n")) == "hello wörld ü 語\n"
    assert tokenizer.token_bytes(hello) == b"hello"
    assert (tokenizer.special_ids, tokenizer.pieces) == (frozenset(range(8)), "byte_level")
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


def test_ids_equal_those_of_the_conversion_of_transformers(tmp_path: Path) -> None:
    converter = pytest.importorskip("transformers.integrations.mistral.tokenizer").MistralConverter
    reference = converter(str(write_tekken(tmp_path) / "tekken.json")).converted()
    tokenizer = Tokenizer.load(tmp_path)
    for text in (*TEXTS, "", "hello hello  w[INST]ü ü<s>", "  two  spaces\t\n"):
        assert tokenizer.encode(text, add_special_tokens=False) == reference.encode(text).ids
    assert tokenizer.backend.get_vocab() == reference.get_vocab()


@pytest.mark.effect("model.tokenizer_mode")
def test_files_of_the_first_versions_have_special_tokens_that_they_do_not_list(tmp_path: Path) -> None:
    """As the one of Mistral Nemo, which was refused."""
    config = CONFIG | {"version": "v3", "default_num_special_tokens": 22, "default_vocab_size": 22 + len(WORDS) - 1}
    tokenizer = Tokenizer.load(write_tekken(tmp_path, special_tokens=None, config=config))
    assert tokenizer.encode("[INST]hello[/INST][TOOL_CONTENT]") == [1, 3, 22 + WORDS.index(b"hello"), 4, 19]


def test_the_mode_mistral_prefers_it_to_tokenizer_json(tmp_path: Path) -> None:
    (write_tokenizer(write_tekken(tmp_path)) / "tokenizer_config.json").unlink()
    assert Tokenizer.load(tmp_path).backend.token_to_id("[INST]") is None
    assert Tokenizer.load(tmp_path, "mistral").backend.token_to_id("[INST]") == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab": []}, "`vocab` must have every byte"),
        ({"config": {}}, "no `pattern`"),
        ({"special_tokens": None}, "no `special_tokens`, which only the first versions"),
        ({"special_tokens": None, "config": CONFIG | {"version": "v11"}}, "no `special_tokens`, which only the first"),
        ({"special_tokens": [{"rank": 3, "token_str": "<s>"}]}, "must have the ranks from 0"),
        ({"config": {"pattern": "("}}, "not a tekken vocabulary"),
    ],
)
def test_a_file_that_is_no_vocabulary_is_an_error(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError) as caught:
        Tokenizer.load(write_tekken(tmp_path, **changes))
    assert str(caught.value).startswith(f"{tmp_path}/tekken.json: not a tekken vocabulary: ")
    assert message in str(caught.value)


CONVERSATIONS: dict[str, list[tuple[str, str]]] = {
    "one": [("user", "hello w")],
    "system": [("system", "be kind"), ("user", "hello"), ("assistant", "hi "), ("user", "more")],
    "two in a row": [
        ("system", "be kind"),
        ("user", "a"),
        ("user", "b"),
        ("assistant", " x"),
        ("user", "c"),
        ("user", "d"),
    ],
}


def render(folder: Path, turns: list[tuple[str, str]], **options: Any) -> str:
    messages = [{"role": role, "content": content} for role, content in turns]
    return Renderer(Tokenizer.load(folder), processes=PROCESSES).render(messages, **options)


@pytest.mark.parametrize(
    ("version", "conversation", "text"),
    [
        ("v3", "one", "<s>[INST]hello w[/INST]"),
        ("v3", "system", "<s>[INST]hello[/INST]hi</s>[INST]be kind\n\nmore[/INST]"),
        ("v3", "two in a row", "<s>[INST]a\n\nb[/INST] x</s>[INST]be kind\n\nc\n\nd[/INST]"),
        ("v7", "one", "<s>[INST]hello w[/INST]"),
        ("v11", "system", "<s>[SYSTEM_PROMPT]be kind[/SYSTEM_PROMPT][INST]hello[/INST]hi</s>[INST]more[/INST]"),
        (
            "v13",
            "two in a row",
            "<s>[SYSTEM_PROMPT]be kind[/SYSTEM_PROMPT][INST]a\n\nb[/INST] x</s>[INST]c\n\nd[/INST]",
        ),
    ],
)
def test_conversations_have_the_text_of_mistral_common(
    version: str, conversation: str, text: str, tmp_path: Path
) -> None:
    """Of mistral-common 1.13, encode_chat_completion(...).text with a vocabulary of this version. There was no chat."""
    assert render(write_tekken(tmp_path, config=CONFIG | {"version": version}), CONVERSATIONS[conversation]) == text


def test_an_own_template_is_preferred_and_a_new_version_has_none(tmp_path: Path) -> None:
    folder = write_tekken(tmp_path)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    assert render(folder, CONVERSATIONS["one"]) == "hello w!"
    with pytest.raises(InvalidRequest, match="no chat template"):
        render(write_tekken(tmp_path / "new", config=CONFIG | {"version": "v99"}), CONVERSATIONS["one"])


def test_tools_need_a_template_that_has_them(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"without tools: set server\.chat_template"):
        render(write_tekken(tmp_path), CONVERSATIONS["one"], tools=[{"type": "function"}])
