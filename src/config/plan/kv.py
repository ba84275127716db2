"""Bytes that sequences take in the KV cache, by kind of layer: full attention, sliding window, state."""

from __future__ import annotations

from ..resolve.resolved import DTYPE_BYTES, Record
from .shape import ModelShape


class KVCost(Record):
    """Bytes on one device.

    token_bytes: per token, in layers that keep all tokens. windows: window length and bytes per token, of layers that
    keep a window. sequence_bytes: per sequence, independent of its length.
    """

    block_size: int
    token_bytes: int
    windows: tuple[tuple[int, int], ...]
    sequence_bytes: int

    def of(self, num_tokens: int) -> int:
        """Bytes of one sequence of `num_tokens` tokens, in whole blocks."""
        held = self._blocks(num_tokens)
        forgetful = sum(min(held, self._blocks(window)) * size for window, size in self.windows)
        return held * self.token_bytes + forgetful + self.sequence_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, over all layers."""
        return max(1, self.of(1) - self.sequence_bytes)

    def longest(self, num_bytes: int, limit: int) -> int:
        """Length of the longest sequence that fits into `num_bytes`, at most `limit` tokens."""
        if self.of(limit) <= num_bytes:
            return limit
        low, high = 0, limit  # of(high) does not fit
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.of(middle) <= num_bytes else (low, middle)
        return low // self.block_size * self.block_size

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size) * self.block_size


def kv_cost(
    shape: ModelShape,
    kv_dtype: str,
    block_size: int,
    *,
    keeps_everything: bool = False,
    tensor_parallel_size: int = 1,
) -> KVCost:
    """keeps_everything: layers with a window keep all tokens too, as this build does."""
    size = DTYPE_BYTES[kv_dtype]
    parts = min(tensor_parallel_size, max(1, shape.num_kv_heads))  # a key-value head is never split
    per_token, per_sequence = 0, 0
    windows: dict[int, int] = {}
    for layer in shape.layers:
        if layer.kind == "latent":  # one vector for all heads: replicated on every device
            per_token += layer.width * size
        elif layer.kind == "full" or (layer.kind == "window" and keeps_everything):
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
