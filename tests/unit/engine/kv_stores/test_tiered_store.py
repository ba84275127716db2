"""TieredStore: host memory alone and beside files, and blocks that are on their way from a device."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.flushing import flush

from stoker.engine.api import StoredBlocks
from stoker.engine.kv_stores.block_files import BlockFiles
from stoker.engine.kv_stores.tiered_store import TieredStore
from stoker.engine.step.plan import BlockCopy

from .test_engine_blocks import NAMES, SIZE, content, contents, read, save


def copies(*names: bytes) -> list[tuple[BlockCopy, memoryview]]:
    return [(BlockCopy(name, (0,)), memoryview(content(name))) for name in names]


def test_blocks_are_stored_once_they_have_arrived() -> None:
    store = TieredStore(5 * SIZE)
    arrived = threading.Event()
    store.save_later(copies(*NAMES[:2]), lambda: arrived.wait(60) and None)
    assert store.is_saving(NAMES[0])
    assert not store.has(NAMES[0])
    assert not store.wants(NAMES[0], is_for_others=False)
    assert store.wants(NAMES[0], is_for_others=True)
    assert store.wants(NAMES[2], is_for_others=False)
    arrived.set()
    flush(store)
    assert not store.is_saving(NAMES[0])
    assert read(store, NAMES) == contents(NAMES[:2])
    assert store.stored(NAMES) == StoredBlocks(())
    store.close()


def test_what_does_not_arrive_is_not_stored(caplog: pytest.LogCaptureFixture) -> None:
    store = TieredStore(5 * SIZE)

    def fail() -> None:
        raise RuntimeError("the device has failed")

    store.save_later(copies(NAMES[0]), fail)
    store.save_later(copies(NAMES[1]), lambda: None)
    store.close()
    assert [store.has(name) for name in NAMES[:2]] == [False, True]
    assert not store.is_saving(NAMES[0])
    assert "the device has failed" in caplog.text


def test_host_memory_keeps_what_was_used_last() -> None:
    store = TieredStore(3 * SIZE)
    save(store, NAMES[:3])
    assert not store.wants(NAMES[0], is_for_others=False)
    save(store, NAMES[3:4])
    assert [store.has(name) for name in NAMES] == [True, False, True, True, False]
    assert read(store, NAMES) == contents(NAMES[:1])  # up to the first that is missing


def test_files_have_what_host_memory_has_lost(tmp_path: Path) -> None:
    files = BlockFiles(tmp_path, "alike", SIZE, 1 << 20)
    store = TieredStore(2 * SIZE, files)
    save(store, NAMES[:4])
    flush(files)
    assert [name in store.memory for name in NAMES[:4]] == [False, False, True, True]
    assert all(map(store.has, NAMES[:4]))
    assert read(store, NAMES) == contents(NAMES[:4])
    assert store.wants(NAMES[0], is_for_others=False)
    assert not store.wants(NAMES[3], is_for_others=False)
    for path in tmp_path.glob("*/*"):
        path.unlink()
    assert read(store, NAMES[:3]) == []
    assert read(store, NAMES[2:4]) == contents(NAMES[2:4])
    store.close()
