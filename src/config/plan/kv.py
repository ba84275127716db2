"""What layers keep, by kind: full attention, sliding window, state; and the KV cost of an engine that keeps that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ...model.mixers import Keeps
from ...model.sizes import DTYPE_BYTES, kept_bytes, kv_bytes
from ...model.spec import ModelSpec
from ..memory.kv_cost import KVCost


def kv_cost(spec: ModelSpec, kv_dtype: str, block_size: int, num_parts: int = 1) -> KVCost:
    """KV cost of an engine that keeps in each layer what the layer needs."""
    per_token, per_sequence = 0, 0
    windows: dict[int, int] = {}
    for keeps, count in Counter(_keeps(spec)).items():
        num_bytes = count * _bytes(keeps, kv_dtype)
        match keeps.kind:
            case "full" | "latent" if not keeps.window:
                per_token += num_bytes
            case "window" | "latent":
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


def by_kind(spec: ModelSpec, kv_dtype: str, state_dtype: str) -> list[tuple[str, int, int, int]]:
    """Kind of layer, number of layers, bytes of one layer per token (per sequence for state), tokens kept (0: all)."""
    found: dict[tuple[str, int, int], int] = {}
    for keeps, count in Counter(_keeps(spec)).items():
        key = (keeps.kind, _bytes(keeps, kv_dtype, DTYPE_BYTES[state_dtype]), keeps.window)
        found[key] = found.get(key, 0) + count
    return [(kind, count, num_bytes, window) for (kind, num_bytes, window), count in found.items()]


def _keeps(spec: ModelSpec) -> Iterator[Keeps]:
    for layer in spec.layers:
        yield from (mixer.keeps for mixer in layer.mixers if mixer.keeps.kind not in ("nothing", "state"))
        if layer.state is not None:
            yield layer.state.keeps


def _bytes(keeps: Keeps, kv_dtype: str, size_of_sums: int = 4) -> int:
    """Bytes of one layer, per token or per sequence."""
    if keeps.kind == "state":
        return kept_bytes(keeps, max(2, DTYPE_BYTES[kv_dtype]), size_of_sums)  # never in 8 bits
    return kv_bytes(keeps, kv_dtype)
