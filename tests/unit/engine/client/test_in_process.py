"""InProcessClient: the same promises as the engine process, from a thread."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from tests.fake_runner import build_core, continuation

from stoker.engine.api import (
    AdapterError,
    AdapterRef,
    EngineDead,
    EngineRequest,
    FinishReason,
    ProfileError,
    QueueFull,
    RequestInputs,
    SamplingParams,
)
from stoker.engine.client.engine_client import EngineState
from stoker.engine.client.in_process import InProcessClient
from stoker.engine.loop.engine_core import EngineCore


@asynccontextmanager
async def engine(phases: list[str] | None = None, **settings: object) -> AsyncIterator[InProcessClient]:
    def build(phase: Callable[[str], None]) -> EngineCore:
        return build_core(json.dumps(settings), phase)

    client = InProcessClient(build, on_phase=None if phases is None else phases.append)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


def request(name: str, prompt: list[int], max_tokens: int = 8) -> EngineRequest:
    return EngineRequest(request_id=name, inputs=RequestInputs(prompt, SamplingParams(max_tokens=max_tokens)))


async def tokens_of(client: InProcessClient, wanted: EngineRequest) -> list[int]:
    return [token async for output in client.generate(wanted) for token in output.token_ids]


def test_concurrent_streams_get_their_own_tokens_and_phases_are_reported():
    async def scenario() -> None:
        phases: list[str] = []
        async with engine(phases, max_num_seqs=3) as client:
            assert phases == ["weights", "warm-up"]
            found = await asyncio.gather(*(tokens_of(client, request(str(i), [i] * 9, 20)) for i in range(8)))
            assert found == [continuation([i] * 9, 20) for i in range(8)]

    asyncio.run(scenario())


def test_postponed_work_is_done_before_the_first_request():
    """Once the engine slept until the first message: no graph was captured before the first request."""

    async def scenario() -> None:
        done = asyncio.Event()
        loop, parts = asyncio.get_running_loop(), [3, 2, 1]

        def idle() -> bool:
            if parts.pop() == 3:
                loop.call_soon_threadsafe(done.set)
            return bool(parts)

        client = InProcessClient(lambda phase: build_core("{}", phase, idle))
        await client.start()
        await done.wait()
        await client.close()

    asyncio.run(asyncio.wait_for(scenario(), 5))


def test_closing_a_stream_releases_its_blocks():
    async def scenario() -> None:
        async with engine(step_s=0.001) as client:
            stream = client.generate(request("r", [1] * 50, 400))
            await anext(stream)
            await stream.aclose()
            while client.stats.num_running or client.stats.num_free_blocks != client.stats.num_blocks:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(scenario(), 5))


def test_a_full_queue_is_raised_to_the_caller():
    async def scenario() -> None:
        async with engine(max_num_seqs=1, max_queued_requests=1, step_s=0.001) as client:
            results = await asyncio.gather(
                *(tokens_of(client, request(str(i), [i], 20)) for i in range(3)), return_exceptions=True
            )
            assert [isinstance(result, QueueFull) for result in results] == [False, False, True]

    asyncio.run(scenario())


def test_an_engine_that_cannot_continue_is_dead_and_says_why():
    async def scenario() -> None:
        async with engine(fail_all=True) as client:
            outputs = [output async for output in client.generate(request("0", [1]))]
            assert outputs[-1].finish_reason is FinishReason.ERROR
            await tokens_of(client, request("1", [1]))
            with pytest.raises(EngineDead, match="3 steps in a row failed"):
                await tokens_of(client, request("2", [1]))
            assert client.state is EngineState.DEAD
            assert "3 steps" in client.reason

    asyncio.run(scenario())


def test_a_start_that_fails_raises_its_cause():
    async def scenario() -> None:
        with pytest.raises(Exception, match="expected 10 bytes") as failed:
            async with engine(start_error="expected 10 bytes"):
                pass
        assert type(failed.value).__name__ == "ModelFilesError"

    asyncio.run(scenario())


def test_closing_ends_open_streams():
    async def scenario() -> None:
        async with engine(step_s=0.001) as client:
            stream = client.generate(request("r", [1], 400))
            await anext(stream)
            await client.close()
            assert [output async for output in stream][-1].finish_reason is FinishReason.ABORT
            with pytest.raises(EngineDead, match="stopped"):
                await tokens_of(client, request("late", [1]))

    asyncio.run(scenario())


def test_a_profile_without_a_profiler_is_an_error_and_a_death_ends_the_wait():
    async def scenario() -> None:
        async with engine() as client:
            with pytest.raises(ProfileError, match="profiler_config"):
                await client.profile(is_start=True)
            waiting = asyncio.ensure_future(client.profile(is_start=False))
            await asyncio.sleep(0)
            client._lose(EngineState.DEAD, "it died")
            with pytest.raises(EngineDead, match="it died"):
                await waiting
            with pytest.raises(EngineDead, match="it died"):
                await client.profile(is_start=True)

    asyncio.run(scenario())


@pytest.mark.parametrize("state", [EngineState.SLEEPING, EngineState.STALLED])
def test_an_adapter_that_is_unloaded_while_the_engine_is_not_ready_is_forgotten_when_it_is(state: EngineState):
    """An engine that slept kept the weights after it was woken."""
    forgotten: list[str] = []

    def build(phase: Callable[[str], None]) -> EngineCore:
        core = build_core("{}", phase)
        core.unload_adapter = forgotten.append  # type: ignore[method-assign]
        return core

    async def scenario() -> None:
        client = InProcessClient(build)
        await client.start()
        try:
            client._set(state, "not now")
            for digest in "d1", "d2":
                await client.unload_adapter(digest)
            client._set(EngineState.READY)
            with pytest.raises(AdapterError, match="enable_lora"):  # answered after the messages before it
                await client.load_adapter(AdapterRef("sql", "d1", "/adapters/sql"))
            assert forgotten == ["d1", "d2"]
            client._set(state, "not now")
            client._set(EngineState.READY)
            await client.unload_adapter("d3")
            assert forgotten == ["d1", "d2", "d3"]
        finally:
            await client.close()

    asyncio.run(scenario())
