"""DeviceTransfer: copies of KV cache blocks between a device and a store in host memory, beside the steps.

Blocks that are saved are gathered after their step, within the stream that computes, so a later step may overwrite
them. From there a second stream copies them to host memory, and the store gets them once they have arrived. Blocks
that are loaded are copied while earlier steps compute; the step that reads them waits for them on the device.

Between the two are places on the device, used in turn. A step that saves more than these hold waits for the copies.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from ....config.memory.gpu_reserve import STAGING_PLACES, staged_blocks
from ...core.block_store import LaterStore
from ...step.plan import BlockCopy, BlockLoad
from ..block_transfer import TransferOf
from ..kv_cache import KVCache
from .copy_stream import CopyStream, Event, has_come, wait_for
from .memory_budget import out_of_memory
from .pinned_blocks import PinnedBlocks

logger = logging.getLogger(__name__)


def device_transfer(store: LaterStore, kept_bytes: int) -> TransferOf:
    """kept_bytes: as of DeviceTransfer."""
    return lambda loaded: DeviceTransfer(loaded.cache, store, kept_bytes)


class DeviceTransfer:
    """Implements BlockTransfer. For one thread."""

    def __init__(
        self,
        cache: KVCache,
        store: LaterStore,
        kept_bytes: int = 0,
        stream_of: Callable[[torch.device], CopyStream] = CopyStream,
    ) -> None:
        """kept_bytes: of host memory, that the store may keep. stream_of: makes what copies in one direction.

        Raises MemoryError if host or device have too little memory.
        """
        num_groups, blocks = cache.groups.num_groups, cache.blocks
        self._store, self._num_groups, self._device = store, num_groups, blocks.device
        block_bytes = num_groups * blocks.shape[0] * blocks.shape[2]
        self._per_place = staged_blocks(block_bytes)
        self._memory = PinnedBlocks(block_bytes, kept_bytes // block_bytes, is_pinned=blocks.is_cuda)
        # [num_blocks, planes * tensors, elements]: a stored block has one such row of each group
        self._rows = _wide(blocks).transpose(0, 1)
        num_rows = self._per_place * num_groups
        self._saving, self._loading = (_Places(self._rows, num_rows, stream_of(self._device)) for _ in range(2))
        self._read: deque[tuple[Event, list[torch.Tensor]]] = deque()  # contents that copies may still read

    @torch.inference_mode()
    def load(self, loads: Sequence[BlockLoad]) -> None:
        while self._read and has_come(self._read[0][0]):
            self._read.popleft()
        places, stream = self._loading, self._loading.stream
        index = self._index([load.block_ids for load in loads])
        for start, part in parts_of(loads, self._per_place):
            contents = [self._pinned(load.content) for load in part]
            into = index[start * self._num_groups :][: len(contents) * self._num_groups]
            place = places.next()
            stream.copy_after(places.used[place])
            staged = places.memory[place][: len(into)]
            for content, own in zip(contents, _by_block(staged, len(contents)), strict=True):
                stream.copy(own, content)
            arrived = stream.copied()
            self._read.append((arrived, contents))
            stream.compute_after(arrived)
            self._rows.index_copy_(0, into, staged)
            places.used[place] = stream.computed()

    @torch.inference_mode()
    def save(self, saves: Sequence[BlockCopy]) -> None:
        places, stream = self._saving, self._saving.stream
        index = self._index([save.block_ids for save in saves])
        for start in range(0, len(saves), self._per_place):
            part = saves[start : start + self._per_place]
            source = index[start * self._num_groups :][: len(part) * self._num_groups]
            try:
                contents = [self._memory.take() for _ in part]
            except MemoryError as error:  # costs time later, and fails no step
                logger.warning("%d KV blocks are not stored: %s", len(saves) - start, error)
                return
            place = places.next()
            stream.compute_after(places.used[place])
            staged = places.memory[place][: len(source)]
            torch.index_select(self._rows, 0, source, out=staged)
            stream.copy_after(stream.computed())
            for content, own in zip(contents, _by_block(staged, len(part)), strict=True):
                stream.copy(torch.frombuffer(content, dtype=torch.uint8), own)
            arrived = places.used[place] = stream.copied()
            self._store.save_later(list(zip(part, contents, strict=True)), partial(wait_for, arrived))

    def _index(self, block_ids: Sequence[tuple[int, ...]]) -> torch.Tensor:
        """Indices of rows of the cache: [stored blocks * groups], on the device."""
        flat = [block_id for each in block_ids for block_id in each]
        index = torch.tensor(flat, dtype=torch.int64, pin_memory=self._device.type == "cuda")
        return index.to(self._device, non_blocking=True)

    def _pinned(self, content: memoryview) -> torch.Tensor:
        """[block_bytes] uint8; a copy if a store has read it into other memory. RuntimeError for another size."""
        found = torch.frombuffer(content, dtype=torch.uint8)
        if len(found) != self._memory.block_bytes:
            raise RuntimeError(f"a stored block of {len(found)} bytes, not {self._memory.block_bytes}")
        if self._device.type != "cuda" or found.is_pinned():
            return found
        pinned = torch.frombuffer(self._memory.take(), dtype=torch.uint8)
        return pinned.copy_(found)


def parts_of(loads: Sequence[BlockLoad], most: int) -> Iterator[tuple[int, Sequence[BlockLoad]]]:
    """Consecutive loads, at most `most`, and the index of the first. No block is twice in a part.

    It is in a plan if a prefix got blocks of one that was placed before it and not admitted: the last load stays.
    """
    start, written = 0, set[int]()
    for at, load in enumerate(loads):
        if at - start == most or not written.isdisjoint(load.block_ids):
            yield start, loads[start:at]
            start, written = at, set()
        written.update(load.block_ids)
    if loads:
        yield start, loads[start:]


class _Places:
    """Memory on the device for blocks that are copied in one direction, with the stream that copies them."""

    def __init__(self, rows: torch.Tensor, num_rows: int, stream: CopyStream) -> None:
        """rows: of the cache. num_rows: of a place."""
        try:
            self.memory = rows.new_empty(STAGING_PLACES, num_rows, *rows.shape[1:])
        except torch.OutOfMemoryError as error:
            num_bytes = STAGING_PLACES * num_rows * rows[0].numel() * rows.itemsize
            raise out_of_memory("stored KV blocks on their way", num_bytes) from error
        self.stream = stream
        self.used: list[Event] = [None] * STAGING_PLACES  # when what is in the place has been read
        self._at = 0

    def next(self) -> int:
        self._at = (self._at + 1) % STAGING_PLACES
        return self._at


def _wide(blocks: torch.Tensor) -> torch.Tensor:
    """The same bytes in the widest elements that they divide into, of which a kernel copies one at a time."""
    for dtype in (torch.int64, torch.int32, torch.int16):
        if blocks.shape[2] % dtype.itemsize == 0 and blocks.data_ptr() % dtype.itemsize == 0:
            return blocks.view(dtype)
    return blocks


def _by_block(staged: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """Rows of a place as [num_blocks, bytes]."""
    return staged.view(torch.uint8).view(num_blocks, -1)
