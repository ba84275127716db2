"""Prefill and decode on two servers: answers are those of one server, whatever happens to the prefill server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from openai import AsyncOpenAI
from tests.e2e.deployment import START_LIMIT_S, Server, metric, serving, write_manifest
from tests.free_ports import free_port
from tests.unit.engine.kv_stores.odd_servers import HOST

pytestmark = pytest.mark.slow
NUM_PROMPTS = 24


def prompt(number: int) -> str:
    """Of some hundred tokens; no two begin alike."""
    return f"{number} bottles of beer on the wall. " * (6 + number % 5)


@contextmanager
def server(
    folder: Path, name: str, *, port: int = 0, parallel: dict[str, int] | None = None, **transfer: Any
) -> Iterator[tuple[Server, str]]:
    """In float32 with `parallel`: processes that have parts of the model round differently in bfloat16."""
    manifest = write_manifest(folder / f"{name}.yaml", Path("builtin:tiny"), port=port)
    content = json.loads(manifest.read_text()) | {"kv_transfer": transfer}
    if parallel is not None:
        content["model"]["dtype"], content["parallel"] = "float32", parallel
    manifest.write_text(json.dumps(content))
    with serving(manifest) as (process, url):
        yield process, url


async def ask(url: str, numbers: range) -> list[str]:
    """The answers to these prompts, asked all at a time."""
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0, timeout=START_LIMIT_S) as client:

        async def one(number: int) -> str:
            answer = await client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": prompt(number)}],
                max_completion_tokens=24,
                temperature=0,
            )
            (choice,) = answer.choices
            assert choice.finish_reason in ("length", "stop")
            assert answer.usage is not None
            assert answer.usage.prompt_tokens > 64
            return choice.message.content or ""

        return await asyncio.gather(*map(one, numbers))


def num_read(url: str) -> float:
    """Prompt tokens whose blocks a server has read."""
    return metric(httpx.get(f"{url}/metrics").text, "stoker_external_prefix_cache_hits_total")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def until_it_reads_again(url: str) -> None:
    """Blocks of a prefill server that is back."""
    before, fresh = num_read(url), count(10_000)

    def has_read() -> bool:
        number = next(fresh)
        asyncio.run(ask(url, range(number, number + 1)))
        return num_read(url) > before

    until(has_read)


def has_connections(process: psutil.Process, port: int) -> bool:
    """Whether a process is connected to this port of another."""
    return any(each.raddr and each.raddr.port == port for each in process.net_connections("tcp"))


def kill(process: Server) -> None:
    """All of its processes, as a machine that loses its power."""
    for each in [process.process, *process.process.children(recursive=True)]:
        each.kill()
    process.wait()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The answers of one server."""
    with server(tmp_path_factory.mktemp("alone"), "alone") as (_, url):
        return asyncio.run(ask(url, range(3 * NUM_PROMPTS)))


@pytest.mark.effect("kv_transfer.kv_connector", "kv_transfer.prefill_servers")
@pytest.mark.parametrize("connector", ["TcpConnector", "SharedStorageConnector"])
def test_two_servers_answer_as_one_and_none_of_their_requests_is_lost(tmp_path: Path, alone: list[str], connector: str):
    port, folder = free_port(), {"kv_connector_extra_config": {"shared_storage_path": str(tmp_path / "kv")}}
    both = {"kv_connector": connector, **(folder if connector == "SharedStorageConnector" else {})}
    of_tcp = {"kv_port": free_port()} if connector == "TcpConnector" else {}
    prefill = {**both, **of_tcp, "kv_role": "kv_producer"}
    decode = {**both, "kv_role": "kv_consumer", "prefill_servers": [f"http://{HOST}:{port}"], "prefill_min_tokens": 32}
    with ExitStack() as stack:
        process, _ = stack.enter_context(server(tmp_path, "prefill", port=port, **prefill))
        decoding, url = stack.enter_context(server(tmp_path, "decode", **decode))

        first, second, third = (range(start, start + NUM_PROMPTS) for start in range(0, 3 * NUM_PROMPTS, NUM_PROMPTS))
        assert asyncio.run(ask(url, first)) == [alone[number] for number in first]
        assert num_read(url) >= NUM_PROMPTS * 64
        assert metric(httpx.get(f"{url}/metrics").text, "stoker_prefill_unused_total") == 0

        async def ask_and_kill() -> list[str]:
            """It is killed while it has prompts: it does not answer them, because it was stopped before."""
            process.process.suspend()
            answers = asyncio.ensure_future(ask(url, second))
            await asyncio.to_thread(until, lambda: has_connections(decoding.process, port))
            await asyncio.to_thread(kill, process)
            return await answers

        before = num_read(url)
        assert asyncio.run(ask_and_kill()) == [alone[number] for number in second]
        assert num_read(url) == before

        process, _ = stack.enter_context(server(tmp_path, "prefill", port=port, **prefill))
        answers: list[str] = []
        for number in third:
            answers += asyncio.run(ask(url, range(number, number + 1)))
        assert answers == [alone[number] for number in third]
        until_it_reads_again(url)


def test_servers_of_several_processes_read_each_others_blocks(tmp_path: Path):
    """One shares prompts over two processes, the other has parts of the model in each of two."""
    numbers, port = range(NUM_PROMPTS), free_port()
    with server(tmp_path, "one", parallel={}) as (_, url):
        expected = asyncio.run(ask(url, numbers))
    both = {"kv_connector": "TcpConnector", "prefill_servers": [f"http://{HOST}:{port}"]}
    prompts, tensor = {"prefill_context_parallel_size": 2}, {"tensor_parallel_size": 2}
    prefill = {"kv_connector": "TcpConnector", "kv_port": free_port(), "kv_role": "kv_producer"}
    with ExitStack() as stack:
        stack.enter_context(server(tmp_path, "prefill", port=port, parallel=prompts, **prefill))
        decode = server(tmp_path, "decode", parallel=tensor, kv_role="kv_consumer", prefill_min_tokens=32, **both)
        _, url = stack.enter_context(decode)
        assert asyncio.run(ask(url, numbers)) == expected
        assert num_read(url) >= NUM_PROMPTS * 64


def test_a_prefill_server_that_is_stopped_costs_a_few_seconds_once(tmp_path: Path, alone: list[str]):
    port, tcp = free_port(), {"kv_connector": "TcpConnector"}
    prefill = {**tcp, "kv_port": free_port(), "kv_role": "kv_producer"}
    decode = {**tcp, "kv_role": "kv_consumer", "prefill_servers": f"http://{HOST}:{port}", "prefill_min_tokens": 32}
    with (
        server(tmp_path, "prefill", port=port, **prefill) as (process, _),
        server(tmp_path, "decode", **decode) as (_, url),
    ):
        numbers = range(NUM_PROMPTS)
        process.process.suspend()
        assert asyncio.run(ask(url, numbers)) == [alone[number] for number in numbers]
        assert num_read(url) == 0
        process.process.resume()
        until_it_reads_again(url)


def test_the_engine_of_a_prefill_server_is_killed_while_prompts_run(tmp_path: Path, alone: list[str]):
    port, tcp = free_port(), {"kv_connector": "TcpConnector"}
    prefill = {**tcp, "kv_port": free_port(), "kv_role": "kv_producer"}
    decode = {**tcp, "kv_role": "kv_consumer", "prefill_servers": f"http://{HOST}:{port}", "prefill_min_tokens": 32}
    with (
        server(tmp_path, "prefill", port=port, **prefill) as (process, _),
        server(tmp_path, "decode", **decode) as (decoding, url),
    ):
        numbers = range(3 * NUM_PROMPTS)

        async def ask_and_kill() -> list[str]:
            answers = asyncio.ensure_future(ask(url, numbers))
            await asyncio.to_thread(until, lambda: has_connections(decoding.process, port))
            process.engine.kill()
            return await answers

        assert asyncio.run(ask_and_kill()) == [alone[number] for number in numbers]
        until_it_reads_again(url)  # the engine is started again, and serves its blocks at the same port
