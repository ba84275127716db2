"""KVCache: what the layers of a model keep: keys and values, or latents, by block id, in memory that kv_memory.py
requests from the system, and recurrent states (state_cache.py)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...model.cache_groups import CacheGroups
from ..layers.mixer import LayerCache
from ..layers.step_input import StepInput
from .kv_memory import KVMemory
from .state_cache import StateCache


def kv_dtype(name: str) -> torch.dtype:
    """torch's dtype for a resolved `cache.kv_cache_dtype`."""
    dtype: torch.dtype = torch.float8_e4m3fn if name == "fp8" else getattr(torch, name)
    return dtype


class KVCache:
    """The tensors of every layer, [num_blocks, heads, block_size, elements of a head] each, in one allocation.

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
        device: torch.device | None = None,
        states: StateCache | None = None,
    ) -> None:
        """num_blocks: of all groups together.
        tensors: heads and elements of a head, of each tensor of a layer (Keeps in model/spec.py); all of one size.
        memory: of the cache's size, with one region for each tensor of each plane.
        device: None for host memory.
        states: of the layers with a recurrent state.

        Raises MemoryError, with the number of bytes, if the host has too little memory; torch.OutOfMemoryError if the
        device has too little.
        """
        shapes = [(num_blocks, heads, block_size, width) for heads, width in tensors]
        shape = (groups.num_planes, len(tensors), torch.Size(shapes[0]).numel())
        self.groups = groups
        self.num_blocks = num_blocks
        self.num_bytes = torch.Size(shape).numel() * dtype.itemsize
        self._memory = None
        if device is not None:
            whole = torch.zeros(shape, dtype=dtype, device=device)
        else:
            self._memory = memory or KVMemory(self.num_bytes, len(tensors) * groups.num_planes)
            if self._memory.num_bytes != self.num_bytes:
                raise ValueError(f"a cache of {self.num_bytes} bytes over {self._memory.num_bytes} bytes of memory")
            whole = torch.frombuffer(self._memory.buffer, dtype=dtype).view(shape)
        self.states = states
        of_states = states.layers if states is not None else [None] * len(groups.layers)
        self._layers: list[LayerCache] = []
        for plane, state in zip(groups.planes, of_states, strict=True):
            by_token = () if plane is None else zip(whole[plane], shapes, strict=True)
            self._layers.append((*(part.view(each) for part, each in by_token), *(state or ())))

    @property
    def num_untouched(self) -> int:
        """Bytes that are reserved and not yet resident."""
        return 0 if self._memory is None else self._memory.num_untouched

    def by_layer(self, steps: Sequence[StepInput]) -> list[StepInput]:
        """steps: a step as each group sees it. Returns it as each layer does."""
        return [steps[group or 0] for group in self.groups.layers]

    @property
    def layers(self) -> list[LayerCache]:
        """What each layer keeps. Raises MemoryError if the system has refused reserved memory."""
        if self._memory is not None:
            self._memory.check()
        return self._layers
