"""Bytes that sequences take in the KV cache: of each token, of windows, and of each sequence."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable

from ...model.cache_groups import CacheGroups, blocks_of_window, most_tokens
from ...model.mixers import Keeps
from ...model.record import Record
from ...model.sizes import kv_bytes


class KVCost(Record):
    """Bytes on one device.

    token_bytes: per token, in layers that keep all tokens. windows: window length and bytes per token, of layers that
    keep a window. sequence_bytes: per sequence, independent of its length. step_tokens: maximum of a chunk of a prompt;
    while it is computed, layers that keep a window need more than that. None: they need the window only.
    num_parts: devices that share the tokens of each sequence; a block has its part of them on each.
    """

    block_size: int
    token_bytes: int
    windows: tuple[tuple[int, int], ...]
    sequence_bytes: int
    step_tokens: int | None = None
    num_parts: int = 1

    def of(self, num_tokens: int) -> int:
        """Bytes of one sequence of `num_tokens` tokens, in whole blocks."""
        return self._bytes(num_tokens, self._whole)

    def to_admit(self, num_tokens: int) -> int:
        """Bytes that the cache must have for one sequence of `num_tokens` tokens."""
        size, step_tokens = self.block_size, self.step_tokens
        if step_tokens is None:
            return self.of(num_tokens)
        return self._bytes(num_tokens, lambda window: blocks_of_window(window, size, step_tokens) * size)

    def num_sequences(self, num_bytes: int, num_tokens: int) -> int:
        """How many sequences of this length fit at a time, admitted one after another. They may need nothing."""
        each, last = self.of(num_tokens), self.to_admit(num_tokens)  # the last one's prompt is computed then
        return 0 if num_bytes < last else 1 + (num_bytes - last) // each if each else sys.maxsize

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, over all layers: the unit of a cache. One byte if only sequences need any, else 0."""
        return self.to_admit(1) - self.sequence_bytes or min(1, self.sequence_bytes)

    def in_blocks(self, num_tokens: int) -> int:
        """Bytes of the whole blocks, over all layers, that admit one sequence of `num_tokens` tokens."""
        return -(-self.to_admit(num_tokens) // max(1, self.block_bytes)) * self.block_bytes

    def longest(self, num_bytes: int, limit: int) -> int:
        """Length of the longest sequence that fits into `num_bytes`, at most `limit` tokens."""
        return most_tokens(self.to_admit, num_bytes, self.block_size, limit)

    def _bytes(self, num_tokens: int, kept: Callable[[int], int]) -> int:
        """kept: tokens that a layer with this window keeps of a long sequence."""
        held = self._whole(num_tokens)
        forgetful = sum(min(held, kept(window)) * size for window, size in self.windows)
        return held * self.token_bytes // self.num_parts + forgetful + self.sequence_bytes

    def _whole(self, num_tokens: int) -> int:
        """Tokens in whole blocks."""
        return -(-num_tokens // self.block_size) * self.block_size


def kv_cost_of_groups(
    groups: CacheGroups,
    keeps: Keeps,
    kv_dtype: str,
    block_size: int,
    *,
    step_tokens: int,
    num_parts: int = 1,
    beside: int = 0,
) -> KVCost:
    """KV cost of this build's engine, whose blocks belong to groups of layers. States have separate memory.

    keeps: of the layer that keeps most of each token. beside: bytes of a token that a network for drafts keeps.
    """
    one = groups.num_planes * kv_bytes(keeps, kv_dtype)
    counts = Counter(window for window in groups.windows if window is not None)
    return KVCost(
        block_size=block_size,
        token_bytes=groups.windows.count(None) * one + beside,
        windows=tuple((window, count * one) for window, count in sorted(counts.items())),
        sequence_bytes=0,
        step_tokens=step_tokens,
        num_parts=num_parts,
    )
