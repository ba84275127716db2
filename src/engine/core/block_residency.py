"""BlockResidency: how long KV cache blocks are kept, and how long they wait for their next use.

Of a sample of the blocks: each allocation is measured with the same probability, until the block's content is given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from time import monotonic

from .histogram import Histogram

_LIMITS_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0),
    *(10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0),
)


@dataclass(slots=True)
class _Times:
    """Times on the engine's clock, in seconds."""

    allocated: float
    freed: float | None = None  # None: a sequence holds it


class BlockResidency:
    def __init__(self, sample: float, seed: int, clock: Callable[[], float] = monotonic) -> None:
        """sample: share of the allocations, above 0 and at most 1."""
        self._sample = sample
        self._random = Random(seed)
        self._clock = clock
        self._blocks: dict[int, _Times] = {}
        self.lifetimes = Histogram(_LIMITS_S)  # from allocation to eviction
        self.idle_times = Histogram(_LIMITS_S)  # from the end of the last use to eviction
        self.reuse_gaps = Histogram(_LIMITS_S)  # from the end of a use to the next one, by another sequence

    def allocated(self, block_id: int) -> None:
        self._blocks.pop(block_id, None)  # its content had not been cached
        if self._random.random() < self._sample:
            self._blocks[block_id] = _Times(self._clock())

    def freed(self, block_id: int) -> None:
        """Record that no sequence holds the block any more. It is cached."""
        times = self._blocks.get(block_id)
        if times is not None:
            times.freed = self._clock()

    def reused(self, block_id: int) -> None:
        """The prefix cache found a free block."""
        times = self._blocks.get(block_id)
        if times is not None and times.freed is not None:
            self.reuse_gaps.add(self._clock() - times.freed)
            times.freed = None

    def evicted(self, block_ids: Iterable[int]) -> None:
        """The content of free blocks is given up."""
        for block_id in block_ids:
            times = self._blocks.pop(block_id, None)
            if times is not None and times.freed is not None:
                now = self._clock()
                self.lifetimes.add(now - times.allocated)
                self.idle_times.add(now - times.freed)
