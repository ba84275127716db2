"""Server-sent events: the frames of a streamed answer.

A stream is frames and then `[DONE]`, or frames and then one error frame. Nearly all frames are text deltas, so their
constant part is encoded once per stream.
"""

from __future__ import annotations

import json
from typing import Any

from .errors import ApiError
from .json import dump, dump_long

DONE = b"data: [DONE]\n\n"
# Line ends of Unicode that JSON may contain as they are: clients that read lines of text, such as httpx, split there.
_LINE_ENDS = tuple((end.encode(), rf"\u{ord(end):04x}".encode()) for end in "\x85\u2028\u2029")


def frame(value: Any) -> bytes:
    return b"data: " + _on_one_line(dump(value)) + b"\n\n"


def event_frame(kind: str, value: Any) -> bytes:
    """An event with a name, as in the Responses and Messages APIs."""
    return b"event: " + kind.encode() + b"\n" + frame(value)


def error_frame(error: ApiError) -> bytes:
    return frame(error.body)


class ChunkWriter:
    """Frames of one stream. `head`: the fields that all its chunks have in common."""

    def __init__(self, head: dict[str, Any], *, has_usage: bool) -> None:
        self._head = head
        # As in OpenAI's API: with include_usage every chunk has `usage`, null except in the last.
        self._tail = {"usage": None} if has_usage else {}
        start = dump({**head, "choices": []}).removesuffix(b"]}")
        end = b"]" + dump(self._tail).replace(b"{", b",", 1) if self._tail else b"]}"
        self._before = b"data: " + start + b'{"index":'
        self._delta = b',"delta":{"content":'
        self._text = b',"text":'
        self._after_delta = b'},"logprobs":null,"finish_reason":null}' + end + b"\n\n"
        self._after_text = b',"logprobs":null,"finish_reason":null}' + end + b"\n\n"

    def choice(
        self,
        choice: dict[str, Any],
        usage: dict[str, Any] | None = None,
        extra: dict[str, Any] | None = None,
        *,
        is_long: bool = False,
    ) -> bytes:
        """usage: of the request so far. extra: further fields of the chunk. is_long: encode it as `dump_long` does."""
        tail = self._tail if usage is None else {"usage": usage}
        chunk = {**self._head, "choices": [choice], **tail, **(extra or {})}
        return b"data: " + _on_one_line(dump_long(chunk)) + b"\n\n" if is_long else frame(chunk)

    def chat_text(self, index: int, text: str) -> bytes:
        """A chunk with a piece of a message and nothing else."""
        return b"%b%d%b%b%b" % (self._before, index, self._delta, _string(text), self._after_delta)

    def completion_text(self, index: int, text: str) -> bytes:
        return b"%b%d%b%b%b" % (self._before, index, self._text, _string(text), self._after_text)

    def usage(self, usage: dict[str, Any], extra: dict[str, Any] | None = None) -> bytes:
        """The last chunk. extra: further fields of it."""
        return frame({**self._head, "choices": [], "usage": usage, **(extra or {})})


def _string(text: str) -> bytes:
    return _on_one_line(json.dumps(text, ensure_ascii=False).encode())


def _on_one_line(data: bytes) -> bytes:
    """data: JSON, which has these characters in strings only."""
    for end, escaped in _LINE_ENDS:
        if end in data:
            data = data.replace(end, escaped)
    return data
