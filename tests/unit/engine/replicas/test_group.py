"""ReplicaGroup with real engine processes around a fake runner."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest
from tests.fake_runner import continuation

from stoker.engine.api import EngineDead
from stoker.engine.client.engine_client import EngineStartFailed, EngineState
from stoker.engine.client.process import EngineProcessClient
from stoker.engine.replicas.group import ReplicaGroup

from ..client.test_process import request, tokens_of, until

ROOT = Path(__file__).parents[4]
COMMAND = (sys.executable, "-m", "tests.fake_runner")
LIMIT_S = 30.0


def clients(max_restarts: int = 1, configs: tuple[str, str] = ("{}", "{}")) -> list[EngineProcessClient]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / ".dev"), str(ROOT)])}
    commands, environments = dict.fromkeys(range(2), COMMAND), dict.fromkeys(range(2), environment)
    group = ReplicaGroup(commands, dict(enumerate(configs)), environments)
    return [
        EngineProcessClient(config, max_restarts=max_restarts, child_of=partial(group.child, rank))
        for rank, config in enumerate(configs)
    ]


@asynccontextmanager
async def started(**how: int) -> AsyncIterator[list[EngineProcessClient]]:
    both = clients(**how)
    await asyncio.gather(*(each.start() for each in both))
    try:
        yield both
    finally:
        await asyncio.gather(*(each.close() for each in both))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
@pytest.mark.slow
def test_one_that_ends_or_stops_ends_the_other_and_both_start_again(number: signal.Signals):
    async def scenario() -> None:
        async with started() as (first, second):
            before = [first.pid, second.pid]
            assert second.pid is not None
            os.kill(second.pid, number)
            await until(lambda: first.state is second.state is EngineState.RESTARTING, LIMIT_S)
            assert "replica 1, which has other experts, " in first.reason
            assert ("is stopped" in first.reason) == ("is stopped" in second.reason) == (number == signal.SIGSTOP)
            await until(lambda: first.state is second.state is EngineState.READY, LIMIT_S)
            assert not any(psutil.pid_exists(pid) for pid in before if pid is not None)
            for each in (first, second):
                assert await tokens_of(each, request("a", [1, 2])) == continuation([1, 2], 8)
            assert first.pid is not None
            os.kill(first.pid, signal.SIGKILL)  # a second time: no start is left
            await until(lambda: first.state is second.state is EngineState.DEAD, LIMIT_S)

    asyncio.run(scenario())


@pytest.mark.slow
def test_one_that_cannot_start_ends_the_start_of_the_other():
    async def scenario() -> None:
        both = clients(0, ("{}", json.dumps({"start_error": "no weights"})))
        first, second = await asyncio.gather(*(each.start() for each in both), return_exceptions=True)
        assert isinstance(second, EngineStartFailed)
        assert "no weights" in second.reason
        if not isinstance(first, EngineDead):  # it was ready before: a fake does not wait for the other
            await until(lambda: both[0].state is EngineState.DEAD, LIMIT_S)
        assert "no weights" in both[0].reason
        assert [each.pid for each in both] == [None, None]
        await both[0].close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_the_reason_that_a_process_gave_itself_is_kept():
    """Of a step that fails in all replicas, because it failed in one, another may have ended first."""

    async def scenario() -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / ".dev"), str(ROOT)])}
        group = ReplicaGroup({0: COMMAND}, {0: json.dumps({"start_error": "no weights"})}, {0: environment})
        child = group.child(0, lambda _: None)
        await child.start()
        reason = await child.ended()
        child.end("replica 1, which has other experts, has ended")
        assert await child.ended() == reason
        assert "no weights" in reason.message

    asyncio.run(scenario())


def test_a_start_that_is_cancelled_leaves_no_process():
    """Also while the process does not read its configuration."""

    async def scenario() -> None:
        config = " " * (1 << 20)  # more than a pipe holds
        group = ReplicaGroup({0: (sys.executable, "-c", "import signal; signal.pause()")}, {0: config}, {0: os.environ})
        child = group.child(0, lambda _: None)
        starting = asyncio.create_task(child.start())
        await until(lambda: psutil.Process().children() and child.pid is not None, LIMIT_S)
        process = psutil.Process(child.pid)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await child.stop()
        assert not process.is_running()

    asyncio.run(scenario())


@pytest.mark.slow
def test_descriptors_of_a_start_are_closed_with_it():
    async def scenario() -> int:
        async with started():
            pass
        gc.collect()  # what asyncio and earlier tests have left
        return len(os.listdir("/proc/self/fd"))

    asyncio.run(scenario())
    before = asyncio.run(scenario())
    assert asyncio.run(scenario()) <= before
