"""Tokenizer: text to token ids and back, read from a model folder's `tokenizer.json`.

Holds the vocabulary, the special tokens and the folder's chat templates. Files are read in stoker/vocabulary,
incremental decoding is in detokenizer.py, rendering of chats in renderer.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import tokenizers

from ..config import ModelFilesError
from ..config.checkpoint.chat_templates import TemplateSource, templates_in
from ..engine.api import InvalidRequest
from ..vocabulary import (
    TokenizerError,
    add_missing_tokens,
    piece_bytes,
    piece_kind,
    read_vocabulary,
    special_tokens,
)
from .breaking_encoder import BreakingEncoder
from .length import TextLimit
from .user_text import ControlTokens

T = TypeVar("T")

# Shorter texts are encoded on the event loop (about 1 ms): passing them to a thread would cost more.
INLINE_CHARS = 4096
_SLOW_S = 0.05  # for a short text; see Tokenizer.inline_chars

_CUT_MARGIN = 64  # tokens next to a cut may differ from the whole text's tokens
Side = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class Truncation:
    """A prompt longer than `num_tokens` is cut at one side."""

    num_tokens: int  # at least 1
    side: Side = "left"

    def of(self, token_ids: list[int]) -> list[int]:
        return token_ids[: self.num_tokens] if self.side == "right" else token_ids[-self.num_tokens :]


class Tokenizer:
    """One vocabulary. Encoding is thread-safe. Use `encode_async` for long texts: it does not block the event loop.

    inline_chars: texts of at most this length may be encoded on the event loop. 0 after a short text took long: the
    patterns of some vocabularies need exponential time for some texts.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        config: dict[str, Any] | None = None,
        chat_templates: dict[str, TemplateSource] | None = None,
    ) -> None:
        """
        backend: modified: truncation and padding are disabled.
        config: the content of tokenizer_config.json.
        chat_templates: by name; a single one is named `default`.
        """
        self.backend = backend
        self.config = config or {}
        self.chat_templates = chat_templates or {}
        # Some published files contain the truncation and padding of their training, which would change prompts.
        backend.no_truncation()
        backend.no_padding()
        self.special_tokens = special_tokens(self.config)
        add_missing_tokens(backend, self.config)
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.control_tokens = ControlTokens(token.content for token in added.values() if token.special)
        vocab = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocab.values(), default=-1) + 1
        self.pieces = piece_kind(backend)
        # In a byte-level vocabulary each character stands for one byte.
        byte_count = len if self.pieces == "byte_level" else lambda token: len(token.encode("utf-8", "replace"))
        self.max_token_bytes = max(map(byte_count, vocab), default=1)
        self.inline_chars = INLINE_CHARS
        # Unicode normalisation, such as NFC, may compose up to three bytes into one.
        self._max_composed = 1 if backend.normalizer is None else 3
        self._bytes: dict[int, bytes] = {}
        self._threads: ThreadPoolExecutor | None = None

    @classmethod
    def load(cls, path: str | Path, mode: str = "auto") -> Tokenizer:
        """Read a model folder. Raises TokenizerError if it has no usable tokenizer.

        mode: as for `read_vocabulary`.
        """
        folder = Path(path)
        backend, config = read_vocabulary(folder, mode)
        return cls(backend, config, _read_templates(folder, config))

    def encode(self, text: str, breaks: Sequence[int] = (), *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. `add_special_tokens` adds those that tokenizer.json defines, usually a BOS token.

        breaks: places in the text across which no control token is read (user_text.py).
        The flags add_bos_token and add_eos_token of tokenizer_config.json are for older formats. With a tokenizer.json
        they have no effect, as in transformers 5. Raises InvalidRequest for a text that the library cannot encode.
        """
        if not breaks:
            return self._encoding(text, add_special_tokens=add_special_tokens).ids
        before, after = self._around if add_special_tokens else ([], [])
        return [*before, *self._encode_broken(text, breaks), *after]

    def encode_cut(
        self, text: str, cut: Truncation, breaks: Sequence[int] = (), *, add_special_tokens: bool = True
    ) -> list[int]:
        """Encode a text, but return only the tokens that `cut` leaves, special tokens included. See `encode`."""
        if breaks:
            before, after = self._around if add_special_tokens else ([], [])
            num_tokens = cut.num_tokens - len(before) - len(after)
            kept = Truncation(num_tokens, cut.side).of(self._encode_broken(text, breaks)) if num_tokens > 0 else []
            return [*before, *kept, *after][: cut.num_tokens]
        # A text of megabytes is shortened first: tokens far from the kept ones do not change these.
        room = (cut.num_tokens + _CUT_MARGIN) * self.max_token_bytes * self._max_composed
        encoding = self._encoding(text[:room] if cut.side == "right" else text[-room:], add_special_tokens=False)
        num_special = self.backend.num_special_tokens_to_add(False) if add_special_tokens else 0
        encoding.truncate(max(0, cut.num_tokens - num_special), direction=cut.side)
        ids: list[int] = self.backend.post_process(encoding, None, add_special_tokens).ids
        return ids[: cut.num_tokens]

    @functools.cached_property
    def _around(self) -> tuple[list[int], list[int]]:
        """The ids that `add_special_tokens` adds before and after a text."""
        plain, whole = (self._encoding("a", add_special_tokens=adds).ids for adds in (False, True))
        starts = range(len(whole) - len(plain) + 1)
        start = next((index for index in starts if whole[index : index + len(plain)] == plain), 0)
        return whole[:start], whole[start + len(plain) :]

    def num_before(self, prefix: str) -> int:
        """Number of tokens before those of a text that is written after this prefix, special tokens included."""
        return len(self.encode(prefix)) - len(self._around[1])

    @functools.cached_property
    def _breaking(self) -> BreakingEncoder:
        return BreakingEncoder(self.backend, self.control_tokens)

    def _encode_broken(self, text: str, breaks: Sequence[int]) -> list[int]:
        encoder = self._breaking
        text = encoder.text_to_encode(text, breaks)
        return encoder.ids(self._encoding(text, add_special_tokens=False, backend=encoder.backend).ids)

    def encode_many(
        self, texts: Sequence[str] | Sequence[tuple[str, str]], *, add_special_tokens: bool = True
    ) -> list[tokenizers.Encoding]:
        """Encode texts, or pairs of texts, on several threads. Raises InvalidRequest as `encode` does."""
        with _refused_texts():
            return self.backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)

    def shortened(self, text: str, num_tokens: int, side: Side) -> str:
        """The part of a text that is its first `num_tokens` tokens, or its last ones if the left side is cut.

        The part may have some tokens more or less when it is encoded again, next to other text.
        """
        room = (num_tokens + _CUT_MARGIN) * self.max_token_bytes * self._max_composed
        text = text[:room] if side == "right" else text[-room:]
        with _refused_texts():
            offsets = self.backend.encode(text, add_special_tokens=False).offsets
        if len(offsets) <= num_tokens:
            return text
        if num_tokens == 0:
            return ""
        return text[: offsets[num_tokens - 1][1]] if side == "right" else text[offsets[-num_tokens][0] :]

    def _encoding(
        self, text: str, *, add_special_tokens: bool, backend: tokenizers.Tokenizer | None = None
    ) -> tokenizers.Encoding:
        """Raises InvalidRequest for a text that the library cannot encode."""
        began = time.perf_counter()
        try:
            with _refused_texts():
                return (backend or self.backend).encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
        finally:
            if len(text) <= self.inline_chars and time.perf_counter() - began > _SLOW_S:
                self.inline_chars = 0

    async def encode_async(
        self,
        text: str,
        max_tokens: int,
        *,
        param: str,
        breaks: Sequence[int] = (),
        add_special_tokens: bool = True,
        cut: Truncation | None = None,
        has_output: bool = True,
    ) -> list[int]:
        """`TextLimit.check`, then `encode`, or `encode_cut`; a long text in a thread (the library releases the GIL)."""

        def work() -> list[int]:
            if cut is not None:
                return self.encode_cut(text, cut, breaks, add_special_tokens=add_special_tokens)
            self.text_limit(max_tokens, has_output=has_output).check(text, param=param)
            return self.encode(text, breaks, add_special_tokens=add_special_tokens)

        return work() if len(text) <= self.inline_chars else await self.run(work)

    def word_ids(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The token ids of each word, as it is at the beginning of a text and after a space."""
        spellings = [prefix + word.lstrip() for word in words for prefix in ("", " ")]
        ids = [tuple(self.encode(spelling, add_special_tokens=False)) for spelling in spellings]
        return tuple(dict.fromkeys(each for each in ids if each))

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work()` on the tokenizer's threads."""
        if self._threads is None:
            workers = max(2, min(4, os.cpu_count() or 2))
            self._threads = ThreadPoolExecutor(workers, thread_name_prefix="tokenizer")
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def text_limit(self, max_tokens: int, *, has_output: bool = True) -> TextLimit:
        """The limit of texts that must fit into this number of tokens. has_output: as in TextLimit."""
        return TextLimit(max_tokens, self.max_token_bytes * self._max_composed, has_output)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of a whole sequence. Ids without a token (padding rows of a model) are ignored."""
        known = [token_id for token_id in token_ids if token_id < self.vocab_size]
        # As a batch of one: `decode` holds the GIL, a second for some million ids.
        return self.backend.decode_batch([known], skip_special_tokens=skip_special_tokens)[0]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of this token within a text; they may be a part of a character."""
        piece = self._bytes.get(token_id)
        if piece is None:
            token = self.backend.id_to_token(token_id)
            piece = b"" if token is None else piece_bytes(self.backend, self.pieces, token_id, token)
            self._bytes[token_id] = piece
        return piece

    def token_text(self, token_id: int) -> str:
        """The token's text; U+FFFD for a part of a character."""
        return self.token_bytes(token_id).decode("utf-8", "replace")


@contextlib.contextmanager
def _refused_texts() -> Iterator[None]:
    """Raises InvalidRequest for a text that the library cannot encode."""
    try:
        yield
    except BaseException as error:
        # Not an Exception: a panic of the library, here at the limit on steps of a pattern.
        if type(error).__name__ != "PanicException":
            raise
        raise InvalidRequest("the patterns of this model's tokenizer cannot process this text") from None


def _read_templates(folder: Path, config: dict[str, Any]) -> dict[str, TemplateSource]:
    try:
        return templates_in(folder, config)
    except ModelFilesError as error:
        raise TokenizerError(str(error)) from None
