"""EngineBlocks: what an engine keeps for others, and what it reads of them; TieredStore: files beside that."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest
from tests.flushing import flush
from tests.free_ports import free_port

from stoker.engine.api import StoredBlocks
from stoker.engine.core.block_store import BlockStore
from stoker.engine.kv_stores.block_files import BlockFiles
from stoker.engine.kv_stores.engine_blocks import EngineBlocks
from stoker.engine.kv_stores.future_fetch import FutureFetch
from stoker.engine.kv_stores.host_blocks import HostBlocks
from stoker.engine.kv_stores.registered_blocks import RegisteredBlocks
from stoker.engine.kv_stores.tiered_store import TieredStore

from .movers import MOVERS, mover_of
from .odd_servers import HOST

SIZE = 64
NAMES = [bytes([number]) * 32 for number in range(5)]
Make = Callable[..., EngineBlocks]


def content(name: bytes) -> bytes:
    return name * (SIZE // len(name))


@pytest.fixture(params=["tcp", *MOVERS])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """EngineBlocks with a buffer for this many blocks."""
    with contextlib.ExitStack() as stack:

        def build(num_blocks: int = 5, fingerprint: str = "alike") -> EngineBlocks:
            mover = None if request.param == "tcp" else mover_of(request.param)
            blocks = EngineBlocks(HOST, 0, fingerprint, SIZE, num_blocks * SIZE, mover)
            stack.callback(blocks.close)
            return blocks

        yield build


def save(store: BlockStore, names: Sequence[bytes], *, is_for_others: bool = True) -> None:
    for name in names:
        store.save(name, memoryview(content(name)), is_for_others=is_for_others)


def read(store: BlockStore, names: Sequence[bytes], source: StoredBlocks | None = None) -> list[bytes]:
    fetch = store.fetch(names, source)
    deadline = time.monotonic() + 60
    while not fetch.is_done:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return [bytes(block) for block in fetch.contents]


def contents(names: Sequence[bytes]) -> list[bytes]:
    return list(map(content, names))


@pytest.mark.slow
def test_an_engine_reads_what_another_keeps(make: Make):
    theirs, ours = make(), make(0)
    save(theirs, NAMES[:3])
    source = theirs.stored(NAMES)
    assert source == StoredBlocks(tuple(NAMES[:3]), HOST, theirs.port)
    assert read(ours, NAMES, source) == contents(NAMES[:3])
    assert read(ours, NAMES[1:], source) == contents(NAMES[1:3])
    assert not any(map(ours.has, NAMES))  # the KV cache has them


@pytest.mark.quick_cases(1)
def test_only_blocks_that_are_for_others_are_kept(make: Make):
    store = make()
    assert store.wants(NAMES[0], is_for_others=True)
    assert not store.wants(NAMES[0], is_for_others=False)
    save(store, NAMES, is_for_others=False)
    assert store.stored(NAMES).hashes == ()
    save(store, NAMES[:1])
    assert not store.wants(NAMES[0], is_for_others=True)  # it has it
    assert not store.is_saving(NAMES[0])


def test_an_engine_without_a_buffer_serves_nothing(make: Make):
    store = make(0)
    assert store.port == 0
    assert not store.wants(NAMES[0], is_for_others=True)
    save(store, NAMES)
    assert not any(map(store.has, NAMES))


def test_blocks_that_made_room_end_what_is_stored(make: Make):
    store = make(2)
    save(store, NAMES[:3])
    assert store.stored(NAMES[:3]).hashes == ()
    assert store.stored(NAMES[1:3]).hashes == tuple(NAMES[1:3])


@pytest.mark.slow
def test_own_blocks_are_read_first_and_the_rest_from_the_source(make: Make):
    theirs, ours = make(), make()
    save(theirs, NAMES[:4])
    save(ours, [NAMES[0], NAMES[1], NAMES[3]])
    assert read(ours, NAMES) == contents(NAMES[:2])
    assert read(ours, NAMES, theirs.stored(NAMES)) == contents(NAMES[:4])
    theirs.close()
    assert read(ours, NAMES, StoredBlocks(tuple(NAMES), HOST, theirs.port)) == contents(NAMES[:2])


def test_a_block_that_makes_room_while_others_are_read_ends_them(make: Make, monkeypatch: pytest.MonkeyPatch):
    store = make()
    save(store, [NAMES[0], NAMES[2]])
    for kind in (HostBlocks, RegisteredBlocks):
        monkeypatch.setattr(kind, "__contains__", lambda *_: True)  # it was there a moment ago
    assert read(store, NAMES[:3]) == contents(NAMES[:1])


@pytest.mark.parametrize("case", ["refused", "no host", "not alike", "odd name"])
@pytest.mark.slow
def test_what_cannot_be_read_is_computed(make: Make, case: str, caplog: pytest.LogCaptureFixture):
    ours, other = make(), make(fingerprint="not alike")
    save(other, NAMES)
    names = tuple(NAMES)
    source = {
        "refused": StoredBlocks(names, HOST, free_port()),
        "no host": StoredBlocks(names),
        "not alike": StoredBlocks(names, HOST, other.port),
        "odd name": StoredBlocks(names, "x" * 300, 1),
    }[case]
    assert read(ours, NAMES, source) == []
    assert ("their tokens are computed" in caplog.text) == (case != "no host")


def test_a_fetch_that_the_end_of_the_engine_cancels_is_done_and_empty():
    reading: Future[list[memoryview]] = Future()
    fetch = FutureFetch(reading)
    assert not fetch.is_done
    reading.cancel()
    assert fetch.is_done
    assert fetch.contents == []


def test_a_fetch_that_fails_unexpectedly_is_empty_and_is_logged(caplog: pytest.LogCaptureFixture):
    reading: Future[list[memoryview]] = Future()
    reading.set_exception(PermissionError("not yours"))
    assert FutureFetch(reading).contents == []
    assert "their tokens are computed" in caplog.text
    assert "not yours" in caplog.text


# ---- with files beside them


@pytest.fixture
def both(make: Make, tmp_path: Path) -> Iterator[tuple[TieredStore, EngineBlocks, BlockFiles]]:
    engines, files = make(), BlockFiles(tmp_path, "alike", SIZE, 1 << 20)
    store = TieredStore(lasting=files, engines=engines)
    yield store, engines, files
    files.close()


def test_files_have_every_block_and_the_buffer_those_for_others(both: tuple[TieredStore, EngineBlocks, BlockFiles]):
    store, engines, files = both
    save(store, NAMES[:2], is_for_others=False)
    save(store, NAMES[2:4])
    flush(files)
    assert all(map(files.has, NAMES[:4]))
    assert [engines.has(name) for name in NAMES] == [False, False, True, True, False]
    assert [store.has(name) for name in NAMES] == [True] * 4 + [False]
    assert not store.wants(NAMES[0], is_for_others=False)
    assert store.wants(NAMES[0], is_for_others=True)  # a file is of no use to others
    assert not store.wants(NAMES[2], is_for_others=True)
    assert store.stored(NAMES[2:]) == StoredBlocks(tuple(NAMES[2:4]), HOST, engines.port)
    assert store.stored(NAMES).hashes == ()


@pytest.mark.quick_cases(1)
def test_blocks_come_from_other_engines_where_a_request_says_so(
    both: tuple[TieredStore, EngineBlocks, BlockFiles], make: Make
):
    store, _, files = both
    theirs = make()
    save(theirs, NAMES)
    save(store, NAMES[:2], is_for_others=False)
    flush(files)
    assert read(store, NAMES) == contents(NAMES[:2])
    assert read(store, NAMES, theirs.stored(NAMES)) == contents(NAMES)


def test_others_do_not_wait_for_files(both: tuple[TieredStore, EngineBlocks, BlockFiles]):
    store, _, _ = both
    save(store, NAMES)
    assert not any(map(store.is_saving, NAMES))
    assert store.stored(NAMES).hashes == tuple(NAMES)


@pytest.mark.slow
def test_files_have_what_another_engine_has_lost(both: tuple[TieredStore, EngineBlocks, BlockFiles], make: Make):
    store, _, files = both
    theirs = make()
    save(theirs, NAMES[:1])
    named = StoredBlocks(tuple(NAMES), HOST, theirs.port)
    save(store, NAMES[:3], is_for_others=False)
    flush(files)
    assert read(store, NAMES, named) == contents(NAMES[:3])
    theirs.close()
    assert read(store, NAMES, named) == contents(NAMES[:3])
