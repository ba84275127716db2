from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest
import tokenizers
from tests.tiny_tokenizer import TEXTS, write_tokenizer
from transformers import AutoTokenizer

from stoker.engine.api import InvalidRequest
from stoker.text.tokenizer import INLINE_CHARS, Tokenizer, TokenizerError

CONFIGS = [
    {},
    {"bos_token": "<|endoftext|>", "add_bos_token": True},
    {"bos_token": "<|endoftext|>", "add_bos_token": False, "add_eos_token": True},
]


@pytest.mark.parametrize("has_bos", [False, True])
@pytest.mark.parametrize("config", CONFIGS)
def test_ids_equal_those_of_transformers(tmp_path: Path, config: dict[str, object], has_bos: bool):
    folder = write_tokenizer(tmp_path, has_bos=has_bos, **config)
    tokenizer, reference = Tokenizer.load(folder), AutoTokenizer.from_pretrained(str(folder))
    for text in (*TEXTS, "", "<|im_start|>user\nHi<|im_end|>", "  two  spaces\t\n"):
        for special in (False, True):
            expected = reference(text, add_special_tokens=special)["input_ids"]
            assert tokenizer.encode(text, add_special_tokens=special) == expected
        token_ids = tokenizer.encode(text)
        assert tokenizer.decode(token_ids) == reference.decode(token_ids, skip_special_tokens=True)
    assert (tokenizer.encode("x")[0] == 0) == has_bos


def test_truncation_and_padding_of_the_file_are_not_applied(tmp_path: Path):
    folder = write_tokenizer(tmp_path)
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    content["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {"strategy": {"Fixed": 50}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                          "pad_type_id": 0, "pad_token": "<|endoftext|>"}  # fmt: skip
    file.write_text(json.dumps(content))
    assert Tokenizer.load(folder).decode(Tokenizer.load(folder).encode(TEXTS[0])) == TEXTS[0]


def test_tokens_of_the_config_only_are_added_with_their_ids(tmp_path: Path):
    folder = write_tokenizer(tmp_path)
    size = Tokenizer.load(folder).vocab_size
    listed = {str(size): {"content": "<tool>", "special": True}, str(size + 1): {"content": "<x>", "special": False}}
    tokenizer = Tokenizer.load(write_tokenizer(tmp_path, added_tokens_decoder=listed))
    assert tokenizer.encode("<tool><x>") == [size, size + 1]
    assert tokenizer.decode([size, size + 1]) == "<x>"


def test_a_token_of_the_config_with_another_id_is_an_error(tmp_path: Path):
    folder = write_tokenizer(tmp_path, added_tokens_decoder={"9999": {"content": "<tool>"}})
    with pytest.raises(TokenizerError, match="gives '<tool>' the id 9999"):
        Tokenizer.load(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": 1}'])
def test_an_invalid_file_is_reported_with_its_name(tmp_path: Path, content: str):
    folder = write_tokenizer(tmp_path)
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: not a tokenizer file"):
        Tokenizer.load(folder)
    (folder / "tokenizer_config.json").write_text("[]")
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json"):
        Tokenizer.load(folder)


def test_an_older_format_is_converted_by_transformers(tmp_path: Path):
    end = "<|endoftext|>"
    folder = write_tokenizer(tmp_path, tokenizer_class="GPT2Tokenizer", bos_token=end, unk_token=end)
    expected = Tokenizer.load(folder).encode("Hello world", add_special_tokens=False)
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (folder / "merges.txt").write_text("\n".join(" ".join(pair) for pair in model["merges"]))
    (folder / "tokenizer.json").unlink()
    assert Tokenizer.load(folder).encode("Hello world", add_special_tokens=False) == expected


def test_a_folder_without_a_tokenizer_is_an_error(tmp_path: Path):
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_a_long_text_is_encoded_in_another_thread(tokenizer: Tokenizer):
    async def run() -> None:
        text = "Hello, world! " * INLINE_CHARS
        threads: set[str] = set()
        work = asyncio.ensure_future(tokenizer.encode_async(text, len(text), param="prompt"))
        while not work.done():
            threads |= {thread.name for thread in threading.enumerate()}
            await asyncio.sleep(0)
        assert any(name.startswith("tokenizer") for name in threads)
        assert await work == tokenizer.encode(text)

    asyncio.run(run())


def test_a_text_that_the_patterns_cannot_process_is_refused(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch):
    """The library panics, which is not an Exception. After a slow short text, no text blocks the event loop."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("(a+)+b"), "isolated")
    slow = Tokenizer(backend)
    monkeypatch.setattr("stoker.text.tokenizer._SLOW_S", 0.0)
    with pytest.raises(InvalidRequest, match="cannot process this text"):
        slow.encode("a" * 4000)
    assert slow.inline_chars == 0

    async def run() -> None:
        names: list[str] = []
        monkeypatch.setattr(slow, "encode", lambda *_, **__: names.append(threading.current_thread().name))
        await slow.encode_async("b", 10, param="prompt")
        assert [name.split("_")[0] for name in names] == ["tokenizer"]

    asyncio.run(run())


def test_a_text_is_refused_by_its_bytes_only_if_it_cannot_fit(tokenizer: Tokenizer):
    longest = tokenizer.max_token_bytes
    tokenizer.text_limit(10).check("x" * 10 * longest, param="prompt")
    with pytest.raises(InvalidRequest) as caught:
        tokenizer.text_limit(10).check("x" * (10 * longest + 1), param="prompt")
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    assert "at least 11 tokens" in str(caught.value)


def test_the_bytes_of_the_tokens_are_the_bytes_of_the_text(tokenizer: Tokenizer):
    for text in TEXTS:
        assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))) == text.encode()
