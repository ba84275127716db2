"""ConnectorStore: blocks of a connector of the user's own, also of one that raises, hangs or returns something else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests import own_stores
from tests.own_stores import DictStore, Hangs

from stoker.engine.api import StoredBlocks
from stoker.engine.kv_stores.connector import StoreRole
from stoker.engine.kv_stores.connector_store import CALL_LIMIT_S, ConnectorStore
from stoker.engine.kv_stores.tiered_store import TieredStore

from .test_engine_blocks import NAMES, SIZE, content, contents, read, save


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def store_of(connector: Any, fingerprint: str = "alike", **options: Any) -> ConnectorStore:
    clock = options.pop("clock", time.monotonic)
    return ConnectorStore(connector, "tests.own_stores:Own", StoreRole(fingerprint, SIZE, **options), clock)


@pytest.fixture
def shelf() -> str:
    """With all blocks, which another engine has saved."""
    name = f"shelf {threading.get_ident()}"
    DictStore.shelves.pop(name, None)
    store = store_of(DictStore(name))
    save(store, NAMES)
    store.close()
    return name


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def wants(store: ConnectorStore, names: Sequence[bytes] = NAMES) -> list[bool]:
    return [store.wants(name, is_for_others=False) for name in names]


def test_blocks_are_read_that_another_engine_has_saved(shelf: str):
    connector = DictStore(shelf)
    store = store_of(connector)
    assert all(map(store.has, NAMES))
    assert read(store, NAMES) == contents(NAMES)
    assert not any(wants(store))
    assert store.stored([*NAMES, b"other" * 6]) == StoredBlocks(tuple(NAMES))
    assert store.num_failures == 0
    store.close()
    assert connector.is_closed
    assert len(connector.blocks) == 5


def test_the_first_block_that_is_not_stored_ends_a_prefix_and_what_follows_is_saved_again(shelf: str):
    connector = DictStore(shelf)
    store = store_of(connector)
    read(store, NAMES)
    del connector.blocks[store._key(NAMES[2])]
    assert read(store, NAMES) == contents(NAMES[:2])
    assert wants(store) == [False, False, True, True, True]
    assert store.num_failures == 0


def test_engines_of_another_model_have_other_keys(shelf: str):
    store = store_of(DictStore(shelf), "another")
    assert read(store, NAMES) == []
    assert max(map(len, map(store._key, NAMES))) <= 97


def test_roles_read_or_write(shelf: str):
    producer = store_of(DictStore(shelf), reads=False)
    assert not producer.has(NAMES[0])
    assert all(wants(producer))
    consumer = store_of(DictStore(shelf), writes=False)
    assert consumer.has(NAMES[0])
    assert not any(wants(consumer))


@pytest.mark.parametrize(
    ("name", "num_read", "said"),
    [
        ("RaisesInLoad", 0, "the network is down"),
        ("RaisesAfterTwo", 2, "enough"),
        ("ReturnsOthers", 0, "differs from what was saved"),
        ("ReturnsHalves", 0, "a block of 34 bytes, 68 were saved"),
        ("ReturnsTexts", 0, "memoryview: a bytes-like object is required, not 'str'"),
        ("ReturnsNothing", 0, "not iterable"),
        ("UsesOneBuffer", 5, ""),
    ],
)
def test_what_a_connector_does_wrong_costs_blocks_and_is_logged_once(
    name: str, num_read: int, said: str, shelf: str, caplog: pytest.LogCaptureFixture
):
    store = store_of(getattr(own_stores, name)(shelf))
    for _ in range(3):
        assert read(store, NAMES) == contents(NAMES[:num_read])
    assert store.num_failures == (3 if said else 0)
    assert len(caplog.records) == (1 if said else 0)
    assert said in caplog.text
    store.close()


def test_a_save_that_fails_is_tried_again_for_the_next_request(caplog: pytest.LogCaptureFixture):
    store = store_of(own_stores.RaisesInSave("failing"))
    save(store, NAMES)
    until(lambda: store.num_failures == 5)
    until(lambda: all(wants(store)))
    assert not any(map(store.is_saving, NAMES))
    assert "no space left" in caplog.text
    assert len(caplog.records) == 1


def test_a_load_that_hangs_is_given_up_with_what_has_arrived(shelf: str, caplog: pytest.LogCaptureFixture):
    connector, clock = Hangs(shelf), Clock()
    store = store_of(connector, clock=clock)
    first, second = store.fetch(NAMES, None), store.fetch(NAMES[1:], None)
    connector.hangs.wait(60)
    clock.now = CALL_LIMIT_S
    assert not first.is_done
    assert store.has(NAMES[0])
    clock.now += 0.1
    assert first.is_done
    assert second.is_done
    assert [bytes(block) for block in first.contents] == contents(NAMES[:1])
    assert second.contents == []
    assert not store.has(NAMES[0])
    assert store.num_failures == 1
    assert caplog.text.count("no answer within 10 s") == 1
    connector.go_on.set()
    until(lambda: store.has(NAMES[0]))
    assert read(store, NAMES) == contents(NAMES)
    assert [bytes(block) for block in first.contents] == contents(NAMES[:1])
    assert connector.asked == [5, 5]  # the second was not asked for any more
    store.close()


def test_a_save_that_hangs_is_not_waited_for(shelf: str, caplog: pytest.LogCaptureFixture):
    connector, clock = Hangs(shelf), Clock()
    store = store_of(connector, clock=clock)
    save(store, NAMES[:1])
    connector.hangs.wait(60)
    assert store.is_saving(NAMES[0])
    clock.now = CALL_LIMIT_S + 1
    assert not store.is_saving(NAMES[0])
    assert not any(wants(store))
    store.close()
    assert not connector.is_closed
    assert "does not return, so it is not closed" in caplog.text
    connector.go_on.set()


def test_host_memory_is_asked_first(shelf: str):
    connector = DictStore(shelf)
    store = TieredStore(2 * SIZE, store_of(connector))
    store.save(NAMES[1], memoryview(content(NAMES[1])), is_for_others=False)
    assert read(store, NAMES) == contents(NAMES)
    assert connector.asked == [4]
    assert store.num_failures == 0
    store.close()
