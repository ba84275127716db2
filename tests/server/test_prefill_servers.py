"""PrefillServers: other servers compute prompts, and no request is lost with one of them."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from stoker.config.schema.kv_transfer import KVTransferConfig
from stoker.engine.api import (
    AdapterRef,
    CacheScope,
    EngineRequest,
    EngineStats,
    RequestInputs,
    SamplingParams,
    StoredBlocks,
)
from stoker.engine.client.engine_client import EngineState
from stoker.server import prefill_servers
from stoker.server.observe.engine_metrics import EngineSnapshot
from stoker.server.observe.metrics import Metrics
from stoker.server.prefill_servers import PrefillServers

from ..fakes import FakeEngine
from .deployment import MODEL, Served
from .prefill_server import HOST, NAMES, PARAMS, READ, Answer, PrefillServer

PROMPT = list(range(20))
SOURCE = StoredBlocks(tuple(map(bytes.fromhex, NAMES)), "10.0.0.9", 5601)


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**arguments), 120))

    return run


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers are probed so often that a test need not wait, and none that lives is taken for a silent one."""
    monkeypatch.setattr(prefill_servers, "PROBE_INTERVAL_S", 0.01)
    monkeypatch.setattr(prefill_servers, "PROBE_TIMEOUT_S", 60.0)


@asynccontextmanager
async def using(
    *urls: str, clock: Callable[[], float] = time.monotonic, **options: Any
) -> AsyncIterator[PrefillServers]:
    config = KVTransferConfig(
        kv_connector="TcpConnector", **{"prefill_min_tokens": 8, **options, "prefill_servers": urls}
    )
    idle = EngineSnapshot(EngineStats(), EngineState.READY)
    servers = PrefillServers(config, Metrics("m", lambda: {0: idle}), clock)
    try:
        yield servers
    finally:
        await servers.close()


def request(prompt: list[int] = PROMPT, **fields: Any) -> EngineRequest:
    sampling = SamplingParams(max_tokens=9, temperature=1.0, prompt_logprobs=fields.pop("prompt_logprobs", None))
    inputs = RequestInputs(prompt, sampling, fields.pop("scope", CacheScope()))
    return EngineRequest(request_id="r-1", inputs=inputs, **fields)


async def source_of(servers: PrefillServers, one: EngineRequest | None = None) -> StoredBlocks | None:
    one = one or request()
    await servers.prefill(one)
    return one.source


def count(servers: PrefillServers, outcome: str) -> int:
    """Prompts that were sent: `computed` or `failed`."""
    text = servers._metrics.render().decode()
    found = re.search(rf'^stoker_prefill_requests_total{{outcome="{outcome}"}} (\d+)', text, re.MULTILINE)
    return int(found[1]) if found else 0


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.mark.effect("kv_transfer.prefill_servers")
@on_a_loop
async def test_a_prompt_is_computed_elsewhere_and_its_blocks_are_named() -> None:
    async with PrefillServer() as server, using(server.url + "/") as servers:
        one = request(scope=CacheScope("salt", 3))
        assert await source_of(servers, one) == SOURCE
        assert server.bodies == [
            {
                "token_ids": PROMPT,
                "sampling_params": {"max_tokens": 1, "temperature": 0.0},
                "cache_salt": one.inputs.scope.root_text,
                "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
            }
        ]
        assert server.headers[0]["x-request-id"] == "r-1"
        assert "authorization" not in server.headers[0]
        assert (count(servers, "computed"), count(servers, "failed")) == (1, 0)


@pytest.mark.effect("kv_transfer.prefill_api_key")
@on_a_loop
async def test_the_key_of_the_servers_is_sent_to_them() -> None:
    async with PrefillServer() as server, using(server.url, prefill_api_key="sk-1") as servers:
        assert await source_of(servers) == SOURCE
        assert server.headers[0]["authorization"] == "Bearer sk-1"


@pytest.mark.effect("kv_transfer.prefill_min_tokens")
@on_a_loop
async def test_short_prompts_are_computed_here() -> None:
    async with PrefillServer() as server, using(server.url, prefill_min_tokens=20) as servers:
        assert await source_of(servers, request(PROMPT[:19])) is None
        assert await source_of(servers, request(PROMPT)) == SOURCE
        assert len(server.bodies) == 1


@on_a_loop
async def test_prompts_that_are_of_no_use_elsewhere_are_not_sent() -> None:
    async with PrefillServer() as server, using(server.url) as servers:
        assert await source_of(servers, request(is_for_others=True)) is None
        assert await source_of(servers, request(prompt_logprobs=1)) is None
        known = StoredBlocks((b"a",), "10.0.0.7", 1)
        assert await source_of(servers, request(source=known)) == known
        adapted = request()
        adapted.inputs = replace(adapted.inputs, adapter=AdapterRef("sql", "d1", "/adapters/sql"))
        assert await source_of(servers, adapted) is None
        assert server.bodies == []


@on_a_loop
async def test_the_server_with_the_fewest_prompts_is_chosen() -> None:
    async with PrefillServer() as first, PrefillServer() as second, using(first.url, second.url) as servers:
        may_answer = asyncio.Event()

        async def late() -> Answer:
            await may_answer.wait()
            return READ

        first.prompt = second.prompt = late
        waiting = []
        for number in range(1, 7):
            waiting.append(asyncio.ensure_future(source_of(servers)))
            await until(lambda number=number: first.num_open + second.num_open == number)
            assert abs(first.num_open - second.num_open) <= 1
        may_answer.set()
        assert await asyncio.gather(*waiting) == [SOURCE] * 6


@on_a_loop
async def test_prompts_that_begin_alike_go_to_the_server_that_has_their_blocks() -> None:
    async with PrefillServer() as first, PrefillServer() as second, using(first.url, second.url) as servers:
        beginning = list(range(300))
        for number in range(5):
            assert await source_of(servers, request([*beginning, number])) == SOURCE
        assert sorted((len(first.bodies), len(second.bodies))) == [0, 5]
        for number in range(64):
            await source_of(servers, request([number] * 300))
        assert first.bodies
        assert second.bodies


BROKEN = {
    "500": Answer({"error": {"message": "no"}}, 500),
    "503": Answer(b"", 503),
    "400": Answer({"error": {"message": "no"}}, 400),
    "redirect": Answer(b"", 307),
    "cut": Answer(status=None),
    "no http": Answer(b"x", -1),
    "no json": Answer(b"<html>"),
    "no utf-8": Answer(b'"\xff"'),
    "empty": Answer(b""),
    "deep": Answer(b"[" * 100_000),
    "list": Answer([1]),
    "null": Answer(None),
    "text": Answer("kv_transfer_params"),
    "nothing": Answer({}),
    "no params": Answer({"kv_transfer_params": None}),
    "odd params": Answer({"kv_transfer_params": [1]}),
    "numbers": Answer({"kv_transfer_params": PARAMS | {"remote_block_ids": [1, 2]}}),
    "no hashes": Answer({"kv_transfer_params": PARAMS | {"remote_block_ids": ["block"]}}),
    "no port": Answer({"kv_transfer_params": PARAMS | {"remote_port": 1 << 16}}),
}


@pytest.mark.parametrize("kind", BROKEN)
@on_a_loop
@pytest.mark.quick_cases(10)
async def test_a_prompt_is_computed_here_where_the_answer_is_of_no_use(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with PrefillServer() as server, using(server.url) as servers:
        server.answer(BROKEN[kind])
        assert await source_of(servers) is None
        assert (count(servers, "computed"), count(servers, "failed")) == (0, 1)
        assert f"prefill server {HOST}:{server.port}: " in caplog.text
        assert "the prompt is computed here" in caplog.text
        server.answer(READ)
        assert await source_of(servers) == SOURCE  # it is asked again


@on_a_loop
async def test_an_answer_without_blocks_names_none() -> None:
    async with PrefillServer() as server, using(server.url) as servers:
        server.answer(Answer({"kv_transfer_params": PARAMS | {"remote_block_ids": []}}))
        assert await source_of(servers) is None
        assert count(servers, "failed") == 0


URLS = [
    *("10.0.0.4:8000", "ftp://a", "http://", "http://a/v1", "http://a?b", "http://a b", "http://\x7f"),
    *("http://[::1", "http://a:b", "http://a:65536", "http://a:0", "http://user:secret@a"),
]


@pytest.mark.parametrize("url", URLS)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        KVTransferConfig(prefill_servers=(url,))


@pytest.mark.parametrize("url", ["http://ä..b", "http://" + "a" * 300])
@on_a_loop
async def test_a_host_that_does_not_exist_costs_no_request(url: str) -> None:
    async with using(url) as servers:
        assert await source_of(servers) is None
        assert count(servers, "failed") == 1


@on_a_loop
async def test_a_server_that_refuses_connections_is_passed_until_it_is_back(often: None) -> None:
    async with PrefillServer() as gone:
        pass
    async with PrefillServer() as other, using(gone.url, other.url) as servers:
        for number in range(64):
            await source_of(servers, request([number] * 20))
        assert count(servers, "failed") == 1
        assert len(other.bodies) == count(servers, "computed") == 63
        async with PrefillServer(gone.port) as back:
            lost = [server.lost for server in servers._servers if server.url == gone.url]
            await until(lambda: not lost[0].is_set())
            for number in range(64):
                assert await source_of(servers, request([number] * 20)) == SOURCE
            assert back.bodies


@on_a_loop
async def test_prompts_are_computed_here_while_no_server_answers(often: None) -> None:
    async with PrefillServer() as gone:
        pass
    async with using(gone.url) as servers:
        assert await source_of(servers) is None
        assert await source_of(servers) is None
        assert count(servers, "failed") == 1  # the second was not sent
        async with PrefillServer(gone.port):
            await until(lambda: not servers._servers[0].lost.is_set())
            assert await source_of(servers) == SOURCE


@pytest.mark.parametrize("kind", ["silent", "error"])
@on_a_loop
async def test_a_server_that_stops_answering_is_left(often: None, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    if kind == "silent":
        monkeypatch.setattr(prefill_servers, "PROBE_TIMEOUT_S", 0.1)
    async with PrefillServer() as server, using(server.url) as servers:
        server_is_back = asyncio.Event()

        async def stopped() -> Answer:
            if kind == "silent" or server.num_open:
                await server_is_back.wait()
            return READ

        async def sick() -> Answer:
            return Answer(b"", 503) if not server_is_back.is_set() else Answer()

        server.prompt, server.health = stopped, stopped if kind == "silent" else sick
        waiting = [asyncio.ensure_future(source_of(servers)) for _ in range(3)]
        assert await asyncio.gather(*waiting) == [None] * 3
        assert count(servers, "failed") == 3
        assert await source_of(servers) is None  # it was not asked
        assert len(server.bodies) == 3
        await until(lambda: not server.num_open)  # it need not compute them any more
        monkeypatch.setattr(prefill_servers, "PROBE_TIMEOUT_S", 60.0)
        server_is_back.set()
        await until(lambda: not servers._servers[0].lost.is_set())
        assert await source_of(servers) == SOURCE


@on_a_loop
async def test_a_slow_server_that_lives_is_waited_for(often: None) -> None:
    async with PrefillServer() as server, using(server.url) as servers:

        async def slow() -> Answer:
            await until(lambda: server.num_probes >= 5)
            return READ

        server.prompt = slow
        assert await source_of(servers) == SOURCE
        await until(lambda: servers._servers[0].watch is None)  # it is not probed without need


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@on_a_loop
async def test_a_server_whose_blocks_are_of_no_use_is_asked_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Each prompt was computed twice, as long as the prefix cache of the server had been reset."""

    async def ask(num_cached_tokens: int) -> bool:
        begun = await servers.prefill(request())
        if begun is not None:
            begun(num_cached_tokens)
        return begun is not None

    now = 0.0
    async with PrefillServer() as server, using(server.url, clock=lambda: now) as servers:
        assert [await ask(each) for each in (0, 0, 16, 0, 0)] == [True] * 5
        assert not warnings(caplog)
        assert [await ask(0) for _ in range(3)] == [True, False, False]
        assert "the blocks of its last 3 prompts were not read; it is asked again in 60 s" in caplog.text
        now = 60.0
        assert [await ask(0) for _ in range(2)] == [True, False]
        now = 120.0
        assert [await ask(16) for _ in range(2)] == [True, True]
        assert '\nstoker_prefill_unused_total{model_name="m"} 6' in servers._metrics.render().decode()


@on_a_loop
async def test_prompts_that_were_asked_for_before_a_rest_do_not_prolong_it(caplog: pytest.LogCaptureFixture) -> None:
    """Each of them was a warning, and began another minute."""
    now = 0.0
    async with PrefillServer() as server, using(server.url, clock=lambda: now) as servers:
        asked = [await servers.prefill(request()) for _ in range(5)]
        for at, begun in zip((0.0, 0.0, 0.0, 1.0, 59.0), asked, strict=True):
            now = at
            assert begun is not None
            begun(0)
        assert len(warnings(caplog)) == 1
        assert await servers.prefill(request()) is None
        now = 60.0
        assert await servers.prefill(request()) is not None


@on_a_loop
async def test_a_prompt_of_one_block_says_nothing_about_a_server() -> None:
    """Its last token is computed in any case."""
    async with PrefillServer() as server, using(server.url) as servers:
        server.answer(Answer({"kv_transfer_params": {**PARAMS, "remote_block_ids": NAMES[:1]}}))
        assert await servers.prefill(request()) is None


@on_a_loop
async def test_a_client_that_leaves_ends_the_prompt_elsewhere() -> None:
    async with PrefillServer() as server, using(server.url) as servers:
        server.prompt = asyncio.Event().wait  # type: ignore[assignment]
        waiting = asyncio.ensure_future(source_of(servers))
        await until(lambda: server.num_open == 1)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        await until(lambda: server.num_open == 0)
        assert servers._servers[0].num_open == 0


# ---- in a server


@on_a_loop
async def test_requests_of_every_route_have_their_prompts_computed_elsewhere(folder: Path) -> None:
    engine = FakeEngine()
    engine.num_cached_tokens = 16
    async with PrefillServer() as server:
        transfer = {"kv_connector": "TcpConnector", "prefill_servers": [server.url], "prefill_min_tokens": 1}
        served = Served(folder, engine, kv_transfer=transfer)
        messages = [{"role": "user", "content": "Hello"}]
        routes = {
            "/v1/chat/completions": {"messages": messages, "max_tokens": 3},
            "/v1/completions": {"prompt": "Hello", "max_tokens": 3},
            "/inference/v1/generate": {"token_ids": PROMPT, "sampling_params": {"max_tokens": 3}},
            "/v1/responses": {"input": "Hello", "max_output_tokens": 3},
            "/v1/messages": {"messages": messages, "max_tokens": 3},
        }
        async with served.client() as client:
            for path, body in routes.items():
                answer = await client.post(path, json={"model": MODEL, **body})
                assert answer.status_code == 200, answer.text
            server.answer(BROKEN["500"])
            answer = await client.post("/v1/completions", json={"model": MODEL, "prompt": "Hello", "max_tokens": 3})
            assert answer.status_code == 200, answer.text
        assert [one.source for one in engine.requests] == [SOURCE] * len(routes) + [None]
        assert [body["token_ids"] for body in server.bodies] == [one.inputs.prompt_token_ids for one in engine.requests]
        assert served.service.prefill_servers is not None
        await served.service.prefill_servers.close()


@on_a_loop
async def test_prompts_that_an_engine_computes_again_are_counted(folder: Path) -> None:
    engine = FakeEngine()
    async with PrefillServer() as server:
        transfer = {"kv_connector": "TcpConnector", "prefill_servers": [server.url], "prefill_min_tokens": 1}
        served = Served(folder, engine, kv_transfer=transfer)
        async with served.client() as client:
            for _ in range(4):
                body = {"model": MODEL, "prompt": "Hello", "max_tokens": 3, "n": 2}
                answer = await client.post("/v1/completions", json=body)
                assert answer.status_code == 200, answer.text
            metrics = (await client.get("/metrics")).text
        assert len(server.bodies) == 3
        assert f'stoker_prefill_unused_total{{model_name="{MODEL}"}} 3' in metrics
        assert served.service.prefill_servers is not None
        await served.service.prefill_servers.close()


@on_a_loop
async def test_a_prompt_of_several_answers_is_computed_once(folder: Path) -> None:
    engine = FakeEngine()
    async with PrefillServer() as server:
        transfer = {"kv_connector": "TcpConnector", "prefill_servers": [server.url], "prefill_min_tokens": 1}
        served = Served(folder, engine, kv_transfer=transfer)
        async with served.client() as client:
            body = {"model": MODEL, "prompt": ["Hello", "Good day"], "n": 3, "max_tokens": 2}
            answer = await client.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
        assert len(server.bodies) == 2
        assert [one.source for one in engine.requests] == [SOURCE] * 6
        assert served.service.prefill_servers is not None
        await served.service.prefill_servers.close()


@on_a_loop
async def test_a_salt_that_a_server_would_refuse_is_not_sent() -> None:
    async with PrefillServer() as server, using(server.url) as servers:
        assert await source_of(servers, request(scope=CacheScope("s" * 1024, 1))) is None
        assert await source_of(servers, request(scope=CacheScope("adapter"))) is None  # it would have another root
        assert await source_of(servers, request(scope=CacheScope("s" * 1024))) == SOURCE
        assert len(server.bodies) == 1


@pytest.mark.effect("kv_transfer.prefill_timeout")
@on_a_loop
async def test_a_server_that_lives_and_never_answers_is_not_waited_for() -> None:
    """A client waited until its own timeout."""

    async def never() -> Answer:
        await asyncio.Event().wait()
        return READ

    async with PrefillServer() as server, using(server.url, prefill_timeout=0.05) as servers:
        server.prompt = never
        assert await source_of(servers) is None
        assert count(servers, "failed") == 1


class _Endless:
    """An answer that would be this long."""

    status = 200

    def __init__(self, head: str, num_bytes: int) -> None:
        self._head, self._num_bytes = head, num_bytes

    def __bytes__(self) -> bytes:
        head = f"HTTP/1.1 200 OK\r\n{self._head}Content-Length: {self._num_bytes}\r\n\r\n"
        return head.encode() + b"x" * 200_000


@pytest.mark.parametrize("head", ["", "Content-Encoding: gzip\r\n"])
@on_a_loop
async def test_of_a_long_answer_the_rest_is_not_received(head: str, caplog: pytest.LogCaptureFixture) -> None:
    """Gigabytes were received, and decompressed, into the memory of the API process."""
    async with PrefillServer() as server, using(server.url) as servers:
        server.answer(_Endless(head, 3 << 30))  # type: ignore[arg-type]
        assert await source_of(servers) is None
    assert ("compressed" if head else "more than") in caplog.text
