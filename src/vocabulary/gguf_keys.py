"""A tokenizer as the keys of a GGUF header: the other direction of gguf.py.

llama.cpp knows the pattern that cuts a text into words by name only. The name is found by cutting a text with each
known pattern; a tokenizer with another pattern needs a name from the user. The result is read back and compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models

from ..config.checkpoint.gguf import GgufHeader
from ..config.checkpoint.special_tokens import special_tokens
from . import gguf
from .files import TokenizerError, add_missing_tokens, read_vocabulary

_TEXT = (  # in which each of the known patterns cuts at another place
    "Hello, I'll say you'RE right: it's 1234567 and 12! \n\n \t  x=y/z //a\r\n\n  don't  naïve e\u0301 CamelCaseWORDs "
    "日本語のテキスト ١٢٣ 😀👩\u200d👧 ...[]{} über  \n def f(x):\n\treturn x_1+22   "
)
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
_KEYS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_MORE_ENDS = ("eot", "eom")
_KEY = "tokenizer.ggml."


def tokenizer_keys(
    folder: Path, num_rows: int, end_ids: Sequence[int], pre_tokenizer: str | None = None
) -> dict[str, Any]:
    """The keys under `tokenizer.ggml`.

    Args:
        folder: of the model.
        num_rows: of the embedding; the vocabulary gets as many tokens.
        end_ids: of tokens that end an answer.
        pre_tokenizer: llama.cpp's name of the pattern; None finds it.

    Raises TokenizerError for a tokenizer that the header cannot describe.
    """
    backend, config = read_vocabulary(folder)
    add_missing_tokens(backend, config)
    model = json.loads(backend.to_str())["model"]
    if model["type"] != "BPE":
        raise TokenizerError(f"{folder}: its tokenizer is of type {model['type']}; only BPE is written as GGUF")
    values = _tokens(folder, backend, model, num_rows)
    named = {key: token for key, token in special_tokens(config).items() if key in _KEYS and isinstance(token, str)}
    ids = {key: found for key, token in named.items() if (found := backend.token_to_id(token)) is not None}
    values |= {f"{_KEY}{_KEYS[key]}_token_id": found for key, found in ids.items()}
    values |= _ends(folder, ids.get("eos_token"), end_ids)
    values |= _added(folder, backend, ids)
    if values[f"{_KEY}model"] == "gpt2":
        values[f"{_KEY}pre"] = pre_tokenizer or _name_of(folder, backend, bool(model.get("ignore_merges")))
        values[f"{_KEY}merges"] = [" ".join(pair) for pair in _pairs(model)]
    else:
        if pre_tokenizer is not None:
            raise TokenizerError(f"{folder}: a vocabulary of SentencePiece has no pre-tokenizer to name")
        values[f"{_KEY}add_space_prefix"] = _has_prefix(backend)
        values |= _scores(model, values[f"{_KEY}tokens"])
    _check(folder, backend, values, is_named=pre_tokenizer is not None)
    return values


def _pairs(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Pairs of merges. Old files join each by a space."""
    pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"])
    return [(left, right) for left, right in pairs]


def _tokens(folder: Path, backend: Tokenizer, model: Mapping[str, Any], num_rows: int) -> dict[str, Any]:
    """Tokens by id. Ids without a token get one that is not used."""
    ids, added = backend.get_vocab(with_added_tokens=True), backend.get_added_tokens_decoder()
    if max(ids.values()) >= num_rows:
        raise TokenizerError(f"{folder}: the vocabulary has the id {max(ids.values())}, the embedding {num_rows} rows")
    tokens, kinds = [f"[PAD{index}]" for index in range(num_rows)], [gguf.UNUSED] * num_rows
    is_pieces = bool(model.get("byte_fallback"))
    for token, index in ids.items():
        tokens[index], kinds[index] = token, gguf.NORMAL
        if index in added:
            kinds[index] = gguf.CONTROL if added[index].special else gguf.USER_DEFINED
        elif is_pieces and _BYTE_TOKEN.fullmatch(token):
            kinds[index] = gguf.BYTE
    if is_pieces and model.get("unk_token") in ids:
        kinds[ids[model["unk_token"]]] = gguf.UNKNOWN
    name = "llama" if is_pieces else "gpt2"
    return {f"{_KEY}model": name, f"{_KEY}tokens": tokens, f"{_KEY}token_type": kinds}


def _ends(folder: Path, own: int | None, end_ids: Sequence[int]) -> dict[str, int]:
    """The tokenizer's own first: it is the one that others add to a text."""
    ordered = [*([] if own is None else [own]), *(each for each in end_ids if each != own)]
    if len(ordered) > 1 + len(_MORE_ENDS):
        raise TokenizerError(f"{folder}: {len(ordered)} tokens end an answer; a GGUF header names at most three")
    names = ("eos", *_MORE_ENDS)
    return {f"{_KEY}{name}_token_id": each for name, each in zip(names, ordered, strict=False)}


def _added(folder: Path, backend: Tokenizer, ids: Mapping[str, int]) -> dict[str, bool]:
    """Whether a text gets a first and a last token."""
    plain, whole = backend.encode("a", add_special_tokens=False).ids, backend.encode("a").ids
    first, last = ids.get("bos_token"), ids.get("eos_token")
    for before, after in ((False, False), (True, False), (False, True), (True, True)):
        if whole == [*([first] if before else []), *plain, *([last] if after else [])]:
            return {f"{_KEY}add_bos_token": before, f"{_KEY}add_eos_token": after}
    raise TokenizerError(
        f"{folder}: its tokenizer adds other tokens to a text than the first and the last; a GGUF header cannot say so"
    )


def _name_of(folder: Path, backend: Tokenizer, is_merged: bool) -> str:
    wanted = _cut(backend)
    for name, words in gguf.WORDS_OF.items():
        if words.is_merged == is_merged and _cut(gguf.with_words(Tokenizer(models.BPE()), words)) == wanted:
            return name
    raise TokenizerError(
        f"{folder}: its tokenizer cuts text by a pattern that llama.cpp has no name for; --pre-tokenizer names the "
        f"closest: {', '.join(gguf.WORDS_OF)}"
    )


def _cut(backend: Tokenizer) -> list[str] | None:
    if backend.pre_tokenizer is None:
        return None
    text = _TEXT if backend.normalizer is None else backend.normalizer.normalize_str(_TEXT)
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]


def _has_prefix(backend: Tokenizer) -> bool:
    return backend.encode("a", add_special_tokens=False).tokens[0].startswith("\u2581")


def _scores(model: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any]:
    """The later a piece is merged, the lower its score."""
    ranks: dict[str, int] = {}
    for left, right in _pairs(model):
        ranks.setdefault(left + right, len(ranks))
    least = float(-len(ranks) - 1)
    return {f"{_KEY}scores": [float(-ranks[token]) if token in ranks else least for token in tokens]}


def _check(folder: Path, backend: Tokenizer, values: Mapping[str, Any], *, is_named: bool) -> None:
    """Raises TokenizerError if the header's vocabulary gives other tokens.

    is_named: by the user, so the pattern only comes close.
    """
    try:
        read, _ = gguf.gguf_tokenizer(GgufHeader(folder, values, {}))
    except ValueError as error:
        raise TokenizerError(f"{folder}: its tokenizer is not written as GGUF: {error}") from None
    for text in () if is_named else (_TEXT, *_TEXT.split(" "), " a", "\na"):
        if read.encode(text).ids != backend.encode(text).ids:
            raise TokenizerError(
                f"{folder}: its tokenizer is not written as GGUF: the header's would give other tokens for {text!r}"
            )
