"""How many tokens a server makes of the words of a workload, from its route /tokenize."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..remote import Remote, RemoteError
from .workload import FIRST_WORD, WORDS, Costs


def token_costs(root: Remote, model: str, endpoint: str) -> Costs | None:
    """Costs of words on a server; None if it does not have the route, as vLLM's and this project's have it.

    root: the server's address without `/v1`. endpoint: `chat` or `completions`.
    """

    def count(text: str, *, is_whole: bool = False) -> int:
        """is_whole: with the chat template, and with the tokens that begin a prompt."""
        body: dict[str, Any] = {"model": model, "add_special_tokens": is_whole, "prompt": text}
        if is_whole and endpoint == "chat":
            body = {"model": model, "messages": [{"role": "user", "content": text}]}
        return _count(root.command("/tokenize", body))

    try:
        begin, overhead = count(FIRST_WORD), count(FIRST_WORD, is_whole=True)
        return Costs(overhead, {word: count(f"{FIRST_WORD} {word}") - begin for word in WORDS})
    except (RemoteError, KeyError, TypeError):
        return None


def _count(answer: Mapping[str, Any]) -> int:
    return int(answer["count"])
