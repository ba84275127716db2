"""EngineProcessClient against real engine processes: the real loop, scheduler and sockets around a fake runner."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from tests.fake_runner import continuation, pooled

from stoker.engine.api import (
    EngineDead,
    EngineRequest,
    FinishReason,
    InvalidRequest,
    PoolingParams,
    QueueFull,
    RequestInputs,
    SamplingParams,
)
from stoker.engine.client.brief_paths import PREFIX, brief_paths
from stoker.engine.client.engine_client import WATCH_INTERVAL_S, EngineStartFailed, EngineState
from stoker.engine.client.process import EngineProcessClient
from stoker.engine.process import HELLO_LIMIT_S

ROOT = Path(__file__).parents[4]
COMMAND = (sys.executable, "-m", "tests.fake_runner")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine process is started in the same way as here, by module name."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / ".dev"), str(ROOT)]))


@asynccontextmanager
async def engine(
    max_restarts: int = 0, stall_limit_s: float = 10.0, **settings: object
) -> AsyncIterator[EngineProcessClient]:
    client = EngineProcessClient(
        json.dumps(settings), max_restarts=max_restarts, stall_limit_s=stall_limit_s, command=COMMAND
    )
    await client.start()
    try:
        yield client
    finally:
        await client.close()


def request(name: str, prompt: list[int], max_tokens: int = 8) -> EngineRequest:
    return EngineRequest(request_id=name, inputs=RequestInputs(prompt, SamplingParams(max_tokens=max_tokens)))


async def tokens_of(client: EngineProcessClient, wanted: EngineRequest) -> list[int]:
    tokens: list[int] = []
    async for output in client.generate(wanted):
        assert output.request_id == wanted.request_id
        tokens += output.token_ids
    assert output.finish_reason is FinishReason.LENGTH
    return tokens


async def until(condition, limit_s: float = 60.0) -> float:  # type: ignore[no-untyped-def]
    """Seconds until the condition held."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < limit_s, "it did not come true in time"
        await asyncio.sleep(0.01)
    return time.monotonic() - started


def test_streams_refusals_aborts_and_a_failing_step_in_one_engine():
    """One process, so that the test is fast: a comment above each part says what it checks."""

    async def scenario() -> None:
        async with engine(max_num_seqs=4, max_queued_requests=2, step_s=0.002, fail_steps=[0]) as client:
            assert client.state is EngineState.READY
            assert client.info.model == "fake"

            # a step that fails ends its requests with an error that shows the kind of failure only
            outputs = [output async for output in client.generate(request("unlucky", [1, 2, 3]))]
            assert outputs[-1].finish_reason is FinishReason.ERROR
            assert outputs[-1].error is not None
            assert "out of memory" in outputs[-1].error
            assert "0x" not in outputs[-1].error

            # streams get exactly their tokens, whatever runs beside them
            prompts = [[index, 7, 7] * (index + 1) for index in range(6)]
            found = await asyncio.gather(*(tokens_of(client, request(f"r{i}", p)) for i, p in enumerate(prompts)))
            assert found == [continuation(prompt, 8) for prompt in prompts]

            # requests that can never be served are refused with the field at fault
            with pytest.raises(InvalidRequest) as refused:
                await tokens_of(client, request("long", [1] * 600))
            assert refused.value.code == "context_length_exceeded"
            with pytest.raises(InvalidRequest) as refused:
                await tokens_of(client, request("vocabulary", [1000]))
            assert (refused.value.param, refused.value.code) == ("prompt", "invalid_token_id")
            with pytest.raises(InvalidRequest, match="32-bit"):
                await tokens_of(client, request("huge", [2**40]))

            # a full queue is reported to the caller; the others are served
            results = await asyncio.gather(
                *(tokens_of(client, request(f"q{i}", [i], 40)) for i in range(9)), return_exceptions=True
            )
            full = [result for result in results if isinstance(result, QueueFull)]
            assert len(full) == 3
            assert full[0].retry_after_s > 0
            assert [r for r in results if not isinstance(r, QueueFull)] == [continuation([i], 40) for i in range(6)]

            # closing an iterator aborts: its blocks are released before any other request ends
            stream = client.generate(request("abandoned", [5] * 50, 400))
            await anext(stream)
            await until(lambda: client.stats.num_running == 1)
            await stream.aclose()
            await until(lambda: client.stats.num_running == 0)
            assert client.stats.num_free_blocks == client.stats.num_blocks

            # what arrives while the consumer is away comes as one output
            stream = client.generate(request("slow", [9, 9], 30))
            tokens = list((await anext(stream)).token_ids)
            await until(lambda: client.stats.num_running == 1)
            await until(lambda: client.stats.num_running == 0)
            rest = [output async for output in stream]
            assert len(rest) == 1
            assert tokens + rest[0].token_ids == continuation([9, 9], 30)

            # closing ends what is open, and the process
            pid = client.pid
            assert pid is not None
            stream = client.generate(request("open", [4], 400))
            await anext(stream)
            started = time.monotonic()
            await client.close()
            assert time.monotonic() - started < 2
            assert not psutil.pid_exists(pid)
            assert [output async for output in stream][-1].finish_reason is FinishReason.ABORT

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_killed_engine_ends_every_stream_and_is_restarted_until_its_budget_is_used():
    async def scenario() -> None:
        async with engine(max_restarts=1, step_s=0.005) as client:
            streams = [client.generate(request(f"r{i}", [i], 400)) for i in range(20)]
            await asyncio.gather(*(anext(stream) for stream in streams))
            assert client.pid is not None
            os.kill(client.pid, signal.SIGKILL)
            assert await until(lambda: client.state is EngineState.RESTARTING) < 1

            async def rest(stream: AsyncIterator[object]) -> None:
                async for _ in stream:
                    pass

            ends = await asyncio.gather(*(rest(stream) for stream in streams), return_exceptions=True)
            assert all(isinstance(end, EngineDead) and "SIGKILL" in end.reason for end in ends)
            with pytest.raises(EngineDead):
                await tokens_of(client, request("meanwhile", [1]))

            await until(lambda: client.state is EngineState.READY)
            assert await tokens_of(client, request("again", [3])) == continuation([3], 8)

            os.kill(client.pid, signal.SIGKILL)
            await until(lambda: client.state is EngineState.DEAD, 1)
            assert "SIGKILL" in client.reason

    asyncio.run(scenario())


@pytest.mark.slow
def test_closing_during_a_restart_leaves_no_process():
    async def scenario() -> None:
        async with engine(max_restarts=3) as client:
            assert client.pid is not None
            os.kill(client.pid, signal.SIGKILL)
            await until(lambda: client.state is EngineState.RESTARTING and client.pid is not None)
            pid = client.pid
            await client.close()
            assert client.state is EngineState.DEAD
            assert not psutil.pid_exists(pid)

    asyncio.run(scenario())


@pytest.mark.slow
def test_an_engine_whose_steps_keep_failing_says_why_and_exits():
    async def scenario() -> None:
        async with engine(fail_all=True) as client:
            for index in range(2):
                outputs = [output async for output in client.generate(request(f"r{index}", [1]))]
                assert outputs[-1].finish_reason is FinishReason.ERROR
            with pytest.raises(EngineDead, match="3 steps in a row failed, the last with: out of memory"):
                await tokens_of(client, request("third", [1]))
            await until(lambda: client.state is EngineState.DEAD, 1)

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_failed_start_reports_the_root_cause_and_its_exit_code():
    async def scenario() -> None:
        phases: list[str] = []
        config = json.dumps({"start_error": "model.safetensors: expected 10 bytes, found 3"})
        client = EngineProcessClient(config, on_phase=phases.append, command=COMMAND, max_restarts=3)
        with pytest.raises(EngineStartFailed, match="expected 10 bytes, found 3") as failed:
            await client.start()
        assert failed.value.exit_code == 3
        assert failed.value.error == "ModelFilesError"
        assert phases == ["weights"]
        assert client.state is EngineState.DEAD
        assert client.pid is None
        await client.close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_step_that_hangs_is_a_stall_and_the_stream_continues_after_it():
    async def scenario() -> None:
        async with engine(stall_limit_s=1.0, hang_step=2, hang_s=2.5) as client:
            asked = asyncio.ensure_future(tokens_of(client, request("r", [1, 2])))
            await until(lambda: client.state is EngineState.STALLED)
            assert "no progress" in client.reason
            with pytest.raises(EngineDead):
                await tokens_of(client, request("other", [1]))
            assert await asked == continuation([1, 2], 8)
            await until(lambda: client.state is EngineState.READY)

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_stopped_process_is_a_stall_and_continues_afterwards():
    async def scenario() -> None:
        async with engine(stall_limit_s=1.0, step_s=0.005) as client:
            asked = asyncio.ensure_future(tokens_of(client, request("r", [1, 2], 60)))
            await until(lambda: client.stats.num_running == 1)
            assert client.pid is not None
            os.kill(client.pid, signal.SIGSTOP)
            await until(lambda: client.state is EngineState.STALLED)
            os.kill(client.pid, signal.SIGCONT)
            assert await asked == continuation([1, 2], 60)
            await until(lambda: client.state is EngineState.READY)

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_stall_does_not_end_when_its_clients_have_left():
    """It was ready again, took the next request, and stalled again: a liveness probe did not fail three times."""

    async def scenario() -> None:
        async with engine(stall_limit_s=1.0, step_s=0.005) as client:
            asked = asyncio.ensure_future(tokens_of(client, request("r", [1, 2], 60)))
            await until(lambda: client.stats.num_running == 1)
            assert client.pid is not None
            os.kill(client.pid, signal.SIGSTOP)
            await until(lambda: client.state is EngineState.STALLED)
            asked.cancel()
            await asyncio.wait([asked])
            for _ in range(3 * int(1 / WATCH_INTERVAL_S)):
                await asyncio.sleep(WATCH_INTERVAL_S)
                assert client.state is EngineState.STALLED
            os.kill(client.pid, signal.SIGCONT)
            await until(lambda: client.state is EngineState.READY)
            assert await tokens_of(client, request("again", [1, 2])) == continuation([1, 2], 8)

    asyncio.run(scenario())


@pytest.mark.slow
def test_the_environment_of_the_engine_process_can_be_given():
    async def scenario() -> dict[str, str]:
        environment = {**os.environ, "ONLY_HERE": "1"}
        del environment["HOME"]
        client = EngineProcessClient("{}", command=COMMAND, environment=environment)
        await client.start()
        try:
            return psutil.Process(client.pid).environ()
        finally:
            await client.close()

    found = asyncio.run(scenario())
    assert found["ONLY_HERE"] == "1"
    assert "HOME" not in found


@pytest.mark.slow
def test_an_engine_process_whose_parent_is_gone_before_it_says_hello_ends():
    """It waited 30 s for its client: the kernel kills it only if the parent dies later."""
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second, brief_paths((first, second)):
        fds = [first.fileno(), second.fileno()]
        process = psutil.Popen([*COMMAND, "--sockets", *map(str, fds)], stdin=subprocess.PIPE, pass_fds=fds)
    process.stdin.close()
    assert process.wait(HELLO_LIMIT_S / 2) == 1


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_does_not_reach_the_engine_process():
    async def scenario() -> tuple[int, int | None]:
        async with engine() as client:
            assert client.pid is not None
            return os.getpgid(client.pid), client.pid

    group, pid = asyncio.run(scenario())
    assert group == pid != os.getpgid(0)


@pytest.mark.slow
def test_the_engine_process_dies_with_its_parent(tmp_path: Path):
    """kill -9 of the front end: no orphan keeps the memory."""
    script = tmp_path / "parent.py"
    script.write_text(
        "import asyncio, sys\n"
        "from stoker.engine.client.process import EngineProcessClient\n"
        "async def main():\n"
        "    client = EngineProcessClient('{}', command=(sys.executable, '-m', 'tests.fake_runner'))\n"
        "    await client.start()\n"
        "    print(client.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = psutil.Popen([sys.executable, str(script)], stdout=-1)
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    _, alive = psutil.wait_procs([child], timeout=2)
    assert not alive or child.status() == psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_of_its_sockets_no_path_exists_once_the_engine_process_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A killed server left a folder of sockets until the next start."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def scenario() -> list[str]:
        async with engine() as client:
            assert len(await tokens_of(client, request("a", [1, 2, 3]))) == 8
            return [name for name in os.listdir(tmp_path) if name.startswith(PREFIX)]

    assert asyncio.run(scenario()) == []


@pytest.mark.slow
def test_a_process_pools_many_texts():
    async def scenario() -> None:
        async with engine(max_num_seqs=8, max_queued_requests=4) as client:
            texts = [[1 + index % 500] * (1 + index % 7) for index in range(300)]
            task = PoolingParams(("embed", "token_embed"))
            requests = [
                EngineRequest(request_id=f"p{index}", inputs=RequestInputs(text, task))
                for index, text in enumerate(texts)
            ]
            outputs = await client.pool(requests)
            assert [output.vectors for output in outputs] == [
                {name: pooled(text, name) for name in task.tasks} for text in texts
            ]
            with pytest.raises(InvalidRequest, match="32-bit integers"):
                await client.pool([EngineRequest(request_id="large", inputs=RequestInputs([2**31], task))])
            call = asyncio.create_task(client.pool(requests))
            await asyncio.sleep(0)
            assert client.pid is not None
            os.kill(client.pid, signal.SIGKILL)
            with pytest.raises(EngineDead):
                await call

    asyncio.run(asyncio.wait_for(scenario(), 30))
