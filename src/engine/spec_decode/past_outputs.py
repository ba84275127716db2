"""PastOutputs: answers of earlier requests, and where in them a run of tokens occurred last.

The tokens are in a ring: an answer overwrites the oldest ones. The index is a table of fixed size with one place for a
hash of LEAST tokens. A place that was overwritten, or that belongs to another hash, is found out by its tokens.
What suffix decoding finds in a tree of all answers is found here in some 20 us for all sequences of a step, and a
table cannot grow. Source: Oliaro et al., SuffixDecoding, arXiv:2411.04975, section 3.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...config.auto_values import past_output_places
from ..step.plan import Int32, Int64

LEAST = 3  # tokens that must agree: with 4 and 6 fewer answers are found, with 2 many that are wrong
END = -1  # follows the last token of an answer
NONE = -2  # equals no token and no end
_UInt64 = npt.NDArray[np.uint64]
_MULTIPLIERS: _UInt64 = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)


class PastOutputs:
    def __init__(self, token_ids: Int32, first: int, longest: int) -> None:
        """
        token_ids: the ring, and one more that stays END. Places are counted from `first` tokens before it.
        longest: maximum number of tokens that are compared.
        """
        self._token_ids, self._first, self._longest = token_ids, first, max(longest, LEAST)
        self._capacity = len(token_ids) - 1
        size = past_output_places(self._capacity)
        self._last = np.empty(size, np.int32)  # by hash: index of the last of LEAST tokens
        self.clear()
        self._shift = np.uint64(64 - (size.bit_length() - 1))
        self.num_compared = self._longest

    def clear(self) -> None:
        self._token_ids[:] = END
        self._last[:] = -1
        self._head = 0

    def add(self, token_ids: Int32) -> None:
        """An answer has ended. Of one that is longer than the ring, its end is kept."""
        token_ids = token_ids[max(0, len(token_ids) - self._capacity + 1) :]
        if len(token_ids) <= LEAST:
            return
        if self._head + len(token_ids) + 1 > self._capacity:
            self._token_ids[self._head :] = END  # the rest of what was there would be half an answer without a begin
            self._head = 0
        end = self._head + len(token_ids)
        self._token_ids[self._head : end] = token_ids
        self._token_ids[end] = END
        runs = np.lib.stride_tricks.sliding_window_view(token_ids[:-1], LEAST)
        # Where runs have the same hash, numpy keeps the last one.
        self._last[self._hashes(runs)] = np.arange(self._head + LEAST - 1, end - 1, dtype=np.int32)
        self._head = end + 1

    def find(self, ends: Int32) -> tuple[Int64, Int64]:
        """The places where the last tokens of sequences occurred.

        ends: [R, num_compared], filled up with NONE at the left.
        Returns [R] the place of the token after them, -1 if there is none, and [R] how many of them agree.
        """
        last = self._last[self._hashes(ends[:, -LEAST:])].astype(np.int64)
        at = last[:, None] - np.arange(self._longest)
        agrees = (self._token_ids[np.maximum(at, 0)] == ends[:, ::-1]) & (at >= 0)
        matched: Int64 = np.logical_and.accumulate(agrees, axis=1).sum(axis=1)
        is_found = (matched >= LEAST) & (self._token_ids[last + 1] != END)
        return np.where(is_found, self._first + last + 1, -1), np.where(is_found, matched, 0)

    def after(self, place: int, count: int) -> list[int]:
        """Up to `count` tokens of an answer from this place on."""
        start = place - self._first
        found: list[int] = self._token_ids[start : start + count].tolist()
        return found[: found.index(END)] if END in found else found

    def _hashes(self, runs: npt.NDArray[np.int32]) -> Int64:
        """[N] of [N, LEAST]. The high bits of the sum depend on all bits of the tokens."""
        sums: _UInt64 = (runs.astype(np.uint64) * _MULTIPLIERS).sum(axis=1, dtype=np.uint64)
        return (sums >> self._shift).astype(np.int64)
