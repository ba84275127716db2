"""DeviceTransfer with streams that copy as late as they may: what does not wait for a copy finds other bytes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from stoker.config.memory import gpu_reserve
from stoker.engine.runner.cuda import device_transfer, pinned_blocks
from stoker.engine.runner.cuda.copy_stream import CopyStream
from stoker.engine.runner.cuda.device_transfer import DeviceTransfer, parts_of
from stoker.engine.runner.cuda.pinned_blocks import PinnedBlocks
from stoker.engine.runner.kv_cache import KVCache
from stoker.engine.step.plan import BlockCopy, BlockLoad
from stoker.model.cache_groups import CacheGroups

NUM_BLOCKS = 40  # of two groups
GROUPS = CacheGroups(windows=(None, 8), num_planes=2, layers=(0, 1, 0, 1))


class LateEvent:
    """Of the first copies of a stream; to wait for it is what has them done."""

    def __init__(self, stream: LateStream, count: int) -> None:
        self._stream, self._count = stream, count

    def synchronize(self) -> None:
        self._stream.catch_up(self._count)

    def query(self) -> bool:
        return self._stream.num_done >= self._count


class LateStream(CopyStream):
    """Computation is done at once, copies when something waits for them."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._queued: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.num_done = 0

    @torch.inference_mode()
    def catch_up(self, count: int) -> None:
        for into, source in self._queued[self.num_done : count]:
            into.copy_(source)
        self.num_done = max(self.num_done, count)

    def copy(self, into: torch.Tensor, source: torch.Tensor) -> None:
        self._queued.append((into, source))

    def copied(self) -> Any:
        return LateEvent(self, len(self._queued))

    def compute_after(self, event: Any) -> None:
        if event is not None:
            event.synchronize()


class Store:
    def __init__(self) -> None:
        self._waiting: list[tuple[Sequence[tuple[BlockCopy, memoryview]], Callable[[], None]]] = []
        self.contents: dict[bytes, memoryview] = {}

    def save_later(self, blocks: Sequence[tuple[BlockCopy, memoryview]], wait: Callable[[], None]) -> None:
        self._waiting.append((blocks, wait))

    def finish(self) -> None:
        for blocks, wait in self._waiting:
            wait()
            self.contents |= {copy.block_hash: content for copy, content in blocks}
        self._waiting.clear()


@pytest.fixture(params=[(2, 8), (1, 3)], ids=["rows of 64 bytes", "rows of 3 bytes"])
def cache(request: pytest.FixtureRequest) -> KVCache:
    """With different bytes in all blocks."""
    heads, width = request.param
    dtype = torch.bfloat16 if width == 8 else torch.int8
    found = KVCache(GROUPS, NUM_BLOCKS, 1 if width == 3 else 2, [(heads, width)] * 2, dtype, zeros=torch.zeros)
    found.blocks.copy_(torch.randint(256, found.blocks.shape, generator=torch.Generator().manual_seed(1)))
    return found


@pytest.fixture
def small_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place holds two stored blocks, all four together eight."""
    monkeypatch.setattr(device_transfer, "staged_blocks", lambda block_bytes: 2)


def block_ids(count: int) -> list[tuple[int, int]]:
    """Of `count` stored blocks, in both groups."""
    return [(index, NUM_BLOCKS - 1 - index) for index in range(count)]


def expected(cache: KVCache, ids: Sequence[tuple[int, int]]) -> list[bytes]:
    """The layout of a stored block: as of a cache in host memory."""
    return [torch.stack([cache.blocks[:, each] for each in pair]).numpy().tobytes() for pair in ids]


@pytest.mark.usefixtures("small_places")
@pytest.mark.parametrize("count", [1, 2, 7, 19])
@pytest.mark.quick_cases(5)
def test_blocks_come_back_as_they_were_saved(cache: KVCache, count: int) -> None:
    store = Store()
    transfer = DeviceTransfer(cache, store, stream_of=LateStream)
    ids, names = block_ids(count), [bytes([index]) for index in range(count)]
    before = expected(cache, ids)
    transfer.save([BlockCopy(name, pair) for name, pair in zip(names, ids, strict=True)])
    cache.blocks.zero_()  # later steps
    transfer.save([BlockCopy(b"zeros", ids[0])])
    store.finish()
    assert [bytes(store.contents[name]) for name in names] == before
    assert not any(store.contents[b"zeros"])
    moved = [(second, first) for first, second in ids]  # to other places
    transfer.load([BlockLoad(pair, store.contents[name]) for pair, name in zip(moved, names, strict=True)])
    assert expected(cache, moved) == before


def test_the_last_load_of_a_block_stays(cache: KVCache) -> None:
    """A device writes the rows of one part in any order."""
    transfer = DeviceTransfer(cache, Store())
    size = transfer._memory.block_bytes
    ids = [(0, 1), (2, 3), (4, 0), (4, 5), (6, 7)]
    loads = [BlockLoad(pair, memoryview(bytearray([index] * size))) for index, pair in enumerate(ids)]
    assert list(parts_of(loads, 2)) == [(0, loads[:2]), (2, loads[2:3]), (3, loads[3:])]
    assert list(parts_of(loads, 9)) == [(0, loads[:2]), (2, loads[2:3]), (3, loads[3:])]
    assert list(parts_of([], 2)) == []
    transfer.load(loads)
    assert [int(cache.blocks[0, block_id, 0]) for block_id in range(8)] == [2, 0, 1, 1, 3, 3, 4, 4]


@pytest.mark.usefixtures("small_places")
def test_a_content_is_kept_until_it_has_been_copied(cache: KVCache) -> None:
    store = Store()
    transfer = DeviceTransfer(cache, store, stream_of=LateStream)
    before = expected(cache, block_ids(2))
    transfer.save([BlockCopy(bytes([index]), pair) for index, pair in enumerate(block_ids(2))])
    store.finish()
    loads = [BlockLoad(pair, store.contents.pop(bytes([index]))) for index, pair in enumerate(block_ids(2))]
    transfer.load(loads)
    del loads
    transfer.save([BlockCopy(b"other", (7, 9))])
    store.finish()
    assert expected(cache, block_ids(2)) == before


@pytest.mark.usefixtures("small_places")
def test_blocks_for_which_there_is_no_memory_are_not_stored(
    cache: KVCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The step that computed them has not failed."""
    store = Store()
    block_bytes = GROUPS.num_groups * cache.blocks.shape[0] * cache.blocks.shape[2]
    transfer = DeviceTransfer(cache, store, kept_bytes=3 * block_bytes, stream_of=LateStream)

    def refuse(self: PinnedBlocks, count: int) -> None:
        raise MemoryError("the system pins no more")

    monkeypatch.setattr(PinnedBlocks, "_grow", refuse)
    ids = block_ids(5)
    before = expected(cache, ids)
    transfer.save([BlockCopy(bytes([index]), pair) for index, pair in enumerate(ids)])
    store.finish()
    assert {name: bytes(content) for name, content in store.contents.items()} == {b"\0": before[0], b"\1": before[1]}
    assert "3 KV blocks are not stored: the system pins no more" in caplog.text
    store.contents.clear()
    transfer.save([BlockCopy(b"later", ids[4])])
    store.finish()
    assert bytes(store.contents[b"later"]) == before[4]


def test_a_content_of_another_size_is_refused(cache: KVCache) -> None:
    with pytest.raises(RuntimeError, match="a stored block of 3 bytes, not"):
        DeviceTransfer(cache, Store()).load([BlockLoad((0, 1), memoryview(bytearray(3)))])


@pytest.mark.slow
def test_memory_is_free_again_once_its_last_view_is_gone() -> None:
    memory = PinnedBlocks(24, 2, is_pinned=False)
    first, second = memory.take(), memory.take()
    size, view = memory.num_bytes, torch.frombuffer(first, dtype=torch.uint8)
    view.fill_(7)
    del first, second
    gc.collect()
    third = memory.take()
    third[:] = bytes(24)
    assert memory.num_bytes == size
    assert view.tolist() == [7] * 24
    memory.take()
    held = [memory.take() for _ in range(2)]
    assert memory.num_bytes > size
    assert len(held) == 2


@pytest.mark.parametrize("block_bytes", [5 << 20, 22 << 20, (32 << 20) + 1, 43 << 20, 52 << 20, 100 << 20, 3 << 30])
def test_most_of_what_is_pinned_is_used(block_bytes: int) -> None:
    """Of blocks above 32 MiB each was allocated by itself, and the rounding took as much again."""
    assert pinned_blocks.blocks_of_piece(1 << 20) == 64
    count = pinned_blocks.blocks_of_piece(block_bytes)
    assert count * block_bytes > 7 / 8 * pinned_blocks.rounded_bytes(count * block_bytes)
    rest, pinned = 100, 0
    while rest:
        count = pinned_blocks.blocks_of_piece(block_bytes, rest)
        rest, pinned = rest - count, pinned + pinned_blocks.rounded_bytes(count * block_bytes)
    assert pinned < 102 * block_bytes * 8 / 7  # the last pieces are smaller


def test_staging_that_is_reserved_is_what_a_transfer_takes(cache: KVCache) -> None:
    transfer = DeviceTransfer(cache, Store())
    block_bytes = GROUPS.num_groups * cache.blocks.shape[0] * cache.blocks.shape[2]
    places = (transfer._saving.memory, transfer._loading.memory)
    assert sum(each.nbytes for each in places) == gpu_reserve.staging_bytes(block_bytes)
    assert gpu_reserve.staging_bytes(1 << 30) == 8 << 30
