"""Shares: what each key has stored, and whose oldest responses are removed when that exceeds the limits.

The key that has most loses them: a key that fills the store removes its own responses, not others'.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Share:
    sizes: OrderedDict[str, int] = field(default_factory=OrderedDict)  # response id -> bytes, the oldest first
    num_bytes: int = 0


class Shares:
    """Counts what each owner has stored. Not thread-safe. owner: the key."""

    def __init__(self, max_responses: int, max_bytes: int) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._of: dict[str, _Share] = {}
        self._num_responses = 0
        self._num_bytes = 0

    def add(self, owner: str, response_id: str, num_bytes: int) -> None:
        """Add a response as the newest of its owner; it replaces the one that had its id."""
        self.remove(owner, response_id)
        share = self._of.setdefault(owner, _Share())
        share.sizes[response_id] = num_bytes
        share.num_bytes += num_bytes
        self._num_bytes += num_bytes
        self._num_responses += 1

    def remove(self, owner: str, response_id: str) -> None:
        """Remove a response, unless it is unknown."""
        share = self._of.get(owner)
        if share is None or response_id not in share.sizes:
            return
        num_bytes = share.sizes.pop(response_id)
        share.num_bytes -= num_bytes
        self._num_bytes -= num_bytes
        self._num_responses -= 1
        if not share.sizes:
            del self._of[owner]

    def take_excess(self) -> list[tuple[str, str]]:
        """Owner and id of each response that must be removed; they are forgotten here."""
        found: list[tuple[str, str]] = []
        while self._num_bytes > self._max_bytes or self._num_responses > self._max_responses:
            is_large = self._num_bytes > self._max_bytes
            owner, share = max(self._of.items(), key=lambda each: each[1].num_bytes if is_large else len(each[1].sizes))
            response_id = next(iter(share.sizes))
            self.remove(owner, response_id)
            found.append((owner, response_id))
        return found
