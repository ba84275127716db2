"""The special tokens that tokenizer_config.json names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import ModelFilesError
from .model_files import read_json_if_any

_MAX_TOKENIZER_BYTES = 64 << 20
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def content_of(token: Any) -> str | None:
    """A token of tokenizer_config.json: a string, or an object with properties."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def special_tokens(config: dict[str, Any]) -> dict[str, str | list[str]]:
    """Special tokens under the names that chat templates use."""
    named: dict[str, str | list[str]] = {}
    for name in _NAMED_TOKENS:
        content = content_of(config.get(name))
        if content is not None:
            named[name] = content
    extra = config.get("extra_special_tokens", config.get("additional_special_tokens"))
    if isinstance(extra, dict):  # name -> token: the form of multimodal models
        named |= {name: content for name, token in extra.items() if (content := content_of(token)) is not None}
    elif isinstance(extra, list):
        named["additional_special_tokens"] = [content for token in extra if (content := content_of(token)) is not None]
    return named


def token_ids(folder: Path, tokens: tuple[str, ...]) -> tuple[int, ...]:
    """The ids of tokens, in the vocabulary of tokenizer.json. Raises ModelFilesError for one that is not there."""
    path, found = folder / "tokenizer.json", _vocabulary(folder)
    for token in tokens:
        if token not in found:
            raise ModelFilesError(f"{path}: lists no token {token!r}, which the scores of this model need", code="M307")
    return tuple(found[token] for token in tokens)


def known_token_ids(folder: Path, tokens: tuple[str, ...]) -> tuple[int, ...]:
    """The ids of those tokens that are in the vocabulary of tokenizer.json."""
    found = _vocabulary(folder)
    return tuple(found[token] for token in tokens if token in found)


def _vocabulary(folder: Path) -> dict[str, int]:
    """Tokens of tokenizer.json and their ids; none without this file."""
    tokenizer = read_json_if_any(folder / "tokenizer.json", _MAX_TOKENIZER_BYTES)
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    found = dict(vocabulary) if isinstance(vocabulary, dict) else {}
    added = tokenizer.get("added_tokens")
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict) and (content := content_of(token)) is not None:
            found[content] = token.get("id")
    return {token: number for token, number in found.items() if type(number) is int and number >= 0}


def end_token_id(folder: Path) -> int | None:
    """The id of `eos_token`; None if there is none, or nothing lists its id. Files that cannot be read say nothing:
    they are reported where they are needed."""
    try:
        config = read_json_if_any(folder / "tokenizer_config.json")
        content = content_of(config.get("eos_token"))
        if content is None:
            content = content_of(read_json_if_any(folder / "special_tokens_map.json").get("eos_token"))
        if content is None:
            return None
        listed = config.get("added_tokens_decoder")
        for number, token in listed.items() if isinstance(listed, dict) else ():
            if content_of(token) == content and number.isdecimal():
                return int(number)
        added = read_json_if_any(folder / "tokenizer.json", _MAX_TOKENIZER_BYTES).get("added_tokens")
    except ModelFilesError:
        return None
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict) and content_of(token) == content and type(token.get("id")) is int:
            return int(token["id"])
    return None
