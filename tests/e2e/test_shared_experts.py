"""A server's replicas that share experts: what clients see, also when one of them ends or is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.models.checkpoints import build, save
from tests.models.engine import Engine, resolved
from tests.models.test_generation import make_prompts
from tests.models.test_shared_experts import PROBABLE, requests, shared

from stoker.cli.prepare import engine_client
from stoker.config import Resolved
from stoker.engine.api import EngineDead, EngineRequest
from stoker.engine.client.engine_client import EngineState
from stoker.engine.client.process import EngineProcessClient
from stoker.engine.client.replicated import ReplicatedClient

from .test_tensor_parallel import until

pytestmark = pytest.mark.slow


@asynccontextmanager
async def serving(settings: Resolved) -> AsyncIterator[ReplicatedClient]:
    client = engine_client(settings, lambda _: None)
    assert isinstance(client, ReplicatedClient)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def tokens_of(client: ReplicatedClient, request: EngineRequest, rank: int | None = None) -> list[int]:
    own = replace(request, request_id=f"{request.request_id} of {id(request)}", rank=rank)
    return [token async for output in client.generate(own) for token in output.token_ids]


def process(client: ReplicatedClient, rank: int) -> psutil.Process:
    replica = client.replicas[rank]
    assert isinstance(replica, EngineProcessClient)
    assert replica.pid is not None
    return psutil.Process(replica.pid)


async def until_all_ready(client: ReplicatedClient) -> None:
    await until(lambda: all(each.state is EngineState.READY for each in client.replicas.values()))


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3"])
def test_replicas_answer_as_one_process_and_begin_together_again(family: str, tmp_path: Path):
    folder = save(build(family), tmp_path / "model")
    each = requests(make_prompts(6))
    expected = [output.token_ids for output in Engine(resolved(folder, tmp_path)).outputs(make_prompts(6), PROBABLE)]
    long = requests([[1, 2, 3]] * 2, replace(PROBABLE, max_tokens=60))

    async def scenario() -> None:
        async with serving(shared(folder, tmp_path)) as client:
            assert await asyncio.gather(*(tokens_of(client, request) for request in each)) == expected
            for rank in (0, 1):  # the other one is idle
                assert await asyncio.gather(*(tokens_of(client, request, rank) for request in each)) == expected

            for number in (signal.SIGKILL, signal.SIGSTOP):
                before = [process(client, rank) for rank in (0, 1)]
                running = [asyncio.create_task(_again_and_again(client, long[rank], rank)) for rank in (0, 1)]
                await tokens_of(client, each[0])
                os.kill(before[1].pid, number)
                for end in await asyncio.gather(*running, return_exceptions=True):
                    assert isinstance(end, EngineDead)
                    assert "SIGKILL" in end.reason or "is stopped" in end.reason
                await until(lambda before=before: not any(each.is_running() for each in before))
                await until_all_ready(client)
                assert await asyncio.gather(*(tokens_of(client, request) for request in each)) == expected
            left = [process(client, rank) for rank in (0, 1)]
        assert not any(each.is_running() for each in left)

    asyncio.run(scenario())


async def _again_and_again(client: ReplicatedClient, request: EngineRequest, rank: int) -> None:
    while True:
        await tokens_of(client, request, rank)
