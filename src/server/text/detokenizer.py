"""Detokenizer: token ids to text, piece by piece. TextStream: the same, ended by stop strings.

A character whose bytes are spread over several tokens is returned once, complete. The joined pieces are the full
decode.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

from ...engine.api import SamplingParams
from .tokenizer import Tokenizer

_CONTEXT_TOKENS = 6  # of the prompt, for decoders whose output depends on preceding tokens
_MAX_HELD_TOKENS = 8  # a character has at most 4 bytes: bytes still invalid after 8 tokens stay invalid


class _Pieces(Protocol):
    def step(self, token_id: int) -> str: ...

    def finish(self) -> str: ...


class _BytePieces:
    """For vocabularies whose tokens are byte strings: exact, with constant work per token.

    The library's DecodeStream differs from its decode() for invalid UTF-8, and cannot be finished.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def step(self, token_id: int) -> str:
        return self._decoder.decode(self._token_bytes(token_id))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _WindowPieces:
    """For other vocabularies: decodes the last tokens again and returns the characters that are new and complete."""

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int], skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._read = list(context)
        self._held: list[int] = []

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


class _StopString:
    """Knuth-Morris-Pratt: how many characters of one stop string the text ends with, in constant work per character."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self._fallback = [0] * len(stop)  # [i]: longest proper prefix of stop that is a suffix of stop[: i + 1]
        length = 0
        for index in range(1, len(stop)):
            while length and stop[index] != stop[length]:
                length = self._fallback[length - 1]
            length += stop[index] == stop[length]
            self._fallback[index] = length

    def step(self, character: str) -> bool:
        """Add the next character; True if the text now ends with the stop string."""
        while self.matched and self.stop[self.matched] != character:
            self.matched = self._fallback[self.matched - 1]
        self.matched += self.stop[self.matched] == character
        if self.matched < len(self.stop):
            return False
        self.matched = self._fallback[-1]
        return True


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that can be returned now."""

    text: str
    num_tokens: int  # of the added tokens, those that belong to the output: up to the end of the stop string
    stop: str | None = None  # the stop string that ended the text
    pieces: list[str] = field(default_factory=list)  # the text that each token completes, then the rest


class TextStream:
    """Detokenizer and stop strings of one sequence.

    Text that could be the beginning of a stop string is held back until that is decided. Of several stop strings, the
    first to be complete ends the text, so the result does not depend on how the text is divided into tokens.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        sampling: SamplingParams,
        prompt_token_ids: Sequence[int] = (),
        kept_ids: Set[int] = frozenset(),
    ) -> None:
        """kept_ids: special tokens that are text, also as the last one."""
        self._kept_ids = kept_ids
        self._detokenizer = Detokenizer(
            tokenizer,
            prompt_token_ids=prompt_token_ids,
            skip_special_tokens=sampling.skip_special_tokens,
            kept_ids=kept_ids,
        )
        self._stops = [_StopString(stop) for stop in sampling.stop]
        self._min_tokens = sampling.min_tokens
        self._include_stop = sampling.include_stop_str_in_output
        self._held = ""
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
                break
            stop = self._take(self._detokenizer.step(token_id), shown)
            if stop is not None:
                return TextDelta("".join(shown), index + 1, stop, shown)
        if finished:
            stop = self._take(self._detokenizer.finish(), shown)
            if stop is not None:
                return TextDelta("".join(shown), len(token_ids), stop, shown)
            shown.append(self._held)
            self._held = ""
        return TextDelta("".join(shown), len(token_ids), None, shown)

    def _take(self, piece: str, shown: list[str]) -> str | None:
        """Append the held text and `piece` to `shown`, as far as decided. Returns the stop string that was found."""
        if not self._stops:
            shown.append(piece)
            return None
        for index, character in enumerate(piece):
            complete = [stop.stop for stop in self._stops if stop.step(character)]
            if complete and self._num_tokens >= self._min_tokens:
                found = max(complete, key=len)
                text = self._held + piece[: index + 1]
                shown.append(text if self._include_stop else text[: len(text) - len(found)])
                self._held = ""
                return found
        text = self._held + piece
        keep = max(stop.matched for stop in self._stops)  # may be the beginning of a stop string
        shown.append(text[: len(text) - keep])
        self._held = text[len(text) - keep :]
        return None
