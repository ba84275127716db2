"""Bytes that sequences take in the KV cache, by kind of layer: full attention, sliding window, state."""

from __future__ import annotations

from collections import Counter

from ..cache_groups import CacheGroups
from ..resolve.resolved import DTYPE_BYTES, Record
from .shape import ModelShape


class KVCost(Record):
    """Bytes on one device.

    token_bytes: per token, in layers that keep all tokens. windows: window length and bytes per token, of layers that
    keep a window. sequence_bytes: per sequence, independent of its length. is_admitted_whole: a sequence is admitted
    when there are blocks for all its tokens, also in layers that keep a window.
    """

    block_size: int
    token_bytes: int
    windows: tuple[tuple[int, int], ...]
    sequence_bytes: int
    is_admitted_whole: bool = False

    def of(self, num_tokens: int) -> int:
        """Bytes of one sequence of `num_tokens` tokens, in whole blocks."""
        held = self._blocks(num_tokens)
        forgetful = sum(min(held, self._blocks(window)) * size for window, size in self.windows)
        return held * self.token_bytes + forgetful + self.sequence_bytes

    def to_admit(self, num_tokens: int) -> int:
        """Bytes that must be free for one sequence of `num_tokens` tokens."""
        if not self.is_admitted_whole:
            return self.of(num_tokens)
        per_token = self.token_bytes + sum(size for _, size in self.windows)
        return self._blocks(num_tokens) * per_token + self.sequence_bytes

    def num_sequences(self, num_bytes: int, num_tokens: int) -> int:
        """How many sequences of this length fit at a time, admitted one after another."""
        last = self.to_admit(num_tokens)
        return 0 if num_bytes < last else 1 + (num_bytes - last) // max(1, self.of(num_tokens))

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, over all layers."""
        return max(1, self.to_admit(1) - self.sequence_bytes)

    def longest(self, num_bytes: int, limit: int) -> int:
        """Length of the longest sequence that fits into `num_bytes`, at most `limit` tokens."""
        if self.to_admit(limit) <= num_bytes:
            return limit
        low, high = 0, limit  # high does not fit
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.to_admit(middle) <= num_bytes else (low, middle)
        return low // self.block_size * self.block_size

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size) * self.block_size


def kv_cost(
    shape: ModelShape,
    kv_dtype: str,
    block_size: int,
    *,
    tensor_parallel_size: int = 1,
) -> KVCost:
    """Of an engine that keeps in each layer what the layer needs."""
    size = DTYPE_BYTES[kv_dtype]
    parts = min(tensor_parallel_size, max(1, shape.num_kv_heads))  # a key-value head is never split
    per_token, per_sequence = 0, 0
    windows: dict[int, int] = {}
    for layer in shape.layers:
        if layer.kind == "latent":  # one vector for all heads: replicated on every device
            per_token += layer.width * size
        elif layer.kind == "full":
            per_token += layer.width * size // parts
        elif layer.kind == "window":
            windows[layer.window] = windows.get(layer.window, 0) + layer.width * size // parts
        elif layer.kind == "state":
            in_float32 = layer.float32_width * 4
            per_sequence += (in_float32 + (layer.width - layer.float32_width) * 2) // tensor_parallel_size
        elif layer.kind == "cross":
            per_sequence += layer.width * layer.window * size // parts
    return KVCost(
        block_size=block_size,
        token_bytes=per_token,
        windows=tuple(sorted(windows.items())),
        sequence_bytes=per_sequence,
    )


def kv_cost_of_groups(
    groups: CacheGroups, shape: ModelShape, kv_dtype: str, block_size: int, *, tensor_parallel_size: int = 1
) -> KVCost:
    """Of this build's engine, whose blocks are those of groups of layers."""
    parts = min(tensor_parallel_size, max(1, shape.num_kv_heads))
    one = groups.num_planes * 2 * shape.num_kv_heads * shape.head_dim * DTYPE_BYTES[kv_dtype] // parts
    counts = Counter(window for window in groups.windows if window is not None)
    return KVCost(
        block_size=block_size,
        token_bytes=groups.windows.count(None) * one,
        windows=tuple((window, count * one) for window, count in sorted(counts.items())),
        sequence_bytes=0,
        is_admitted_whole=True,
    )


def by_kind(shape: ModelShape, kv_dtype: str) -> list[tuple[str, int, int, int]]:
    """Kind of layer, number of layers, bytes of one layer per token (per sequence for state), tokens kept (0: all)."""
    size = DTYPE_BYTES[kv_dtype]
    found: dict[tuple[str, int, int], int] = {}
    for layer in shape.layers:
        num_bytes = layer.width * size
        if layer.kind == "state":
            num_bytes = layer.float32_width * 4 + (layer.width - layer.float32_width) * 2
        key = (layer.kind, num_bytes, layer.window)
        found[key] = found.get(key, 0) + 1
    return [(kind, count, num_bytes, window) for (kind, num_bytes, window), count in found.items()]
