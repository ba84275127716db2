"""An engine of two processes: what clients see when one of them ends or stops."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tests.models.checkpoints import build, save
from tests.models.engine import resolved as small_deployment

from stoker.config import Resolved, load_deployment, read_machine_spec, read_model_files, resolve_deployment
from stoker.engine.api import EngineDead, EngineRequest, RequestInputs, SamplingParams
from stoker.engine.client.engine_client import EngineStartFailed, EngineState
from stoker.engine.client.process import EngineProcessClient

pytestmark = pytest.mark.slow
PROMPT = range(1, 101)  # long enough to be shared
LIMIT_S = 60.0  # of what takes a second or two here
ARGUMENTS = ["--model", "builtin:tiny", "--max-model-len", "256"]
TENSOR = "--tensor-parallel-size", "2"
WAYS = {
    "shared memory": TENSOR,
    "gloo": (*TENSOR, "--disable-custom-all-reduce"),
    "pipeline": ("--pipeline-parallel-size", "2"),
    "prompts": ("--prefill-context-parallel-size", "2"),
}


@asynccontextmanager
async def engine(*arguments: str) -> AsyncIterator[EngineProcessClient]:
    deployment = load_deployment([], [*ARGUMENTS, *arguments], env={})
    async with engine_of(resolve_deployment(deployment, read_model_files(deployment), read_machine_spec())) as client:
        yield client


@asynccontextmanager
async def engine_of(resolved: Resolved) -> AsyncIterator[EngineProcessClient]:
    client = EngineProcessClient(resolved.model_dump_json(), max_restarts=3, stall_limit_s=LIMIT_S)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def tokens_of(
    client: EngineProcessClient, max_tokens: int = 8, prompt: Sequence[int] = (1, 2, 3), seen: list[int] | None = None
) -> list[int]:
    """seen: gets the tokens as they come."""
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    request = EngineRequest(request_id=str(time.monotonic_ns()), inputs=RequestInputs(list(prompt), sampling))
    found: list[int] = [] if seen is None else seen
    async for output in client.generate(request):
        found += output.token_ids
    return found


def other_rank(client: EngineProcessClient) -> psutil.Process:
    assert client.pid is not None
    (found,) = (each for each in psutil.Process(client.pid).children() if "rank_process" in " ".join(each.cmdline()))
    return found


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
def test_a_rank_that_ends_or_stops_ends_the_engine_which_is_started_again(how: tuple[str, ...]):
    async def scenario() -> None:
        async with engine(*how) as client:
            expected = await tokens_of(client, prompt=PROMPT)

            # killed while both compute
            seen: list[list[int]] = [[], [], []]
            running = [asyncio.create_task(tokens_of(client, 150, PROMPT, each)) for each in seen]
            await until(lambda: all(seen))
            other_rank(client).kill()
            for end in await asyncio.gather(*running, return_exceptions=True):
                assert isinstance(end, EngineDead)
                assert "rank 1 of the model" in end.reason
                assert "SIGKILL" in end.reason
            await until(lambda: client.state is EngineState.READY)
            assert await tokens_of(client, prompt=PROMPT) == expected

            # stopped while nothing runs
            stopped = other_rank(client)
            stopped.suspend()
            await until(lambda: client.state is EngineState.RESTARTING)
            assert client.reason.endswith("is stopped")
            assert not stopped.is_running() or stopped.status() == psutil.STATUS_ZOMBIE
            await until(lambda: client.state is EngineState.READY)
            assert await tokens_of(client, prompt=PROMPT) == expected

            # rank 0 is killed
            orphan = other_rank(client)
            assert client.pid is not None
            os.kill(client.pid, signal.SIGKILL)
            await until(lambda: not orphan.is_running())
            await until(lambda: client.state is EngineState.READY)
            assert await tokens_of(client, prompt=PROMPT) == expected
            last = other_rank(client)
        await until(lambda: not last.is_running())

    asyncio.run(scenario())


def test_ranks_that_share_the_tokens_of_a_sequence_answer_as_one_process(tmp_path: Path):
    folder = save(build("llama", num_key_value_heads=1), tmp_path / "model")
    parallel = {"tensor_parallel_size": 2, "decode_context_parallel_size": 2}

    async def scenario() -> None:
        async with engine_of(small_deployment(folder, tmp_path)) as client:
            expected = await tokens_of(client, 40)
        async with engine_of(small_deployment(folder, tmp_path, parallel=parallel)) as client:
            assert await asyncio.gather(*(tokens_of(client, 40) for _ in range(3))) == [expected] * 3

    asyncio.run(scenario())


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs Triton's interpreter")
def test_ranks_whose_kernels_are_interpreted_answer_as_one_process_and_one_that_is_killed_ends_the_engine(
    tmp_path: Path,
):
    pytest.importorskip("triton")
    folder = save(build("qwen3"), tmp_path / "model")
    small: dict[str, dict[str, Any]] = {"model": {"max_model_len": 24}, "scheduler": {"max_num_seqs": 2}}

    async def scenario() -> None:
        async with engine_of(small_deployment(folder, tmp_path, **small)) as client:
            expected = await tokens_of(client, 5)
        machine = read_machine_spec()
        devices: dict[str, dict[str, Any]] = {"device": {"device": "cuda"}, "parallel": {"tensor_parallel_size": 2}}
        async with engine_of(small_deployment(folder, tmp_path, machine, **small, **devices)) as client:
            assert await tokens_of(client, 5) == expected
            other_rank(client).kill()
            await until(lambda: client.state is EngineState.RESTARTING)
            assert "rank 1 of the model" in client.reason
            assert "SIGKILL" in client.reason

    asyncio.run(scenario())


def test_a_rank_that_cannot_load_ends_the_start_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def scenario() -> None:
        (tmp_path / "sitecustomize.py").write_text(
            "import sys\n"
            "if 'stoker.engine.rank_process' in sys.orig_argv:\n"
            "    import resource\n"
            "    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        )
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        with pytest.raises(EngineStartFailed, match="rank 1 of the model"):
            async with engine(*TENSOR):
                pass

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("way", "draft"),
    [("shared memory", "builtin:tiny-eagle3"), ("pipeline", "builtin:tiny")],
)
def test_a_network_drafts_for_two_processes(way: str, draft: str):
    """Rank 0 drafts, and sends its drafts with the plan. The start measures steps and drafts of both."""
    prompts = [PROMPT, (1, 2, 3), range(40, 70)]

    async def scenario() -> None:
        exact = "--dtype", "float32"  # sums in bfloat16 depend on how many tokens a step has
        async with engine(*WAYS[way], *exact) as client:
            expected = [await tokens_of(client, 60, prompt) for prompt in prompts]
        async with engine(*WAYS[way], *exact, "--spec-model", draft) as client:
            found = await asyncio.gather(*(tokens_of(client, 60, prompt) for prompt in prompts))
            assert found == expected
            assert await tokens_of(client, 60, PROMPT) == expected[0]
            drafts = client.stats.drafts
            assert drafts is not None
            assert drafts.tokens > 0

    asyncio.run(scenario())
