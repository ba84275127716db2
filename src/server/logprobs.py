"""Log-probabilities in responses. The engine returns token ids; here they become tokens, bytes and offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..engine.api import TokenLogprobs
from ..text.detokenizer import Detokenizer
from ..text.tokenizer import Tokenizer

LOWEST = -9999.0  # JSON has no -inf; OpenAI's API writes this value


@dataclass(frozen=True, slots=True)
class TokenNames:
    """How tokens are shown: as text, or as `token_id:N` without a tokenizer or if ids were requested."""

    tokenizer: Tokenizer | None
    as_ids: bool = False

    def in_chat(self, token_id: int) -> str:
        """Text of a token; U+FFFD for a part of a character."""
        return _as_id(token_id) if self.as_ids or self.tokenizer is None else self.tokenizer.token_text(token_id)

    def in_text(self, token_id: int) -> str:
        return _as_id(token_id) if self.as_ids else _text_token(token_id, self.tokenizer)


def chat_logprobs(entries: Sequence[TokenLogprobs], num_top: int, names: TokenNames) -> dict[str, Any]:
    """`logprobs` of a chat choice: for each token its text, its bytes, and the `num_top` most likely tokens."""
    content = []
    for entry in entries:
        tokens = [_chat_token(*pair, names) for pair in _pairs(entry)]
        content.append({**tokens[0], "top_logprobs": tokens[1 : 1 + num_top]})
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """`logprobs` of one text choice. Keeps the offset of each token within the text of the choice."""

    def __init__(self, names: TokenNames, before: Sequence[int] = (), offset: int = 0) -> None:
        """before: the last tokens of the choice so far, and offset: its length, where it continues."""
        self._names = names
        self._text = Detokenizer(names.tokenizer, skip_special_tokens=False) if names.tokenizer else None
        if self._text is not None:
            for token_id in before:
                self._text.step(token_id)
        self.offset = offset

    def block(
        self, entries: Sequence[TokenLogprobs | None], token_ids: Sequence[int], num_top: int
    ) -> dict[str, list[Any]]:
        """entries: one per token; None for the first token of a prompt, which has no log-probability."""
        block: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for entry, token_id in zip(entries, token_ids, strict=True):
            block["text_offset"].append(self.offset)
            self.offset += len(self._text.step(token_id)) if self._text else 0
            block["tokens"].append(self._names.in_text(token_id))
            if entry is None:
                block["token_logprobs"].append(None)
                block["top_logprobs"].append(None)
                continue
            pairs = _pairs(entry)
            block["token_logprobs"].append(pairs[0][1])
            top = pairs[1 : 1 + num_top]
            if pairs[0] not in top:  # the token itself, if it is not among the most likely ones, is the first
                top = [pairs[0], *top]
            block["top_logprobs"].append({self._names.in_text(one): logprob for one, logprob in top})
        return block


def prompt_logprobs(entries: Sequence[TokenLogprobs | None], tokenizer: Tokenizer | None) -> list[Any]:
    """Map each prompt token to a dict from token id to log-probability; null for the first token."""
    shown: list[Any] = []
    for entry in entries:
        if entry is None:
            shown.append(None)
            continue
        pairs = _pairs(entry)
        ranked = [*enumerate(pairs[1:], start=1), (entry.rank, pairs[0])]
        shown.append(
            {
                str(token_id): {"logprob": logprob, "rank": rank, "decoded_token": _text_token(token_id, tokenizer)}
                for rank, (token_id, logprob) in ranked
            }
        )
    return shown


def _pairs(entry: TokenLogprobs) -> list[tuple[int, float]]:
    return [(token_id, max(logprob, LOWEST)) for token_id, logprob in zip(entry.token_ids, entry.logprobs, strict=True)]


def _chat_token(token_id: int, logprob: float, names: TokenNames) -> dict[str, Any]:
    piece = list(names.tokenizer.token_bytes(token_id)) if names.tokenizer else None
    return {"token": names.in_chat(token_id), "logprob": logprob, "bytes": piece}


def _as_id(token_id: int) -> str:
    return f"token_id:{token_id}"


def _text_token(token_id: int, tokenizer: Tokenizer | None) -> str:
    """Text of a token in OpenAI's form for this route: parts of characters are bytes, so that tokens are distinct."""
    if tokenizer is None:
        return _as_id(token_id)
    piece = tokenizer.token_bytes(token_id)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
