"""Finds the tokens of the content by their text, however tokens and text were grouped in time."""

from __future__ import annotations

from ...engine.api import TokenLogprobs
from ...formats.events import Content, Event, Reasoning


class TokenOwners:
    """Remembers the log-probabilities of tokens whose text is in no event yet."""

    def __init__(self) -> None:
        self._text = ""  # of those tokens
        self._tokens: list[tuple[TokenLogprobs | None, int]] = []  # with the length of their texts

    def add(self, logprobs: TokenLogprobs | None, text: str) -> None:
        """A token and the text that it completes. None: the request asks for no log-probabilities."""
        if logprobs is not None:
            self._tokens.append((logprobs, len(text)))
            self._text += text

    def take(self, event: Event) -> list[TokenLogprobs]:
        """The tokens that are the text of this event, if it is content. Tokens before them are forgotten: they are
        markers, white space around these, reasoning, or a call.

        A token without text, such as the first part of a character, belongs to the next one. A token whose
        text is in two events belongs to the first.
        """
        if not self._tokens:
            return []
        if not isinstance(event, Content | Reasoning):
            self._tokens = self._tokens[-1:]  # content can follow in the same token
            self._text = self._text[len(self._text) - self._tokens[0][1] :]
            return []
        begin = self._text.rfind(event.text)  # what is after it is held back: white space, the beginning of a marker
        if begin < 0:
            return []
        end = begin + len(event.text)
        found: list[TokenLogprobs] = []
        waiting: list[TokenLogprobs] = []
        position = num_taken = 0
        for logprobs, length in self._tokens:
            if position >= end:
                break
            num_taken += 1
            position += length
            if logprobs is not None:
                waiting.append(logprobs)
            if length:
                if position > begin:
                    found += waiting
                waiting = []
        rest = self._tokens[num_taken:]
        self._tokens = [(None, position - end), *rest] if position > end else rest
        self._text = self._text[end:]
        return found if isinstance(event, Content) else []
