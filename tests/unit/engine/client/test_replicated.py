"""ReplicatedClient: several real engine processes, with the real loop, scheduler and sockets around a fake runner."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from tests.fake_runner import continuation
from tests.fakes import FakeEngine

from stoker.engine.api import (
    EngineDead,
    EngineInfo,
    EngineOutput,
    EngineRequest,
    FinishReason,
    ProfileError,
    QueueFull,
    RequestInputs,
    SamplingParams,
)
from stoker.engine.client.engine_client import EngineStartFailed, EngineState, StreamingClient
from stoker.engine.client.process import EngineProcessClient
from stoker.engine.client.replicated import ReplicatedClient
from stoker.engine.transport.messages import Message

ROOT = Path(__file__).parents[4]
COMMAND = (sys.executable, "-m", "tests.fake_runner")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine processes are started in the same way as here, by module name."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / ".dev"), str(ROOT)]))


def engine(max_restarts: int = 0, **settings: object) -> EngineProcessClient:
    return EngineProcessClient(json.dumps(settings), max_restarts=max_restarts, command=COMMAND)


@asynccontextmanager
async def engines(*ranks: int, max_restarts: int = 0, **settings: object) -> AsyncIterator[ReplicatedClient]:
    client = ReplicatedClient({rank: engine(max_restarts, **settings) for rank in ranks})
    await client.start()
    try:
        yield client
    finally:
        await client.close()


def request(name: str, prompt: list[int], max_tokens: int = 8, rank: int | None = None) -> EngineRequest:
    sampling = SamplingParams(max_tokens=max_tokens)
    return EngineRequest(request_id=name, inputs=RequestInputs(prompt, sampling), rank=rank)


async def tokens_of(client: ReplicatedClient, wanted: EngineRequest) -> list[int]:
    tokens: list[int] = []
    async for output in client.generate(wanted):
        tokens += output.token_ids
    assert output.finish_reason is FinishReason.LENGTH
    return tokens


async def until(condition, limit_s: float = 10.0) -> None:  # type: ignore[no-untyped-def]
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.01)


def steps(client: ReplicatedClient) -> dict[int, int]:
    return {rank: replica.stats.num_steps for rank, replica in client.replicas.items()}


@pytest.mark.slow
def test_replicas_share_requests_and_one_that_dies_fails_its_own_only():
    """Two processes for all of it, so that the test is fast: a comment above each part says what it checks."""

    async def scenario() -> None:
        async with engines(2, 3, max_restarts=2, step_s=0.002, max_num_seqs=4, max_queued_requests=2) as client:
            assert client.state is EngineState.READY
            assert client.info.model == "fake"

            # each request gets its tokens, and both replicas compute
            prompts = [[index, 7, 7] * (index + 1) for index in range(8)]
            found = await asyncio.gather(*(tokens_of(client, request(f"r{i}", p)) for i, p in enumerate(prompts)))
            assert found == [continuation(prompt, 8) for prompt in prompts]
            await until(lambda: all(steps(client).values()))
            assert client.stats.num_steps == sum(steps(client).values())
            assert client.stats.num_blocks == 800

            # a named rank computes the request; leaving the stream aborts it there
            await until(lambda: client.stats.num_running == 0)
            for rank in (2, 3, 2):
                stream = client.generate(request("named", [1, 2, 3], 400, rank=rank))
                await anext(stream)
                await until(lambda rank=rank: client.replicas[rank].stats.num_running == 1)
                assert client.stats.num_running == 1
                await stream.aclose()
                await until(lambda: client.stats.num_running == 0)

            # where one queue is full the other is used; where both are, the request is refused
            several = [tokens_of(client, request(f"q{i}", [i], 60)) for i in range(14)]
            results = await asyncio.gather(*several, return_exceptions=True)
            full = [result for result in results if isinstance(result, QueueFull)]
            assert len(full) == 2

            # a replica that is killed fails its own request; the other's is finished, new ones are served meanwhile
            doomed = asyncio.ensure_future(tokens_of(client, request("doomed", [6], 400, rank=2)))
            other = asyncio.ensure_future(tokens_of(client, request("other", [6, 6], 100, rank=3)))
            await until(lambda: client.replicas[2].stats.num_running)
            os.kill(client.replicas[2].pid, signal.SIGKILL)  # type: ignore[attr-defined]
            with pytest.raises(EngineDead, match="SIGKILL"):
                await doomed
            assert client.state is EngineState.READY
            with pytest.raises(EngineDead):
                await tokens_of(client, request("named", [1], rank=2))
            assert await tokens_of(client, request("meanwhile", [8])) == continuation([8], 8)
            assert await other == continuation([6, 6], 100)
            await until(lambda: client.replicas[2].state is EngineState.READY)
            assert await tokens_of(client, request("again", [9], rank=2)) == continuation([9], 8)

            # what is for all replicas fails where one of them cannot do it
            with pytest.raises(ProfileError):
                await client.profile(is_start=False)

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_replica_that_stays_down_ends_the_deployment_and_no_process_is_left():
    async def scenario() -> None:
        async with engines(0, 1) as client:
            pids = [replica.pid for replica in client.replicas.values()]  # type: ignore[attr-defined]
            os.kill(pids[1], signal.SIGKILL)
            await until(lambda: client.state is EngineState.DEAD)
            assert client.reason.startswith("replica 1: the engine died")
        assert not [pid for pid in pids if psutil.pid_exists(pid)]

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_replica_that_does_not_start_ends_the_others():
    async def scenario() -> None:
        replicas = {0: engine(), 1: engine(start_error="no such weights"), 2: engine()}
        client = ReplicatedClient(replicas)
        with pytest.raises(EngineStartFailed, match="no such weights"):
            await client.start()
        assert [replica.pid for replica in replicas.values()] == [None] * 3
        with pytest.raises(RuntimeError):
            _ = ReplicatedClient({0: engine(), 1: engine()}).info

    asyncio.run(scenario())


def test_the_state_of_all_is_that_of_the_best_unless_one_is_gone_for_good():
    replicas = {0: engine(), 1: engine()}
    client = ReplicatedClient(replicas)
    for first, second, all_of_them in [
        (EngineState.READY, EngineState.STALLED, EngineState.READY),
        (EngineState.RESTARTING, EngineState.READY, EngineState.READY),
        (EngineState.RESTARTING, EngineState.STALLED, EngineState.STALLED),
        (EngineState.STARTING, EngineState.RESTARTING, EngineState.RESTARTING),
        (EngineState.READY, EngineState.DEAD, EngineState.DEAD),
    ]:
        replicas[0]._set(first, "a" if first is not EngineState.READY else "")
        replicas[1]._set(second, "b" if second is not EngineState.READY else "")
        assert client.state is all_of_them
        assert bool(client.reason) == (all_of_them is not EngineState.READY)


class Full(StreamingClient):
    """Its queue is full. The other replica ends before it says so."""

    other: Full

    def __init__(self) -> None:
        super().__init__()
        self._info = FakeEngine().info
        self._set(EngineState.READY)

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineOutput, None]:
        self.other._set(EngineState.RESTARTING, "the engine died")
        raise QueueFull("3 requests are waiting", retry_after_s=1.0)
        yield

    async def start(self) -> EngineInfo:
        return self.info

    async def close(self) -> None:
        pass

    def _send(self, message: Message) -> None:
        raise NotImplementedError


def test_a_request_is_refused_where_the_only_replica_left_is_full():
    async def scenario() -> None:
        one, two = Full(), Full()
        one.other, two.other = two, one
        with pytest.raises(QueueFull, match="3 requests are waiting"):
            await tokens_of(ReplicatedClient({0: one, 1: two}), request("r", [1, 2]))

    asyncio.run(scenario())
