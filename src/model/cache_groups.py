"""Groups of layers that keep the same part of a sequence in the KV cache, over one pool of blocks.

A layer with a sliding window needs only the keys and values of the window, other layers of all tokens. Layers of
one kind form one group or several of equal size, and each group has its own block table, so that it can give
blocks back on its own. A block holds the keys and values of `block_size` tokens for the layers of one group; since all
groups have the same size, any block of the pool serves any of them. Layers whose keys and values are narrower than
others' share a place: two of half the width, for example.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from .pipeline_stages import stages
from .sizes import kv_bytes
from .spec import ModelSpec

BLOCK_SIZES = (8, 16, 32, 64, 128)  # tokens
MAX_GROUPS = 8  # the scheduler works on each group's table
MAX_UNUSED = 0.15  # share of the blocks' memory that incomplete groups leave unused, for the sake of fewer groups


class Place(NamedTuple):
    """Place of a layer's tokens within the blocks of its group: `part` of the `shares` equal parts of a plane."""

    plane: int
    shares: int = 1
    part: int = 0


class View(NamedTuple):
    """The blocks of a group, each divided into `shares` smaller ones, of which a layer uses number `part`."""

    group: int
    shares: int = 1
    part: int = 0


@dataclass(frozen=True, slots=True)
class CacheGroups:
    """windows: of each group, in tokens; None: its layers see all tokens.

    layers: group of each layer of the model; None of a layer without keys and values.
    num_planes: layers of a group. A group with fewer leaves a part of its blocks unused.
    shares: of each layer: how many layers of its width share a plane; () if all have the same.
    keys_of: of each layer: the layer before it whose group and place it has too; () if each has its own.
    """

    windows: tuple[int | None, ...]
    num_planes: int
    layers: tuple[int | None, ...]
    shares: tuple[int, ...] = ()
    keys_of: tuple[int | None, ...] = ()

    @property
    def num_groups(self) -> int:
        return len(self.windows)

    @property
    def places(self) -> tuple[Place | None, ...]:
        """Place of each layer; None for a layer without keys and values."""
        counts = [0] * self.num_groups
        last: dict[tuple[int, int], Place] = {}  # of the layers of a group that share planes
        found: list[Place | None] = []
        by_layer = self.shares or (1,) * len(self.layers), self.keys_of or (None,) * len(self.layers)
        for group, shares, source in zip(self.layers, *by_layer, strict=True):
            if group is None or source is not None:
                found.append(None if source is None else found[source])
                continue
            before = last.get((group, shares))
            if before is not None and before.part + 1 < shares:
                place = before._replace(part=before.part + 1)
            else:
                place = Place(counts[group], shares)
                counts[group] += 1
            last[group, shares] = place
            found.append(place)
        return tuple(found)

    def of_layers(self, layers: range) -> CacheGroups:
        """The same groups without other layers; these layers read no keys of others."""
        own = replace(self, layers=self.layers[layers.start : layers.stop], keys_of=())
        own = replace(own, shares=self.shares[layers.start : layers.stop])
        num_planes = max((plane + 1 for plane in own.planes if plane is not None), default=0)
        return replace(own, num_planes=num_planes)

    @property
    def planes(self) -> tuple[int | None, ...]:
        return tuple(place and place.plane for place in self.places)

    @property
    def views(self) -> tuple[View, ...]:
        """Views of all layers; views of whole blocks come first, one for each group."""
        whole = [View(group) for group in range(self.num_groups)]
        return tuple(dict.fromkeys([*whole, *(view for view in self._views if view is not None)]))

    @property
    def view_of_layer(self) -> tuple[int, ...]:
        """Indices into `views`; 0 for a layer without keys and values."""
        views = self.views
        return tuple(0 if view is None else views.index(view) for view in self._views)

    @property
    def _views(self) -> list[View | None]:
        return [
            None if group is None or place is None else View(group, place.shares, place.part)
            for group, place in zip(self.layers, self.places, strict=True)
        ]


def model_cache_groups(spec: ModelSpec, max_context: int, is_hybrid: bool) -> CacheGroups:
    """The groups of a model's layers. A window that holds the longest context is none.

    is_hybrid: groups for each kind of layer, or one for all.
    """
    has_keys = [layer.has_keys for layer in spec.layers]
    widest = spec.keeps.width
    shares = [
        1 if keeps is None else widest // keeps.width
        for keeps, has_some in zip(spec.kept_by_layer, has_keys, strict=True)
        if has_some
    ]
    windows = [
        window if window is not None and window < max_context else None
        for window, has_some in zip(spec.windows, has_keys, strict=True)
        if has_some
    ]
    groups = cache_groups(windows, shares) if is_hybrid else one_group([None] * len(windows), shares)
    of_keys, of_share = iter(groups.layers), iter(groups.shares or [1] * len(groups.layers))
    layers: list[int | None] = []
    of_layers: list[int] = []
    for has_some, source in zip(has_keys, spec.keys_of, strict=True):
        layers.append(next(of_keys) if has_some else None if source is None else layers[source])
        of_layers.append(next(of_share) if has_some else 1 if source is None else of_layers[source])
    keys_of = spec.keys_of if any(source is not None for source in spec.keys_of) else ()
    return replace(groups, layers=tuple(layers), shares=_any(of_layers), keys_of=keys_of)


def blocks_of_window(window: int, block_size: int, step_tokens: int) -> int:
    """Blocks that a sequence needs at a time in a group with this window while its prompt is computed in chunks.

    Of the window, of the chunk that is planned, and of one in flight, whose blocks come back when its step is finished.
    """
    return -(-(window + 2 * step_tokens) // block_size) + 2


def blocks_of_sequence(windows: Sequence[int | None], num_tokens: int, block_size: int, step_tokens: int | None) -> int:
    """Blocks that a sequence needs at most at a time, in groups with these windows.

    step_tokens: of the chunks in which its prompt is computed; None: it is computed whole, so nothing comes back.
    """
    whole = -(-num_tokens // block_size)
    if step_tokens is None:
        return whole * len(windows)
    return sum(
        whole if window is None else min(whole, blocks_of_window(window, block_size, step_tokens)) for window in windows
    )


def longest_sequence(
    windows: Sequence[int | None], num_blocks: int, block_size: int, step_tokens: int | None, limit: int
) -> int:
    """Tokens of the longest sequence, in whole blocks or `limit`, for which `num_blocks` blocks of the pool suffice."""

    def needed(num_tokens: int) -> int:
        return blocks_of_sequence(windows, num_tokens, block_size, step_tokens)

    return most_tokens(needed, num_blocks, block_size, limit)


def most_tokens(needed: Callable[[int], int], available: int, block_size: int, limit: int) -> int:
    """The most tokens, in whole blocks or `limit`, that need no more than is available. needed: grows with them."""
    blocks = range(1, -(-limit // block_size) + 1)
    return min(limit, block_size * bisect_right(blocks, available, key=lambda count: needed(count * block_size)))


def groups_of_stage(spec: ModelSpec, groups: CacheGroups, num_stages: int) -> CacheGroups:
    """The groups with the layers of the stage that keeps most of each token."""
    if num_stages == 1:
        return groups
    return max(map(groups.of_layers, stages(spec, num_stages)), key=lambda own: own.num_planes)


def kv_bytes_per_token(spec: ModelSpec, dtype: str, groups: CacheGroups) -> int:
    """Bytes of one token in the blocks of all groups."""
    return groups.num_groups * groups.num_planes * kv_bytes(spec.keeps, dtype)


def all_in_one(num_layers: int) -> CacheGroups:
    """One group that keeps everything."""
    return one_group([None] * num_layers)


def one_group(windows: Sequence[int | None], shares: Sequence[int] = ()) -> CacheGroups:
    """All layers in one group, which keeps what the layer with the longest window needs; nothing without layers."""
    longest = None if None in windows or not windows else max(window or 0 for window in windows)
    num_planes = sum(-(-count // share) for share, count in Counter(shares or [1] * len(windows)).items())
    return CacheGroups((longest,), num_planes, (0,) * len(windows), _any(shares))


def cache_groups(windows: Sequence[int | None], shares: Sequence[int] = ()) -> CacheGroups:
    """Groups for layers with these windows: the fewest whose unused memory is tolerable, or the least unused memory.

    shares: of each layer: how many of its width share a plane; layers of one group have the same.
    """
    of_layers = list(zip(windows, shares or [1] * len(windows), strict=True))
    kinds = list(dict.fromkeys(of_layers))
    counts = {kind: -(-of_layers.count(kind) // kind[1]) for kind in kinds}  # planes
    if not 1 < len(kinds) <= MAX_GROUPS:
        return one_group(windows, shares)

    def num_groups(num_planes: int) -> int:
        return sum(-(-count // num_planes) for count in counts.values())

    possible = [size for size in range(1, max(counts.values()) + 1) if num_groups(size) <= MAX_GROUPS]
    tolerable = [size for size in possible if num_groups(size) * size <= (1 + MAX_UNUSED) * sum(counts.values())]
    num_planes = max(tolerable) if tolerable else min(possible, key=lambda size: num_groups(size) * size)
    group_windows: list[int | None] = []
    firsts: dict[tuple[int | None, int], int] = {}
    for kind in kinds:
        firsts[kind] = len(group_windows)
        group_windows += [kind[0]] * -(-counts[kind] // num_planes)
    seen = dict.fromkeys(kinds, 0)
    layers = []
    for kind in of_layers:
        layers.append(firsts[kind] + seen[kind] // (num_planes * kind[1]))
        seen[kind] += 1
    return CacheGroups(tuple(group_windows), num_planes, tuple(layers), _any(shares))


def _any(shares: Sequence[int]) -> tuple[int, ...]:
    """() if each layer has its own plane."""
    return tuple(shares) if any(share > 1 for share in shares) else ()
