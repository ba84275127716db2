"""Bytes that sequences take in the KV cache, by kind of layer: full attention, sliding window, state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ...model.cache_groups import CacheGroups, blocks_of_window
from ...model.mixers import Keeps
from ...model.record import Record
from ...model.sizes import DTYPE_BYTES, kept_bytes, kv_bytes
from ...model.spec import ModelSpec


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
        held = self._blocks(num_tokens)
        forgetful = sum(min(held, self._blocks(window)) * size for window, size in self.windows)
        return held * self.token_bytes // self.num_parts + forgetful + self.sequence_bytes

    def to_admit(self, num_tokens: int) -> int:
        """Bytes that the cache must have for one sequence of `num_tokens` tokens."""
        if self.step_tokens is None:
            return self.of(num_tokens)
        held, size = self._blocks(num_tokens), self.block_size
        forgetful = sum(
            min(held, blocks_of_window(window, size, self.step_tokens) * size) * each for window, each in self.windows
        )
        return held * self.token_bytes // self.num_parts + forgetful + self.sequence_bytes

    def num_sequences(self, num_bytes: int, num_tokens: int) -> int:
        """How many sequences of this length fit at a time, admitted one after another."""
        last = self.to_admit(num_tokens)  # while its prompt is computed
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


def kv_cost(spec: ModelSpec, kv_dtype: str, block_size: int, num_parts: int = 1) -> KVCost:
    """KV cost of an engine that keeps in each layer what the layer needs."""
    per_token, per_sequence = 0, 0
    windows: dict[int, int] = {}
    for keeps, count in Counter(_keeps(spec)).items():
        num_bytes = count * _bytes(keeps, kv_dtype)
        match keeps.kind:
            case "full" | "latent":
                per_token += num_bytes
            case "window":
                windows[keeps.window] = windows.get(keeps.window, 0) + num_bytes
            case "state":
                per_sequence += num_bytes
            case "cross":
                per_sequence += num_bytes * keeps.window
    return KVCost(
        block_size=block_size,
        token_bytes=per_token,
        windows=tuple(sorted(windows.items())),
        sequence_bytes=per_sequence,
        num_parts=num_parts,
    )


def kv_cost_of_groups(
    groups: CacheGroups,
    spec: ModelSpec,
    kv_dtype: str,
    block_size: int,
    *,
    step_tokens: int,
    num_parts: int = 1,
) -> KVCost:
    """KV cost of this build's engine, whose blocks belong to groups of layers. States have separate memory."""
    keeps = spec.keeps
    one = groups.num_planes * _bytes(keeps, kv_dtype)
    counts = Counter(window for window in groups.windows if window is not None)
    return KVCost(
        block_size=block_size,
        token_bytes=groups.windows.count(None) * one,
        windows=tuple((window, count * one) for window, count in sorted(counts.items())),
        sequence_bytes=0,
        step_tokens=step_tokens,
        num_parts=num_parts,
    )


def by_kind(spec: ModelSpec, kv_dtype: str, state_dtype: str) -> list[tuple[str, int, int, int]]:
    """Kind of layer, number of layers, bytes of one layer per token (per sequence for state), tokens kept (0: all)."""
    found: dict[tuple[str, int, int], int] = {}
    for keeps, count in Counter(_keeps(spec)).items():
        key = (keeps.kind, _bytes(keeps, kv_dtype, DTYPE_BYTES[state_dtype]), keeps.window)
        found[key] = found.get(key, 0) + count
    return [(kind, count, num_bytes, window) for (kind, num_bytes, window), count in found.items()]


def _keeps(spec: ModelSpec) -> Iterator[Keeps]:
    kept = (mixer.keeps for layer in spec.layers for mixer in layer.mixers)
    return (keeps for keeps in kept if keeps.kind != "nothing")


def _bytes(keeps: Keeps, kv_dtype: str, size_of_sums: int = 4) -> int:
    """Bytes of one layer, per token or per sequence."""
    if keeps.kind == "state":
        return kept_bytes(keeps, max(2, DTYPE_BYTES[kv_dtype]), size_of_sums)  # never in 8 bits
    return kv_bytes(keeps, kv_dtype)
