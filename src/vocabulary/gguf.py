"""The vocabulary in a GGUF header: the byte-level BPE of GPT-2, or the pieces of SentencePiece with their scores.

Conventions come from llama.cpp. A byte-level vocabulary names the pattern that cuts a text into words; a name that
is not in the table would give other tokens than the model was trained with, and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from ..config.checkpoint.gguf import GgufHeader
from ..config.checkpoint.gguf_files import named_tokens

_WORDS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CASES = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+{end}"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*{end}"
)
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_PUNCTUATION_AND_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_LLAMA_3 = rf"{_WORDS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_PUNCTUATION}|{_SPACES}"
_QWEN_2 = rf"{_WORDS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_PUNCTUATION}|{_SPACES}"
_TEKKEN = rf"{_CASES.replace('{end}', '')}|\p{{N}}|{_PUNCTUATION_AND_SLASH}|{_SPACES}"
_GPT_4O = rf"{_CASES.replace('{end}', _WORDS + '?')}|\p{{N}}{{1,3}}|{_PUNCTUATION_AND_SLASH}|{_SPACES}"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # kinds of tokens
_SPACE = "\u2581"
_KEY = "tokenizer.ggml."


@dataclass(frozen=True, slots=True)
class Words:
    """How a text is cut before merges.

    pattern: None for GPT-2's own. is_merged: a word that is a token is not built by merges. adds_bos: by default.
    """

    pattern: str | None
    is_merged: bool = False
    adds_bos: bool = False
    is_composed: bool = False  # normalised to NFC
    has_single_digits: bool = False


_LLAMA_3_WORDS = Words(_LLAMA_3, is_merged=True, adds_bos=True)
_QWEN_2_WORDS = Words(_QWEN_2, is_composed=True)
_DIGIT_WORDS = Words(None, has_single_digits=True)
WORDS_OF = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), _LLAMA_3_WORDS),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN_2_WORDS),
    **dict.fromkeys(("refact", "starcoder", "smollm", "command-r"), _DIGIT_WORDS),
    **dict.fromkeys(("dbrx", "smaug-bpe"), Words(_LLAMA_3)),
    "gpt-2": Words(None),
    "gpt-4o": Words(_GPT_4O, is_merged=True),
    "tekken": Words(_TEKKEN, is_merged=True, adds_bos=True),
}


def gguf_tokenizer(header: GgufHeader) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer, and the special tokens as tokenizer_config.json names them.

    Raises an Exception of some type for values that are not a vocabulary.
    """
    values, named = header.values, named_tokens(header)
    model = values.get(f"{_KEY}model")
    if f"{_KEY}tokens" not in values:
        raise ValueError("no vocabulary in the header")
    tokens = list(values[f"{_KEY}tokens"])
    kinds = list(values.get(f"{_KEY}token_type", [NORMAL] * len(tokens)))
    if len(kinds) != len(tokens) or len(set(tokens)) != len(tokens):
        raise ValueError("`tokenizer.ggml.token_type` must have a kind for each token, and no token may be there twice")
    match model:
        case "gpt2":
            backend, adds_bos = _byte_level(values, tokens, kinds)
        case "llama":
            backend, adds_bos = _pieces(values, tokens, kinds, named.get("unk_token")), True
        case _:
            raise ValueError(f"`tokenizer.ggml.model` is {model!r}; vocabularies of gpt2 and llama are read")
    backend.add_tokens(
        [
            AddedToken(token, special=kind == CONTROL, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind in (CONTROL, USER_DEFINED, UNKNOWN)
        ]
    )
    before = named.get("bos_token") if values.get(f"{_KEY}add_bos_token", adds_bos) else None
    after = named.get("eos_token") if values.get(f"{_KEY}add_eos_token", False) else None
    backend.post_processor = _added(backend, before, after)
    return backend, dict(named)


def _byte_level(values: Mapping[str, Any], tokens: Sequence[str], kinds: Sequence[int]) -> tuple[Tokenizer, bool]:
    name = values.get(f"{_KEY}pre", "default")
    if name not in WORDS_OF:
        raise ValueError(
            f"`tokenizer.ggml.pre` is {name!r}, which is not one of {', '.join(WORDS_OF)}; name the model's own "
            "tokenizer with `model.tokenizer`"
        )
    words = WORDS_OF[name]
    vocab = {token: index for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind != UNUSED}
    merges = [tuple(merge.split(" ")) for merge in values[f"{_KEY}merges"]]
    backend = with_words(Tokenizer(models.BPE(vocab, merges, ignore_merges=words.is_merged)), words)
    backend.decoder = decoders.ByteLevel()
    return backend, words.adds_bos


def with_words(backend: Tokenizer, words: Words) -> Tokenizer:
    """The tokenizer, which cuts a text in this way before it merges."""
    if words.is_composed:
        backend.normalizer = normalizers.NFC()
    cuts: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if words.has_single_digits else []
    if words.pattern is not None:
        cuts.append(pre_tokenizers.Split(Regex(words.pattern), behavior="isolated"))
    cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words.pattern is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    return backend


def _pieces(values: Mapping[str, Any], tokens: Sequence[str], kinds: Sequence[int], unknown: str | None) -> Tokenizer:
    """SentencePiece's BPE: of all neighbours, those are merged that make the piece with the highest score."""
    scores = list(values[f"{_KEY}scores"])
    if len(scores) != len(tokens):
        raise ValueError("`tokenizer.ggml.scores` must have a score for each token")
    vocab = {token: index for index, token in enumerate(tokens)}
    merges: list[tuple[float, int, int, str, str]] = []
    for token, kind in zip(tokens, kinds, strict=True):
        if kind not in (NORMAL, USER_DEFINED, UNUSED):
            continue
        for at in range(1, len(token)):
            left, right = token[:at], token[at:]
            if left in vocab and right in vocab:
                merges.append((-scores[vocab[token]], vocab[left], vocab[right], left, right))
    merges.sort()
    has_bytes = BYTE in kinds
    pairs = [(left, right) for *_, left, right in merges]
    backend = Tokenizer(models.BPE(vocab, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=has_bytes))
    has_prefix = bool(values.get(f"{_KEY}add_space_prefix", True))
    prefix: list[Any] = [normalizers.Prepend(_SPACE)] if has_prefix else []
    backend.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
    strip: list[Any] = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend


def _added(backend: Tokenizer, before: str | None, after: str | None) -> Any:
    """Adds these tokens around a text."""
    single = [*([before] if before else []), "$A", *([after] if after else [])]
    pair = [*single, *(part.replace("$A", "$B") for part in single)]
    special = [(token, backend.token_to_id(token)) for token in {before, after} if token]
    return processors.TemplateProcessing(single=" ".join(single), pair=" ".join(pair), special_tokens=special)
