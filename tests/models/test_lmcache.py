"""KV blocks of small models in a server that behaves like LMCache's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.packages.stoker_lmcache.lmcache_servers import LikeLmcache
from tests.slow_cases import slow

from stoker.engine.core import Scheduler
from stoker.engine.executor.build import build_core
from stoker.engine.kv_stores.tiered_store import TieredStore
from stoker.engine.loop.engine_core import EngineCore
from stoker_lmcache import LmcacheBlocks

from .conftest import Saved
from .engine import resolved
from .test_kv_transfer import for_others
from .test_options import answer

PROMPT = [7 * number % 61 + 10 for number in range(45)]  # five full blocks of 8
Start = Callable[..., EngineCore]


@pytest.fixture
def server() -> Iterator[LikeLmcache]:
    server = LikeLmcache()
    yield server
    server.close()


@pytest.fixture
def start(saved: Callable[[str], Saved], server: LikeLmcache, tmp_path: Path) -> Iterator[Start]:
    """An engine of a small model with this server, closed at the end of the test."""
    with contextlib.ExitStack() as stack:

        def build(family: str = "qwen3", *, cache: dict[str, Any] | None = None, **transfer: Any) -> EngineCore:
            _, folder = saved(family)
            place = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": server.port, "lmcache.mp.mq_timeout": 60}
            transfer = {"kv_connector": "LMCacheMPConnector", "kv_connector_extra_config": place} | transfer
            core = build_core(resolved(folder, tmp_path, kv_transfer=transfer, cache=cache or {}))
            stack.callback(core.close)
            settle(core)  # the server is found beside the start
            return core

        yield build


def settle(core: EngineCore) -> None:
    """Wait until blocks are saved."""
    scheduler = core._scheduler
    assert isinstance(scheduler, Scheduler)
    store = scheduler.settings.store
    if isinstance(store, TieredStore) and isinstance(store.lasting, LmcacheBlocks):
        store.lasting.flush()


def ask(core: EngineCore) -> list[int]:
    tokens = answer(core, PROMPT)
    settle(core)
    return tokens


@pytest.mark.effect("kv_transfer.kv_connector", "kv_transfer.kv_connector_extra_config")
@pytest.mark.parametrize("family", ["qwen3", slow("gemma3"), slow("deepseek_v3")])
def test_a_second_engine_and_one_after_a_restart_read_what_the_first_has_computed(start: Start, family: str):
    without, first, second = (
        start(family, kv_connector=None, kv_connector_extra_config={}),
        start(family),
        start(family),
    )
    expected = ask(without)
    assert ask(first) == expected
    assert first.stats.store_hits == 0
    assert ask(second) == expected
    assert second.stats.store_hits == second.stats.prefix_hits == 40
    assert first.stats.num_step_tokens - second.stats.num_step_tokens == 40
    first.close()
    again = start(family)
    assert ask(again) == expected
    assert again.stats.store_hits == 40


def test_an_engine_of_another_block_size_computes(start: Start):
    ask(start())
    other = start(cache={"block_size": 16})
    ask(other)
    assert other.stats.store_hits == 0


def test_a_server_that_is_gone_costs_its_blocks_and_no_request(start: Start, server: LikeLmcache):
    first, second = start(), start()
    expected = ask(first)
    server.close()
    assert ask(second) == expected
    assert second.stats.store_hits == 0
    assert second.stats.num_free_blocks == second.stats.num_blocks


def test_host_memory_is_asked_first(start: Start, server: LikeLmcache):
    """A cache of the length of one sequence, so that each prompt evicts the other."""
    core = start(cache={"kv_offloading_size": 0.01, "num_gpu_blocks_override": 8})
    expected = ask(core)
    answer(core, [number + 3 for number in range(60)])
    settle(core)
    num_lookups = server.asked.count("lookup")
    assert ask(core) == expected
    assert core.stats.store_hits == 40
    assert server.asked.count("lookup") == num_lookups
    ask(other := start(cache={"kv_offloading_size": 0.01}))
    assert other.stats.store_hits == 40


@pytest.mark.effect("kv_transfer.kv_role")
def test_a_producer_names_its_blocks_for_a_consumer(start: Start, server: LikeLmcache):
    producer, consumer = start(kv_role="kv_producer"), start(kv_role="kv_consumer")
    expected = ask(start(kv_connector=None, kv_connector_extra_config={}))
    _, stored = for_others(producer)
    assert (len(stored.hashes), stored.host) == (5, "")
    assert "lookup" not in server.asked
    assert ask(consumer) == expected
    assert consumer.stats.store_hits == 40
    assert server.asked.count("prepare_store") == 5  # the consumer has saved nothing
