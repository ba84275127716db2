"""LmcacheBlocks with LMCache itself where it is installed, and with a server that behaves like it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from tests.free_ports import free_port

from stoker.engine.api import StoredBlocks
from stoker_lmcache.blocks import RETRY_S, LmcacheBlocks
from stoker_lmcache.connection import MAX_BATCH, LmcacheConnection

from .lmcache_servers import SIZE as SIZE_OF_MEMORY
from .lmcache_servers import START_LIMIT_S, LikeLmcache, address_of, kinds, real_server

SIZE = 4099  # odd, and more than a page
LIMIT_S = 60.0  # only what is to fail reaches a limit
SHORT_S = 0.2
HASHES = [bytes([number]) * 32 for number in range(MAX_BATCH + 7)]
OF_READS = ("lookup", "query_prefetch_status", "prepare_retrieve", "commit_retrieve")
OF_SAVES = ("prepare_store", "commit_store")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Stores:
    """Of engines with one server; closed at the end of the test."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack

    def open(self, port: int, *, model: str = "model", limit_s: float = LIMIT_S, **options: object) -> LmcacheBlocks:
        connect = partial(LmcacheConnection, address_of(port), model, SIZE, limit_s)
        store = LmcacheBlocks(connect, **options)  # type: ignore[arg-type]
        self._stack.callback(store.close)
        store.flush()
        return store


@pytest.fixture
def stores() -> Iterator[Stores]:
    with contextlib.ExitStack() as stack:
        yield Stores(stack)


@pytest.fixture
def like() -> Iterator[Callable[..., LikeLmcache]]:
    with contextlib.ExitStack() as stack:

        def build(port: int = 0, **options: int) -> LikeLmcache:
            server = LikeLmcache(port, **options)
            stack.callback(server.close)
            return server

        yield build


@pytest.fixture(scope="module", params=kinds())
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    if request.param == "real":
        number = free_port()
        with real_server(number, tmp_path_factory.mktemp("lmcache") / "log"):
            yield number
    else:
        server = LikeLmcache()
        yield server.port
        server.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def content(block_hash: bytes) -> bytes:
    return (block_hash * (SIZE // len(block_hash) + 1))[:SIZE]


def save(store: LmcacheBlocks, hashes: Sequence[bytes]) -> None:
    for block_hash in hashes:
        store.save(block_hash, memoryview(content(block_hash)), is_for_others=False)
    store.flush()


def read(store: LmcacheBlocks, hashes: Sequence[bytes]) -> list[bytes]:
    fetch = store.fetch(hashes, None)
    fetch._reading.result(600)
    return [bytes(block) for block in fetch.contents]


def test_another_engine_reads_what_was_saved_up_to_the_first_block_that_is_missing(port: int, stores: Stores):
    ours, theirs = stores.open(port, model="saved"), stores.open(port, model="saved")
    save(ours, [*HASHES[:35], *HASHES[36:38]])
    assert ours.stored(HASHES) == StoredBlocks(tuple(HASHES[:35]))
    assert theirs.has(HASHES[0])
    assert read(theirs, HASHES) == [content(block_hash) for block_hash in HASHES[:35]]
    assert read(theirs, HASHES[36:]) == [content(block_hash) for block_hash in HASHES[36:38]]
    assert theirs.stored(HASHES) == StoredBlocks(tuple(HASHES[:35]))
    assert not theirs.wants(HASHES[0], is_for_others=False)
    assert theirs.wants(HASHES[35], is_for_others=False)


def test_an_engine_of_another_model_finds_nothing(port: int, stores: Stores):
    save(stores.open(port, model="one"), HASHES[:2])
    assert read(stores.open(port, model="other"), HASHES[:2]) == []


def test_a_block_that_is_saved_twice_stays(port: int, stores: Stores):
    ours, theirs = stores.open(port, model="twice"), stores.open(port, model="twice")
    save(ours, HASHES[:2])
    save(theirs, HASHES[:3])
    assert read(ours, HASHES[:3]) == [content(block_hash) for block_hash in HASHES[:3]]


def test_a_producer_does_not_read_and_a_consumer_does_not_save(port: int, stores: Stores):
    producer, consumer = stores.open(port, model="roles", reads=False), stores.open(port, model="roles", writes=False)
    save(consumer, HASHES[:1])
    assert read(consumer, HASHES[:1]) == []
    save(producer, HASHES[:1])
    assert not producer.has(HASHES[0])
    assert not consumer.wants(HASHES[1], is_for_others=True)
    assert read(consumer, HASHES[:1]) == [content(HASHES[0])]


@pytest.mark.slow
def test_blocks_survive_a_restart_of_the_server_that_has_a_folder(stores: Stores, tmp_path: Path):
    port, folder = free_port(), f'{{"type": "fs", "base_path": "{tmp_path}/kv"}}'
    with real_server(port, tmp_path / "log", "--l2-adapter", folder):
        store = stores.open(port)
        save(store, HASHES[:3])
        fresh = stores.open(port)
        assert len(read(fresh, HASHES[:3])) == 3
        until(lambda: len(list(tmp_path.glob("kv/*.data"))) == 3)
    with real_server(port, tmp_path / "log", "--l2-adapter", folder):
        assert read(store, HASHES) == [content(block_hash) for block_hash in HASHES[:3]]
        save(store, HASHES[3:4])
        assert len(read(fresh, HASHES)) == 4


def test_nothing_stays_locked(like: Callable[..., LikeLmcache], stores: Stores):
    server = like()
    store = stores.open(server.port)
    save(store, HASHES)
    server.lose(3)
    assert len(read(store, HASHES)) == 3
    store.close()  # what it does not wait for has arrived
    assert server.locked == []
    assert server._layouts == {}


def test_a_block_that_the_server_has_lost_is_saved_again(like: Callable[..., LikeLmcache], stores: Stores):
    server = like()
    store = stores.open(server.port)
    save(store, HASHES[:3])
    server.lose(1)
    assert not store.wants(HASHES[1], is_for_others=False)
    assert len(read(store, HASHES[:3])) == 1
    assert store.wants(HASHES[1], is_for_others=False)


def test_a_block_is_waited_for_while_the_server_reads_it_from_its_second_store(
    like: Callable[..., LikeLmcache], stores: Stores
):
    server = like()
    store = stores.open(server.port)
    save(store, HASHES)
    server.num_polls = 70
    assert len(read(store, HASHES)) == len(HASHES)


def test_blocks_that_take_too_long_are_computed_and_the_server_stays_in_use(
    like: Callable[..., LikeLmcache], stores: Stores
):
    server = like()
    store = stores.open(server.port, limit_s=SHORT_S)
    save(store, HASHES[:2])
    server.num_polls = 1 << 40
    assert read(store, HASHES[:2]) == []
    assert store.is_up


def test_a_damaged_block_is_not_used(
    like: Callable[..., LikeLmcache], stores: Stores, caplog: pytest.LogCaptureFixture
):
    server = like()
    store = stores.open(server.port)
    save(store, HASHES[:3])
    server.damage(1)
    assert read(store, HASHES[:3]) == [content(HASHES[0])]
    assert "damaged" in caplog.text
    assert store.is_up


def test_a_full_server_keeps_what_it_has(like: Callable[..., LikeLmcache], stores: Stores):
    store = stores.open(like(max_blocks=2).port)
    save(store, HASHES[:3])
    assert len(read(store, HASHES[:3])) == 2


@pytest.mark.parametrize("operation", [*OF_READS, *OF_SAVES])
def test_a_server_that_is_silent_is_left_alone_for_a_while(
    like: Callable[..., LikeLmcache], stores: Stores, caplog: pytest.LogCaptureFixture, operation: str
):
    server, clock = like(), Clock()
    store = stores.open(server.port, limit_s=SHORT_S, clock=clock)
    save(store, HASHES[:2])
    server.silent.add(operation)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            if operation in OF_SAVES:
                save(store, HASHES[2:3])
            else:
                assert read(store, HASHES[:2]) == []
        assert not store.has(HASHES[0])
        assert not store.wants(HASHES[2], is_for_others=False)
        num_asked = len(server.asked)
        assert read(store, HASHES[:2]) == []
        assert len(server.asked) == num_asked
        server.silent.clear()
        clock.now += RETRY_S
        assert not store.has(HASHES[0])  # it is asked first, for which no request waits
        store.flush()
        assert store.has(HASHES[0])
    assert read(store, HASHES[:2]) == [content(HASHES[0]), content(HASHES[1])]
    lost, back = [record.getMessage() for record in caplog.records]
    assert f"`{operation}`: no answer for 0.2 s" in lost
    assert back == "LMCache can be used again"


def test_what_was_read_before_the_server_became_silent_is_used(like: Callable[..., LikeLmcache], stores: Stores):
    server = like()
    store = stores.open(server.port, limit_s=SHORT_S)
    save(store, HASHES)
    server.silent_after["commit_retrieve"] = 1  # the first block is an exchange of its own
    assert read(store, HASHES) == [content(HASHES[0])]
    assert not store.is_up


def test_a_server_that_starts_again_is_used_with_its_new_memory(like: Callable[..., LikeLmcache], stores: Stores):
    server = like()
    store = stores.open(server.port)
    save(store, HASHES[:2])
    server.close()
    server = like(server.port)
    theirs = stores.open(server.port)  # another engine has registered the same model there
    save(theirs, HASHES[2:4])
    assert read(store, HASHES[2:4]) == [content(HASHES[2]), content(HASHES[3])]
    assert read(store, HASHES[:2]) == []
    save(store, HASHES[:1])
    assert read(theirs, HASHES[:1]) == [content(HASHES[0])]


def test_a_server_that_ends_costs_no_waiting(like: Callable[..., LikeLmcache], stores: Stores):
    server = like()
    store = stores.open(server.port, limit_s=3600)
    save(store, HASHES[:2])
    server.silent.add("lookup")
    fetch = store.fetch(HASHES[:2], None)
    until(lambda: "lookup" in server.asked)
    server.close()
    assert fetch._reading.result(60) == []
    assert not store.is_up


def test_a_server_that_is_not_there_costs_no_waiting(stores: Stores, caplog: pytest.LogCaptureFixture):
    store = stores.open(free_port(), limit_s=3600)
    assert not store.has(HASHES[0])
    assert "`get_chunk_size`: no connection" in caplog.text


WRONG = {
    "another version": ("register_kv_cache_engine_driven_context", {"name": "x"}, "no `shm_name`"),
    "no shared memory": ("register_kv_cache_engine_driven_context", {"shm_name": "", "pool_size": 0}, "--shm-name"),
    "memory of another machine": (
        "register_kv_cache_engine_driven_context",
        {"shm_name": "/stoker-nowhere", "pool_size": 9},
        "must run on this machine",
    ),
    "a path": ("register_kv_cache_engine_driven_context", {"shm_name": "../etc/x", "pool_size": 9}, "no valid name"),
    "no number": ("get_chunk_size", "many", "not a number"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_the_log_says_why_a_server_cannot_be_used(
    like: Callable[..., LikeLmcache], stores: Stores, caplog: pytest.LogCaptureFixture, kind: str
):
    operation, answer, reason = WRONG[kind]
    server = like()
    server.answers[operation] = answer
    store = stores.open(server.port)
    assert not store.has(HASHES[0])
    (record,) = caplog.records
    assert reason in record.getMessage()


def test_chunks_that_do_not_hold_a_hash_are_reported(
    like: Callable[..., LikeLmcache], stores: Stores, caplog: pytest.LogCaptureFixture
):
    store = stores.open(like(chunk_size=4).port)
    assert read(store, HASHES[:1]) == []
    assert "--chunk-size must be at least 8, not 4" in caplog.text


@pytest.mark.parametrize("slot", [{"offset": 1 << 40}, {"offset": -1}, {"length": 9}, {"offset": "0"}])
def test_a_slot_outside_of_the_memory_is_not_touched(
    like: Callable[..., LikeLmcache], stores: Stores, slot: dict[str, object], caplog: pytest.LogCaptureFixture
):
    server = like()
    store = stores.open(server.port)
    whole = {"offset": 0, "length": SIZE + 4} | slot
    before = server.memory.read_bytes()
    server.answers["prepare_store"] = {"context": {"slots": [whole]}}
    save(store, HASHES[:1])
    assert server.memory.read_bytes() == before
    assert "does not hold a block" in caplog.text


def test_the_memory_of_a_server_is_not_open_while_nothing_is_read_or_saved(
    like: Callable[..., LikeLmcache], stores: Stores
):
    """Else it would take room after the server has ended."""
    server = like()
    store = stores.open(server.port)
    save(store, HASHES[:2])
    assert len(read(store, HASHES[:2])) == 2
    opened = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert server.memory not in opened


def test_another_memory_of_the_same_name_is_not_written(
    like: Callable[..., LikeLmcache], stores: Stores, caplog: pytest.LogCaptureFixture
):
    server = like()
    store = stores.open(server.port)
    save(store, HASHES[:1])
    other = server.memory.with_suffix(".new")
    other.write_bytes(bytes(SIZE_OF_MEMORY))
    other.rename(server.memory)
    save(store, HASHES[1:2])
    assert not any(server.memory.read_bytes())
    assert "it has started again" in caplog.text


def test_a_server_whose_memory_shrinks_costs_its_blocks(like: Callable[..., LikeLmcache], stores: Stores):
    server = like()
    store = stores.open(server.port)
    save(store, HASHES[:2])
    with server.memory.open("r+b") as file:
        file.truncate(SIZE // 2)
    assert read(store, HASHES[:2]) == []
    assert not store.is_up
