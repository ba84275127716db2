"""Finds where the prompt of a session stops being the beginning of its next prompt.

An agent sends its whole conversation again with every request. As long as the previous prompt is a prefix of the new
one, only new tokens are computed. If something in the middle changes, all that follows is computed again: this finds
the token at which that happens. The last prompt of each session is kept, within a limit of tokens over all sessions.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_WIDTH = 4  # bytes of a token id
MAX_BYTES = 32 << 20  # of all prompts that are kept
MAX_SESSIONS = 4096
MAX_NAME_CHARS = 512
SESSION_HEADER = b"x-session-id"


@dataclass(frozen=True, slots=True)
class Prefix:
    """num_kept: how many of the `num_before` tokens of the previous prompt begin the new one."""

    num_kept: int
    num_before: int

    @property
    def has_diverged(self) -> bool:
        return self.num_kept < self.num_before


def packed(prompt: Sequence[int]) -> bytes:
    """A prompt as `Sessions` keeps it."""
    return array("i", prompt).tobytes()


class Sessions:
    def __init__(self, max_bytes: int = MAX_BYTES, max_sessions: int = MAX_SESSIONS) -> None:
        self._max_bytes = max_bytes
        self._max_sessions = max_sessions
        self._num_bytes = 0
        self._last: OrderedDict[tuple[str, str], bytes] = OrderedDict()  # the one not used for longest is first

    def __len__(self) -> int:
        return len(self._last)

    def next(self, owner: str, name: str, prompt: bytes) -> Prefix | None:
        """What the previous prompt and this one have in common; None for the first prompt of a session.

        owner: clients of other keys have other sessions.
        """
        key = (owner, name[:MAX_NAME_CHARS])
        before = self._last.pop(key, None)
        if before is not None:
            self._num_bytes -= len(before)
        self._last[key] = prompt
        self._num_bytes += len(prompt)
        while self._num_bytes > self._max_bytes or len(self._last) > self._max_sessions:
            self._num_bytes -= len(self._last.popitem(last=False)[1])
        return None if before is None else Prefix(_num_equal(before, prompt), len(before) // _WIDTH)


def _num_equal(one: bytes, other: bytes) -> int:
    """Tokens of the common beginning, by bisection: bytes are compared much faster than numbers."""
    low, high = 0, min(len(one), len(other)) // _WIDTH
    while low < high:
        middle = (low + high + 1) // 2
        if one[low * _WIDTH : middle * _WIDTH] == other[low * _WIDTH : middle * _WIDTH]:
            low = middle
        else:
            high = middle - 1
    return low


def session_of(headers: Sequence[tuple[bytes, bytes]], prompt_cache_key: str | None, metadata: Any) -> str | None:
    """The session that a request names: by a header, its `prompt_cache_key`, or Anthropic's `metadata.user_id`."""
    for name, value in headers:
        if name == SESSION_HEADER and value:
            return value.decode("latin-1")
    if prompt_cache_key:
        return prompt_cache_key
    user = metadata.get("user_id") if isinstance(metadata, Mapping) else None
    return user if isinstance(user, str) and user else None
