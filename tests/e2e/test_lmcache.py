"""Two servers with one LMCache server: answers are those of one server, whatever happens to LMCache."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.e2e.test_prefill_decode import (  # noqa: F401  alone is a fixture
    NUM_PROMPTS,
    alone,
    ask,
    has_connections,
    num_read,
    server,
    until,
)
from tests.free_ports import free_port
from tests.packages.stoker_lmcache.lmcache_servers import real_server

pytestmark = pytest.mark.slow


@pytest.mark.effect("kv_transfer.kv_connector", "kv_transfer.kv_connector_extra_config")
def test_two_servers_share_prompts_and_go_on_without_lmcache(tmp_path: Path, alone: list[str]):  # noqa: F811
    port = free_port()
    transfer: dict[str, Any] = {
        "kv_connector": "LMCacheMPConnector",
        "kv_connector_extra_config": {"lmcache.mp.host": "127.0.0.1", "lmcache.mp.port": port},
    }
    with ExitStack() as stack:
        lmcache = stack.enter_context(ExitStack())
        lmcache.enter_context(real_server(port, tmp_path / "log"))
        first, our_url = stack.enter_context(server(tmp_path, "first", **transfer))
        _, their_url = stack.enter_context(server(tmp_path, "second", **transfer))

        shared, lost, back = (range(start, start + NUM_PROMPTS) for start in range(0, 3 * NUM_PROMPTS, NUM_PROMPTS))
        assert asyncio.run(ask(our_url, shared)) == [alone[number] for number in shared]
        assert asyncio.run(ask(their_url, shared)) == [alone[number] for number in shared]
        assert num_read(their_url) >= NUM_PROMPTS * 64 / 2  # those that were not yet saved are computed

        async def ask_and_end() -> list[str]:
            answers = asyncio.ensure_future(ask(our_url, lost))
            await asyncio.to_thread(until, lambda: has_connections(psutil.Process(first.engine.pid), port))
            await asyncio.to_thread(lmcache.close)
            return await answers

        assert asyncio.run(ask_and_end()) == [alone[number] for number in lost]
        assert asyncio.run(ask(their_url, lost)) == [alone[number] for number in lost]
        assert any("LMCache cannot be used" in line for line in first.err)

        lmcache.enter_context(real_server(port, tmp_path / "log"))
        before, fresh = num_read(their_url), count(10_000)

        def is_shared_again() -> bool:
            number = next(fresh)
            (ours,), (theirs,) = (asyncio.run(ask(url, range(number, number + 1))) for url in (our_url, their_url))
            assert ours == theirs
            return num_read(their_url) > before

        until(is_shared_again)
        assert asyncio.run(ask(our_url, back)) == [alone[number] for number in back]


def test_an_lmcache_server_that_is_stopped_costs_a_few_seconds_once(tmp_path: Path, alone: list[str]):  # noqa: F811
    port = free_port()
    place = {"lmcache.mp.host": "127.0.0.1", "lmcache.mp.port": port, "lmcache.mp.mq_timeout": 0.5}
    transfer: dict[str, Any] = {"kv_connector": "LMCacheMPConnector", "kv_connector_extra_config": place}
    with real_server(port, tmp_path / "log") as process, server(tmp_path, "first", **transfer) as (first, url):
        numbers = range(NUM_PROMPTS)
        assert asyncio.run(ask(url, numbers)) == [alone[number] for number in numbers]
        psutil.Process(process.pid).suspend()
        more = range(NUM_PROMPTS, 2 * NUM_PROMPTS)
        assert asyncio.run(ask(url, more)) == [alone[number] for number in more]
        assert sum("LMCache cannot be used" in line for line in first.err) == 1
