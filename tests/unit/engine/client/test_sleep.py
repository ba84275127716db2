"""Sleep of real engine processes with a fake runner."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from tests.fake_runner import continuation

from stoker.engine.api import EngineDead, EngineRequest, ProfileError, RequestInputs, SamplingParams, SleepError
from stoker.engine.client import process as process_client
from stoker.engine.client.engine_client import EngineState
from stoker.engine.client.process import EngineProcessClient
from stoker.engine.client.replicated import ReplicatedClient
from stoker.engine.client.sleep import SleepPolicy
from stoker.engine.host.supervision import IdleWatch
from stoker.engine.transport.messages import Abort, FreeMemory, MemoryFreed, MemoryTaken, Message, TakeMemory

ROOT = Path(__file__).parents[4]
COMMAND = (sys.executable, "-m", "tests.fake_runner")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / ".dev"), str(ROOT)]))


def client(policy: SleepPolicy | None = None, **settings: object) -> EngineProcessClient:
    return EngineProcessClient(json.dumps(settings), max_restarts=3, command=COMMAND, sleep_policy=policy)


@asynccontextmanager
async def engine(policy: SleepPolicy | None = None, **settings: object) -> AsyncIterator[EngineProcessClient]:
    started = client(policy, **settings)
    await started.start()
    try:
        yield started
    finally:
        await started.close()


async def tokens_of(engine: EngineProcessClient | ReplicatedClient, max_tokens: int = 8) -> list[int]:
    name = str(len(asyncio.all_tasks())) + os.urandom(4).hex()
    request = EngineRequest(request_id=name, inputs=RequestInputs([1, 2, 3], SamplingParams(max_tokens=max_tokens)))
    return [token async for output in engine.generate(request) for token in output.token_ids]


async def until(condition, limit_s: float = 30.0) -> None:  # type: ignore[no-untyped-def]
    for _ in range(int(limit_s / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come true in time")


def test_an_engine_is_due_to_sleep_after_a_time_without_requests() -> None:
    watch = IdleWatch(100.0, limit_s=60.0)
    assert not watch.is_due(159.9)
    assert watch.is_due(160.0)
    watch.active(150.0)
    assert not watch.is_due(209.9)
    assert watch.is_due(210.0)


@pytest.mark.slow
def test_levels_of_sleep() -> None:
    async def scenario() -> None:
        async with engine() as client:
            expected = continuation([1, 2, 3], 8)
            assert await tokens_of(client) == expected
            pid = client.pid

            # level 1: the process remains
            await client.sleep(1)
            assert (client.state, client.sleep_level, client.pid) == (EngineState.SLEEPING, 1, pid)
            assert not client.is_available
            with pytest.raises(EngineDead, match="POST /wake_up"):
                await tokens_of(client)
            await client.wake_up()
            assert (client.state, client.sleep_level, client.pid) == (EngineState.READY, 0, pid)
            assert await tokens_of(client) == expected

            # deeper, and never less deep: the process has ended
            await client.sleep(1)
            await client.sleep(2)
            await client.sleep(1)
            assert (client.sleep_level, client.pid) == (2, None)
            assert pid is not None
            assert not psutil.pid_exists(pid)
            await asyncio.gather(*(client.wake_up() for _ in range(3)))
            assert client.pid not in (None, pid)
            assert await tokens_of(client) == expected
            await client.wake_up()  # awake already

    asyncio.run(scenario())


@pytest.mark.slow
def test_open_requests_end_or_are_waited_for() -> None:
    async def scenario() -> None:
        async with engine(step_s=0.005) as client:
            for level in (1, 2):
                cut = asyncio.create_task(tokens_of(client, 400))
                await until(lambda: client.stats.num_running)
                await client.sleep(level)
                with pytest.raises(EngineDead, match="sleeps"):
                    await cut
                await client.wake_up()
                assert await tokens_of(client) == continuation([1, 2, 3], 8)
                await until(lambda: not client.stats.num_running)

                whole = asyncio.create_task(tokens_of(client, 40))
                await until(lambda: client.stats.num_running)
                sleeping = asyncio.create_task(client.sleep(level, waits=True))
                await until(lambda: client.state is EngineState.SLEEPING)
                with pytest.raises(EngineDead):
                    await tokens_of(client)  # none is added to those that are waited for
                assert len(await whole) == 40
                await sleeping
                await client.wake_up()

    asyncio.run(scenario())


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.effect("model.sleep_after")
@pytest.mark.effect("model.sleep_level")
@pytest.mark.slow
def test_an_idle_engine_sleeps_and_the_next_requests_wake_it(level: int) -> None:
    async def scenario() -> None:
        async with engine(SleepPolicy(after_s=0.01, level=level)) as client:
            await until(lambda: client.sleep_level == level)
            assert client.is_available
            found = await asyncio.gather(*(tokens_of(client) for _ in range(3)))
            assert found == [continuation([1, 2, 3], 8)] * 3
            # what an operator asks for holds until he wakes it
            await client.sleep(level)
            assert not client.is_available
            with pytest.raises(EngineDead):
                await tokens_of(client)

    asyncio.run(scenario())


@pytest.mark.slow
def test_an_engine_that_cannot_be_woken_sleeps_on_with_the_reason() -> None:
    async def scenario() -> None:
        async with engine() as client:
            await client.sleep(2)
            working, client._config = client._config, json.dumps({"start_error": "the files are gone"})
            with pytest.raises(EngineDead, match="the files are gone"):
                await client.wake_up()
            assert (client.state, client.sleep_level) == (EngineState.SLEEPING, 2)
            assert "the files are gone" in client.reason
            client._config = working
            await client.wake_up()
            assert await tokens_of(client) == continuation([1, 2, 3], 8)

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_process_that_is_killed_in_its_sleep_is_started_again_and_awake() -> None:
    async def scenario() -> None:
        async with engine() as client:
            await client.sleep(1)
            assert client.pid is not None
            psutil.Process(client.pid).kill()
            await until(lambda: client.state is EngineState.RESTARTING)
            await until(lambda: client.state is EngineState.READY)
            assert client.sleep_level == 0
            assert await tokens_of(client) == continuation([1, 2, 3], 8)

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_process_that_does_not_answer_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_client, "MEMORY_LIMIT_S", 0.2)

    async def scenario() -> None:
        async with engine() as client:
            assert client.pid is not None
            process = psutil.Process(client.pid)
            process.suspend()
            with pytest.raises(EngineDead, match="has not answered"):
                await client.sleep(1)
            assert (client.state, client.sleep_level) == (EngineState.READY, 0)
            process.resume()
            assert await tokens_of(client) == continuation([1, 2, 3], 8)

    asyncio.run(scenario())


def test_an_answer_that_comes_late_is_not_that_of_the_next_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was: an engine whose wake had failed was taken for one that was awake."""
    monkeypatch.setattr(process_client, "MEMORY_LIMIT_S", 0.01)

    async def scenario() -> None:
        waiting, sent = client(), list[Message]()
        waiting._set(EngineState.READY)
        waiting._send = sent.append  # type: ignore[method-assign]
        with pytest.raises(EngineDead, match="has not answered"):
            await waiting.sleep(1)
        assert sent == [Abort([]), FreeMemory(), TakeMemory()]  # it may read them later, and is awake then
        monkeypatch.undo()
        sleeping = asyncio.create_task(waiting.sleep(1))
        await until(lambda: len(sent) == 5)
        waiting._receive(MemoryFreed())
        waiting._receive(MemoryTaken("others use the device"))
        await asyncio.sleep(0)
        assert not waiting.sleep_level
        waiting._receive(MemoryFreed())
        await sleeping
        assert waiting.sleep_level == 1

    asyncio.run(scenario())


@pytest.mark.slow
def test_replicas_sleep_together_or_each_by_itself() -> None:
    async def scenario() -> None:
        replicas = {0: client(), 1: client(SleepPolicy(after_s=0.01))}
        both = ReplicatedClient(replicas)
        await both.start()
        try:
            await until(lambda: replicas[1].sleep_level == 2)
            assert (both.state, both.sleep_level) == (EngineState.READY, 0)
            assert await tokens_of(both) == continuation([1, 2, 3], 8)
            assert replicas[1].sleep_level == 2  # one that is awake serves
            await replicas[0].sleep(1)
            assert both.is_available
            assert await tokens_of(both) == continuation([1, 2, 3], 8)  # the request woke the other
            await both.sleep(2)
            assert (both.state, both.sleep_level, both.is_available) == (EngineState.SLEEPING, 2, False)
            await both.wake_up()
            assert await tokens_of(both) == continuation([1, 2, 3], 8)
        finally:
            await both.close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_the_reason_for_which_an_engine_cannot_sleep_or_wake() -> None:
    async def scenario() -> None:
        async with engine(free_error="too little host memory") as client:
            with pytest.raises(SleepError, match="too little host memory"):
                await client.sleep(1)
            assert (client.state, client.sleep_level) == (EngineState.READY, 0)
            assert await tokens_of(client) == continuation([1, 2, 3], 8)

        async with engine(take_error="others use the device") as client:
            await client.sleep(1)
            for _ in range(2):
                with pytest.raises(EngineDead, match="others use the device"):
                    await client.wake_up()
                assert (client.state, client.sleep_level) == (EngineState.SLEEPING, 1)
                assert "others use the device" in client.reason
            await client.sleep(2)  # the next process has the memory
            await client.wake_up()
            assert await tokens_of(client) == continuation([1, 2, 3], 8)

    asyncio.run(scenario())


@pytest.mark.slow
def test_sleep_goes_on_without_the_caller_that_asked_for_it() -> None:
    """A client that left POST /sleep left an engine that slept at level 0: nothing could wake it."""

    async def scenario() -> None:
        async with engine(step_s=0.005) as client:
            whole = asyncio.create_task(tokens_of(client, 40))
            await until(lambda: client.stats.num_running)
            leaving = asyncio.create_task(client.sleep(1, waits=True))
            await until(lambda: client.state is EngineState.SLEEPING)
            leaving.cancel()
            assert len(await whole) == 40
            await until(lambda: client.sleep_level == 1)
            await client.wake_up()
            assert await tokens_of(client) == continuation([1, 2, 3], 8)

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("level", [1, 2])
def test_a_process_that_is_killed_while_its_last_request_is_waited_for_is_started_again(level: int) -> None:
    """At level 1 the client waited for an answer of the next process, at level 2 that process was ended at once."""

    async def scenario() -> None:
        async with engine(step_s=0.005) as client:
            cut = asyncio.create_task(tokens_of(client, 400))
            await until(lambda: client.stats.num_running)
            sleeping = asyncio.create_task(client.sleep(level, waits=True))
            await until(lambda: client.state is EngineState.SLEEPING)
            assert client.pid is not None
            psutil.Process(client.pid).kill()
            for failed in (cut, sleeping):
                with pytest.raises(EngineDead, match="the engine died"):
                    await failed
            await until(lambda: client.state is EngineState.READY)
            assert client.sleep_level == 0
            assert await tokens_of(client) == continuation([1, 2, 3], 8)

    asyncio.run(scenario())


@pytest.mark.slow
def test_who_waits_for_a_profile_learns_that_the_process_has_ended() -> None:
    """The caller waited without end, and the answer to the next profile was taken for the one to this."""

    async def scenario() -> None:
        async with engine() as client:
            send, client._send = client._send, lambda message: None  # type: ignore[method-assign]
            profile = asyncio.create_task(client.profile(is_start=False))  # as one whose trace takes long to write
            await until(lambda: len(client._profiles))
            client._send = send  # type: ignore[method-assign]
            await client.sleep(2)
            with pytest.raises(EngineDead, match="sleeps"):
                await asyncio.wait_for(profile, 5.0)
            await client.wake_up()
            with pytest.raises(ProfileError, match="no profiler"):
                await client.profile(is_start=True)

    asyncio.run(scenario())
