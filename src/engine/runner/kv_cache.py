"""KVCache: what the layers of a model keep: keys and values, or latents, by block id, in memory that kv_memory.py
requests from the system, and recurrent states (state_cache.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ...model.cache_groups import CacheGroups, View
from ...model.sizes import KV_SCALE_BYTES
from ..kernels import SlotsOfRanks
from ..layers.mixer import LayerCache
from ..layers.step_input import StepInput
from .context_part import ContextPart
from .kv_memory import KVMemory
from .state_cache import StateCache, Zeros


def kv_dtype(name: str) -> torch.dtype:
    """torch's dtype for a resolved `cache.kv_cache_dtype`."""
    dtype: torch.dtype = torch.float8_e4m3fn if name == "fp8" else getattr(torch, name)
    return dtype


class KVCache:
    """The tensors of every layer, [num_blocks, heads, block_size, elements of a head] each, in one allocation.

    In int8 the last dimension has room for the scale too (kernels/kv_codes.py).

    Layers of different groups that have the same plane share its memory, and use different blocks of it.
    """

    def __init__(
        self,
        groups: CacheGroups,
        num_blocks: int,
        block_size: int,
        tensors: Sequence[tuple[int, int]],
        dtype: torch.dtype,
        memory: KVMemory | None = None,
        zeros: Zeros | None = None,
        states: StateCache | None = None,
        tensors_by_layer: Sequence[Sequence[tuple[int, int]] | None] | None = None,
        part: ContextPart | None = None,
    ) -> None:
        """num_blocks: of all groups together.
        tensors: heads and elements of a head, of each tensor of a layer (Keeps in model/mixers.py); all of one size.
        memory: of the cache's size, with one region for each tensor of each plane.
        zeros: makes the memory on a device; None for host memory.
        states: of the layers with a recurrent state.
        tensors_by_layer: where layers differ, in place of `tensors`, which the widest layer has.
        part: of each block that this cache has; None for all.

        Raises MemoryError, with the number of bytes, if the host has too little memory; torch.OutOfMemoryError if the
        device has too little.
        """
        scale = KV_SCALE_BYTES if dtype == torch.int8 else 0
        self._part = part
        block_size = block_size if part is None else part.slots
        shapes = [(num_blocks, heads, block_size, width + scale) for heads, width in tensors]
        shape = (groups.num_planes, len(tensors), torch.Size(shapes[0]).numel() if shapes else 0)
        self.groups, self._views = groups, groups.views
        self._view_of_layer, self._block_size = groups.view_of_layer, block_size
        self.num_blocks = num_blocks
        self.num_bytes = torch.Size(shape).numel() * dtype.itemsize
        self._memory = None
        if zeros is not None or not self.num_bytes:
            whole = (zeros or torch.zeros)(shape, dtype=dtype)
        else:
            self._memory = memory or KVMemory(self.num_bytes, len(tensors) * groups.num_planes)
            if self._memory.num_bytes != self.num_bytes:
                raise ValueError(f"a cache of {self.num_bytes} bytes over {self._memory.num_bytes} bytes of memory")
            whole = torch.frombuffer(self._memory.buffer, dtype=dtype).view(shape)
        by_block = (groups.num_planes * len(tensors), num_blocks, -1)
        self._blocks = whole.view(torch.uint8).view(by_block) if self.num_bytes else None
        self.states = states
        of_states = states.layers if states is not None else [None] * len(groups.layers)
        self._layers: list[LayerCache] = []
        own = tensors_by_layer or [tensors] * len(groups.layers)
        keys_of = groups.keys_of or [None] * len(groups.layers)
        for place, state, mine, source in zip(groups.places, of_states, own, keys_of, strict=True):
            if source is not None:
                self._layers.append(self._layers[source])
                continue
            by_token: list[torch.Tensor] = []
            if place is not None and mine is not None:
                shapes = [(num_blocks * place.shares, heads, block_size, width + scale) for heads, width in mine]
                by_token = [part.view(each) for part, each in zip(whole[place.plane], shapes, strict=True)]
            self._layers.append((*by_token, *(state or ())))

    @property
    def table(self) -> dict[str, str]:
        """A row of the start-up table, if other ranks keep other tokens."""
        return {} if self._part is None else {"kv_cache": str(self._part)}

    @property
    def num_untouched(self) -> int:
        """Bytes that are reserved and not yet resident."""
        return 0 if self._memory is None else self._memory.num_untouched

    def free(self) -> None:
        """Give the memory of all blocks back to the system: they are zeros. Only of host memory."""
        if self._memory is not None:
            self._memory.free()

    @property
    def blocks(self) -> torch.Tensor:
        """The memory of all blocks as bytes, [planes * tensors, num_blocks, bytes]."""
        assert self._blocks is not None, "a model without keys and values has no blocks"
        return self._blocks

    def views(self, steps: Sequence[StepInput]) -> tuple[StepInput, ...]:
        """steps: a step as each group sees it. Returns it for each of `groups.views`."""
        if self._part is not None:
            steps = [self._part.of(step) for step in steps]
        return tuple(
            steps[view.group] if view.shares == 1 else _of_parts(steps[view.group], view, self._block_size)
            for view in self._views
        )

    def by_layer(self, steps: Sequence[StepInput]) -> list[StepInput]:
        """steps: a step for each view. Returns it for each layer."""
        return [steps[view] for view in self._view_of_layer]

    @property
    def layers(self) -> list[LayerCache]:
        """What each layer keeps. Raises MemoryError if the system has refused reserved memory."""
        if self._memory is not None:
            self._memory.check()
        return self._layers


def _of_parts(step: StepInput, view: View, block_size: int) -> StepInput:
    """The step of a layer that uses one part of each block: block b becomes block b * shares + part."""

    def of_part(slots: torch.Tensor) -> torch.Tensor:
        """Slots below 0 remain so."""
        blocks = torch.div(slots, block_size, rounding_mode="floor")
        return slots + (blocks * (view.shares - 1) + view.part) * block_size

    return replace(
        step,
        slot_mapping=of_part(step.slot_mapping),
        block_tables=step.block_tables * view.shares + view.part,
        by_rank=None if step.by_rank is None else SlotsOfRanks(of_part(step.by_rank.slots)),
    )
