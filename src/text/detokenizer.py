"""Detokenizer: token ids to text, piece by piece. TextStream: the same, ended by stop strings.

A character whose bytes are spread over several tokens is returned once, complete. The joined pieces are the full
decode.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

from ..engine.api import SamplingParams
from .stop_strings import StopStrings
from .tokenizer import Tokenizer

_CONTEXT_TOKENS = 6  # of the prompt, for decoders whose output depends on preceding tokens
_MAX_HELD_TOKENS = 8  # a character has at most 4 bytes: bytes still invalid after 8 tokens stay invalid


class _Pieces(Protocol):
    @property
    def num_held(self) -> int:
        """How many of the last tokens, at most, have text that is not complete."""

    def step(self, token_id: int) -> str: ...

    def finish(self) -> str: ...


class _BytePieces:
    """Pieces for vocabularies whose tokens are byte strings: exact, with constant work per token.

    The library's DecodeStream differs from its decode() for invalid UTF-8, and cannot be finished.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def num_held(self) -> int:
        return len(self._decoder.getstate()[0])  # each token has a byte at least

    def step(self, token_id: int) -> str:
        return self._decoder.decode(self._token_bytes(token_id))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _WindowPieces:
    """Pieces for other vocabularies: decodes the last tokens again and returns the characters that are new and
    complete."""

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int], skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._read = list(context)
        self._held: list[int] = []

    @property
    def num_held(self) -> int:
        return len(self._held)

    def step(self, token_id: int) -> str:
        self._held.append(token_id)
        new = self._new_text()
        if not new or (new.endswith("\ufffd") and len(self._held) < _MAX_HELD_TOKENS):
            return ""
        self._read, self._held = self._held, []
        return new

    def finish(self) -> str:
        new = self._new_text() if self._held else ""
        self._held = []
        return new

    def _new_text(self) -> str:
        before = self._tokenizer.decode(self._read, skip_special_tokens=self._skip)
        return self._tokenizer.decode(self._read + self._held, skip_special_tokens=self._skip)[len(before) :]


class Detokenizer:
    """One sequence's tokens as text."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        prompt_token_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        kept_ids: Set[int] = frozenset(),
    ) -> None:
        """kept_ids: special tokens that are not skipped."""
        self._skip_ids = tokenizer.special_ids - kept_ids if skip_special_tokens else frozenset()
        self._pieces: _Pieces
        if tokenizer.pieces == "other":
            self._pieces = _WindowPieces(
                tokenizer, list(prompt_token_ids[-_CONTEXT_TOKENS:]), skip_special_tokens and not kept_ids
            )
        else:
            self._pieces = _BytePieces(tokenizer)

    def step(self, token_id: int) -> str:
        """The characters that this token completes: usually its text, empty within a character."""
        return "" if token_id in self._skip_ids else self._pieces.step(token_id)

    def finish(self) -> str:
        """The rest: U+FFFD if the sequence ended within a character."""
        return self._pieces.finish()

    def needed(self, token_ids: Sequence[int]) -> tuple[list[int], int]:
        """The tokens that a new Detokenizer needs to continue: some whose text is complete, as its prompt, and then the
        held ones, to be stepped again. The second value is the number of tokens of the prompt.
        """
        shown = [token_id for token_id in token_ids if token_id not in self._skip_ids]
        held = self._pieces.num_held
        kept = shown[-held - _CONTEXT_TOKENS :]
        return kept, max(0, len(kept) - held)


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that can be returned now."""

    text: str
    num_tokens: int  # of the added tokens, those that belong to the output: up to the end of the stop string
    stop: str | None = None  # the stop string that ended the text
    pieces: list[str] = field(default_factory=list)  # the text that each token completes, then the rest


class TextStream:
    """Detokenizer and stop strings of one sequence.

    Text that could be the beginning of a stop string is held back until that is decided.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        sampling: SamplingParams,
        prompt_token_ids: Sequence[int] = (),
        kept_ids: Set[int] = frozenset(),
        *,
        has_stops: bool = True,
    ) -> None:
        """
        kept_ids: special tokens that are text, also as the last one.
        has_stops: whether the stop strings end this text. False if a reader of it applies them.
        """
        self._kept_ids = kept_ids
        self._detokenizer = Detokenizer(
            tokenizer,
            prompt_token_ids=prompt_token_ids,
            skip_special_tokens=sampling.skip_special_tokens,
            kept_ids=kept_ids,
        )
        self._include_stop = sampling.include_stop_str_in_output
        self._stops = StopStrings(sampling.stop if has_stops else (), is_shown=self._include_stop)
        self._min_tokens = sampling.min_tokens
        self._num_tokens = 0

    def add(self, token_ids: Sequence[int], *, finished: bool = False, ends_with_stop_token: bool = False) -> TextDelta:
        """Add new tokens from the engine.

        finished: these are the last ones. ends_with_stop_token: the last of them ended the sequence (an end-of-sequence
        or stop token id); its text belongs to the output only with include_stop_str_in_output. After a delta with a
        stop string no tokens may be added.
        """
        shown: list[str] = []
        last = len(token_ids) - 1
        for index, token_id in enumerate(token_ids):
            self._num_tokens += 1
            is_stop = index == last and ends_with_stop_token
            if is_stop and not self._include_stop and token_id not in self._kept_ids:
                shown.append("")
                break
            stop = self._take(self._detokenizer.step(token_id), shown)
            if stop is not None:
                return TextDelta("".join(shown), index + 1, stop, shown)
        if finished:
            stop = self._take(self._detokenizer.finish(), shown)
            if stop is not None:
                return TextDelta("".join(shown), len(token_ids), stop, shown)
            shown[-1] += self._stops.flush()
        return TextDelta("".join(shown), len(token_ids), None, shown)

    def needed(self, token_ids: Sequence[int]) -> tuple[list[int], int]:
        """See Detokenizer.needed. Not for a text with stop strings, which may hold back more."""
        return self._detokenizer.needed(token_ids)

    def _take(self, piece: str, shown: list[str]) -> str | None:
        """Append what is decided of the text to `shown`. Returns the stop string that was found."""
        text, stop = self._stops.feed(piece, may_stop=self._num_tokens >= self._min_tokens)
        shown.append(text)
        return stop
