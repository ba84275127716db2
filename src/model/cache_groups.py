"""Groups of layers that keep the same part of a sequence in the KV cache, over one pool of blocks.

A layer with a sliding window needs only the keys and values of the window, other layers those of all tokens. Layers of
one kind form one group or several of equal size, and each group has a block table of its own, so that it can give
blocks back on its own. A block holds the keys and values of `block_size` tokens for the layers of one group; since all
groups have the same size, any block of the pool serves any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .sizes import DTYPE_BYTES
from .spec import ModelSpec

MAX_GROUPS = 8  # the scheduler works on each group's table
MAX_UNUSED = 0.15  # share of the blocks' memory that incomplete groups leave unused, for the sake of fewer groups


@dataclass(frozen=True, slots=True)
class CacheGroups:
    """windows: of each group, in tokens; None: its layers see all tokens.

    layers: group of each layer of the model; None of a layer without keys and values.
    num_planes: layers of a group. A group with fewer leaves a part of its blocks unused.
    """

    windows: tuple[int | None, ...]
    num_planes: int
    layers: tuple[int | None, ...]

    @property
    def num_groups(self) -> int:
        return len(self.windows)

    @property
    def planes(self) -> tuple[int | None, ...]:
        """The plane of each layer: its place within its group's blocks. None of a layer without keys and values."""
        counts = [0] * self.num_groups
        found: list[int | None] = []
        for group in self.layers:
            found.append(None if group is None else counts[group])
            if group is not None:
                counts[group] += 1
        return tuple(found)


def has_cache_groups(device: str, is_disabled: bool) -> bool:
    """Whether each kind of layer has groups of its own. A GPU's tables hold one block table for each slot.

    is_disabled: `scheduler.disable_hybrid_kv_cache_manager`.
    """
    return device == "cpu" and not is_disabled


def model_cache_groups(spec: ModelSpec, max_context: int, is_hybrid: bool) -> CacheGroups:
    """The groups of a model's layers. A window that holds the longest context is none.

    is_hybrid: groups for each kind of layer, or one for all.
    """
    has_keys = [layer.has_keys for layer in spec.layers]
    windows = [
        window if window is not None and window < max_context else None
        for window, has_some in zip(spec.windows, has_keys, strict=True)
        if has_some
    ]
    groups = cache_groups(windows) if is_hybrid else all_in_one(len(windows))
    of_attention = iter(groups.layers)
    return replace(groups, layers=tuple(next(of_attention) if has_some else None for has_some in has_keys))


def blocks_of_window(window: int, block_size: int, step_tokens: int) -> int:
    """Blocks that a sequence needs at a time in a group with this window while its prompt is computed in chunks.

    Of the window, of the chunk that is planned, and of one in flight, whose blocks come back when its step is finished.
    """
    return -(-(window + 2 * step_tokens) // block_size) + 2


def kv_bytes_per_token(spec: ModelSpec, dtype: str, groups: CacheGroups) -> int:
    """Bytes of one token in the blocks of all groups."""
    return groups.num_groups * groups.num_planes * spec.keeps.width * DTYPE_BYTES[dtype]


def all_in_one(num_layers: int) -> CacheGroups:
    """One group that keeps everything."""
    return one_group([None] * num_layers)


def one_group(windows: Sequence[int | None]) -> CacheGroups:
    """All layers in one group, which keeps what the layer with the longest window needs."""
    longest = None if None in windows else max(window or 0 for window in windows)
    return CacheGroups((longest,), len(windows), (0,) * len(windows))


def cache_groups(windows: Sequence[int | None]) -> CacheGroups:
    """Groups for layers with these windows: the fewest whose unused memory is tolerable, or the least unused memory."""
    kinds = list(dict.fromkeys(windows))
    counts = {kind: windows.count(kind) for kind in kinds}
    if len(kinds) == 1 or len(kinds) > MAX_GROUPS:
        return one_group(windows)

    def num_groups(num_planes: int) -> int:
        return sum(-(-count // num_planes) for count in counts.values())

    possible = [size for size in range(1, max(counts.values()) + 1) if num_groups(size) <= MAX_GROUPS]
    tolerable = [size for size in possible if num_groups(size) * size <= (1 + MAX_UNUSED) * len(windows)]
    num_planes = max(tolerable) if tolerable else min(possible, key=lambda size: num_groups(size) * size)
    group_windows: list[int | None] = []
    firsts: dict[int | None, int] = {}
    for kind in kinds:
        firsts[kind] = len(group_windows)
        group_windows += [kind] * -(-counts[kind] // num_planes)
    seen = dict.fromkeys(kinds, 0)
    layers = []
    for window in windows:
        layers.append(firsts[window] + seen[window] // num_planes)
        seen[window] += 1
    return CacheGroups(tuple(group_windows), num_planes, tuple(layers))
