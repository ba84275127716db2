"""Replicas of another machine: real connections and engine processes around a fake runner."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest
from tests.fake_runner import continuation
from tests.free_ports import free_port

from stoker.engine.api import EngineDead, EngineRequest, RequestInputs, SamplingParams
from stoker.engine.client.engine_client import EngineState
from stoker.engine.client.process import EngineProcessClient
from stoker.engine.cluster.gathering import CannotGather
from stoker.engine.cluster.headless_node import NodeState
from stoker.engine.replicas.node import ReplicaNode, ReplicaStart
from stoker.engine.replicas.remote import RemoteChild, RemoteReplicas
from stoker.engine.transport.rank_link import packed
from stoker.engine.transport.rank_messages import Join

ROOT = Path(__file__).parents[4]
COMMAND = (sys.executable, "-m", "tests.fake_runner")
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / ".dev"), str(ROOT)])}
PRINT = {"version": "1", "model": "a"}
LIMIT_S = 30.0


def node_of(port: int, secret: str = "", fingerprint: dict[str, str] | None = None, **settings: object) -> ReplicaNode:
    start = ReplicaStart(json.dumps(settings), ENVIRONMENT, COMMAND)
    return ReplicaNode({1: start}, "127.0.0.1", port, fingerprint or PRINT, secret)


@asynccontextmanager
async def server(port: int, max_restarts: int = 3) -> AsyncIterator[EngineProcessClient]:
    """The client of replica 1, not started."""
    remote = RemoteReplicas("127.0.0.1", port, [1], PRINT, "")
    client = EngineProcessClient("", max_restarts=max_restarts, child_of=partial(RemoteChild, remote, 1))
    try:
        yield client
    finally:
        await client.close()
        await remote.close()


@asynccontextmanager
async def running(node: ReplicaNode) -> AsyncIterator[asyncio.Task[int]]:
    task = asyncio.create_task(node.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not node.pids


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.01)


async def tokens_of(client: EngineProcessClient, prompt: list[int]) -> list[int]:
    request = EngineRequest(request_id="r", inputs=RequestInputs(prompt, SamplingParams(max_tokens=8)))
    return [token async for output in client.generate(request) for token in output.token_ids]


@pytest.mark.slow
def test_a_replica_answers_ends_and_returns():
    async def scenario() -> None:
        port = free_port()
        async with server(port) as client, running(node := node_of(port)):
            await client.start()
            await until(lambda: node.state is NodeState.READY)
            assert client.info.model == "fake"
            assert await tokens_of(client, [1, 2, 3]) == continuation([1, 2, 3], 8)

            # its engine is killed: the node reports that, and has another
            (pid,) = node.pids.values()
            psutil.Process(pid).kill()
            await until(lambda: client.state is EngineState.RESTARTING)
            assert "replica 1 on 127.0.0.1: the engine process was ended by SIGKILL" in client.reason
            await until(lambda: client.state is EngineState.READY)
            assert await tokens_of(client, [4]) == continuation([4], 8)
            assert list(node.pids.values()) != [pid]

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_node_that_is_lost_is_waited_for_and_its_requests_fail():
    async def scenario() -> None:
        port = free_port()
        async with server(port) as client:
            async with running(node_of(port, step_s=0.05)):
                await client.start()
                answering = asyncio.create_task(tokens_of(client, [1]))
                await until(lambda: client.stats.num_running)
            with pytest.raises(EngineDead, match=r"replica 1 on .*: the connection was closed"):
                await answering
            assert client.state is EngineState.RESTARTING
            async with running(node_of(port)):
                await until(lambda: client.state is EngineState.READY)
                assert await tokens_of(client, [1]) == continuation([1], 8)

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_node_waits_for_the_server_and_leaves_no_engine_when_it_ends():
    async def scenario() -> None:
        port = free_port()
        async with running(node := node_of(port)):
            for _ in range(2):
                async with server(port) as client:
                    await client.start()
                    assert await tokens_of(client, [7]) == continuation([7], 8)
                    (pid,) = node.pids.values()
                await until(lambda: not node.pids)
                assert not psutil.pid_exists(pid)
            assert node.state is NodeState.STARTING

    asyncio.run(scenario())


@pytest.mark.slow
def test_an_engine_that_cannot_start_is_reported_with_its_reason():
    async def scenario() -> None:
        port = free_port()
        async with server(port) as client, running(node_of(port, start_error="no such model")):
            with pytest.raises(EngineDead, match=r"replica 1 on .*: no such model"):
                await client.start()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"secret": "x"}, "the secrets of the nodes differ"),
        ({"fingerprint": {"version": "1", "model": "b"}}, "model is a on node 0 and b on"),
    ],
)
def test_another_deployment_is_refused_for_good(arguments: dict[str, object], reason: str):
    async def scenario() -> None:
        port = free_port()
        async with server(port) as client:
            starting = asyncio.create_task(client.start())
            node = node_of(port, **arguments)  # type: ignore[arg-type]
            async with running(node) as ended:
                assert await asyncio.wait_for(ended, LIMIT_S) == 78
                assert reason in node.reason
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_second_node_of_the_same_rank_waits():
    async def scenario() -> None:
        port = free_port()
        async with server(port) as client, running(first := node_of(port)):
            await client.start()
            async with running(second := node_of(port)):
                await asyncio.sleep(0)
                assert await tokens_of(client, [1]) == continuation([1], 8)
                assert first.pids
                assert not second.pids

    asyncio.run(scenario())


def test_a_silent_side_is_given_up():
    async def scenario() -> None:
        port = free_port()
        remote = RemoteReplicas("127.0.0.1", port, [1], PRINT, "", silence_s=0.2)
        waiting = asyncio.create_task(remote.connected(1))
        await asyncio.sleep(0)
        _, writer = await _connect(port)
        writer.write(packed(Join(1, "x", PRINT, "")))
        connection = await waiting
        assert await asyncio.wait_for(connection.ended, LIMIT_S) == "it has been silent for 0.2 s"
        writer.close()
        await remote.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\2{}", b"\0\0\0\4null", b"\xff" * 64])
@pytest.mark.slow
def test_other_programs_are_turned_away(data: bytes):
    async def scenario() -> None:
        port = free_port()
        async with server(port) as client:
            starting = asyncio.create_task(client.start())
            reader, writer = await _connect(port)
            with contextlib.suppress(OSError):  # the connection may be closed already
                writer.write(data)
                writer.write_eof()
                await asyncio.wait_for(reader.read(), LIMIT_S)
            writer.close()
            async with running(node_of(port)):
                await starting
                assert await tokens_of(client, [5]) == continuation([5], 8)

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_connection_that_was_closed_before_it_was_accepted_is_no_replica():
    """As a node leaves them that has given up while this server was frozen."""

    async def scenario() -> None:
        port = free_port()
        async with server(port, max_restarts=0) as client:
            starting = asyncio.create_task(client.start())
            for _ in range(5):
                _, writer = await _connect(port)
                writer.write(packed(Join(1, "x", PRINT, "")))
                writer.close()
                await asyncio.sleep(0.01)
            async with running(node_of(port)):
                await starting
                assert await tokens_of(client, [5]) == continuation([5], 8)

    asyncio.run(scenario())


def test_an_address_in_use_is_an_error():
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            remote = RemoteReplicas("127.0.0.1", taken.getsockname()[1], [1], PRINT, "")
            with pytest.raises(CannotGather, match="in use"):
                await remote.connected(1)

    asyncio.run(scenario())


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                return await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.01)
