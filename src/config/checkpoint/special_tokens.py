"""The special tokens that tokenizer_config.json names."""

from __future__ import annotations

from typing import Any

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
