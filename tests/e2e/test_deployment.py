"""A deployment in real processes: started, used, its engine killed, stopped."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from tests.e2e.deployment import (
    EXIT_LIMIT_S,
    ROOT,
    START_LIMIT_S,
    Answer,
    Server,
    ask,
    command,
    environment,
    events,
    http_client,
    metric,
    seeded,
    serving,
    write_manifest,
)
from tests.tiny_checkpoint import write_checkpoint

from stoker import LLM, SamplingParams

PROMPTS = [[7 + index] * (1 + 9 * index) for index in range(10)]
NUM_TOKENS = 40
GREEDY = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
LONG = {**GREEDY, "max_tokens": 3000}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), context=4096)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    return write_manifest(tmp_path_factory.mktemp("manifest") / "deploy.yaml", checkpoint)


@pytest.fixture(scope="module")
def running(manifest: Path) -> Iterator[tuple[Server, str]]:
    with serving(manifest) as started:
        yield started


@pytest.fixture(scope="module")
def alone(checkpoint: Path) -> list[list[int]]:
    """Greedy answers to PROMPTS, one prompt at a time."""
    with LLM(str(checkpoint), dtype="float32", num_gpu_blocks_override=64, num_threads=1) as llm:
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=NUM_TOKENS)
        return [llm.generate({"prompt_token_ids": prompt}, params)[0].outputs[0].token_ids for prompt in PROMPTS]


async def live_streams(client: httpx.AsyncClient, count: int) -> list[tuple[Answer, asyncio.Task[Answer]]]:
    """`count` long streams, each of which has received tokens."""
    pairs: list[tuple[Answer, asyncio.Task[Answer]]] = []

    async def follow(answer: Answer, body: dict[str, Any]) -> Answer:
        async for _ in events(client, body, answer):
            pass
        return answer

    for index in range(count):
        answer = Answer()
        body = {**LONG, "prompt": PROMPTS[index % len(PROMPTS)]}
        pairs.append((answer, asyncio.ensure_future(follow(answer, body))))
    async with asyncio.timeout(START_LIMIT_S):
        while not all(answer.token_ids for answer, _ in pairs):
            await asyncio.sleep(0.02)
    return pairs


async def until_health(client: httpx.AsyncClient, status: int) -> None:
    async with asyncio.timeout(START_LIMIT_S):
        while (await client.get("/health")).status_code != status:
            await asyncio.sleep(0.02)


def test_the_start_shows_its_phases_and_the_deployment(running: tuple[Server, str]):
    server, url = running
    err, out = "".join(server.err), "".join(server.out)
    for phase in ("configuration", "address", "model files", "libraries", "weights", "warm-up", "server", "engine"):
        assert phase in err
    assert f"{url}/v1" in out
    assert "4096 tokens" in out
    assert "16 sequences at full context" in out
    assert "curl" in out
    assert "\x1b" not in err + out  # no escape codes: the output is not a terminal


def test_the_api_process_does_not_load_torch(running: tuple[Server, str]):
    server, _ = running
    assert any("torch" in place.path for place in server.engine.memory_maps())
    assert not any("torch" in place.path for place in server.process.memory_maps())


def test_the_openai_client_streams_a_chat(running: tuple[Server, str]):
    _, url = running
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hello"}], stream=True, max_tokens=8, temperature=0
        )
        with stream:
            chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason in ("length", "stop")


@pytest.mark.slow
def test_the_commands_chat_and_complete_use_the_server(running: tuple[Server, str]):
    _, url = running
    for verb in ("chat", "complete"):
        words = command(verb, "--url", f"{url}/v1", "-q", "Hello")
        done = subprocess.run(
            words, env=environment(), capture_output=True, text=True, timeout=EXIT_LIMIT_S, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.strip()


@pytest.mark.parametrize("num_streams", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_streams_with_disconnects_equal_their_unbatched_answers(
    running: tuple[Server, str], alone: list[list[int]], num_streams: int
):
    server, url = running
    random = seeded(3)
    num_complete = 0

    async def scenario() -> None:
        async with http_client(url) as client:
            running_streams = asyncio.Semaphore(24)  # of 32 rows, so that streams begin while others run

            async def one(number: int) -> None:
                nonlocal num_complete
                which, length = number % len(PROMPTS), random.randint(1, NUM_TOKENS)
                leave_after = random.randint(1, length) if random.random() < 0.2 else None
                body = {**GREEDY, "prompt": PROMPTS[which], "max_tokens": length}
                async with running_streams:
                    answer = await ask(client, body, leave_after)
                assert answer.error is None
                assert answer.token_ids == alone[which][: len(answer.token_ids)]
                if leave_after is None:
                    assert (len(answer.token_ids), answer.finish_reason, answer.is_done) == (length, "length", True)
                    num_complete += 1

            await asyncio.gather(*(one(number) for number in range(num_streams)))
            async with asyncio.timeout(START_LIMIT_S):  # until every KV block is free again
                while metric(text := (await client.get("/metrics")).text, "stoker_kv_cache_usage_ratio") != 0:
                    await asyncio.sleep(0.05)
            assert metric(text, "stoker_num_requests_running") == 0

    asyncio.run(scenario())
    assert num_streams / 2 < num_complete < num_streams
    assert " error " not in "".join(server.err)


@pytest.mark.slow
def test_a_killed_engine_ends_each_stream_with_an_error_and_is_restarted(running: tuple[Server, str]):
    server, url = running

    async def scenario() -> None:
        async with http_client(url) as client:
            streams = await live_streams(client, 20)
            server.engine.kill()
            await until_health(client, 503)
            refused = await client.post("/v1/completions", json={"model": "tiny", "prompt": "Hello"})
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "engine_restarting"
            assert "retry-after" in refused.headers
            for answer in await asyncio.gather(*(task for _, task in streams)):
                assert answer.error is not None
                assert answer.error["code"] == "engine_restarting"
                assert not answer.is_done
            await until_health(client, 200)
            again = await ask(client, {**GREEDY, "prompt": PROMPTS[0], "max_tokens": 3})
            assert again.is_done

    asyncio.run(scenario())
    assert any("SIGKILL" in line for line in server.err)


@pytest.mark.slow
def test_a_port_in_use_is_reported_before_anything_is_loaded(running: tuple[Server, str], manifest: Path):
    _, url = running
    port = url.rpartition(":")[2]
    done = subprocess.run(
        command("up", str(manifest), "--port", port),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=EXIT_LIMIT_S,
        check=False,
    )
    assert done.returncode == 4
    *_, error, fix = done.stderr.splitlines()
    said = f"error: cannot listen on 127.0.0.1:{port}: address already in use by process {running[0].process.pid} ("
    assert error.startswith(said)
    assert fix == "  = fix: stop that process, or choose another address with --port or --uds"
    assert "model files" not in done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("hang_up")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_with_20_streams_ends_each_with_an_error_and_exits_with_0(manifest: Path, number: signal.Signals):
    """SIGHUP, which a closed ssh session sends, ended the process, and its streams without an error event."""

    async def scenario(server: Server, url: str) -> None:
        async with http_client(url) as client:
            streams = await live_streams(client, 20)
            pids = [server.process.pid, server.engine.pid]
            server.process.send_signal(number)
            for answer in await asyncio.gather(*(task for _, task in streams)):
                assert answer.error is not None
                assert answer.error["code"] == "server_shutting_down"
            assert await asyncio.to_thread(server.wait) == 0
            assert not any(psutil.pid_exists(pid) for pid in pids)

    with serving(manifest, "--log-level", "info") as (server, url):
        asyncio.run(scenario(server, url))
    assert not any("Traceback" in line for line in server.err)
    (stopping,) = [json.loads(line) for line in server.err if '"message": "stopping' in line]
    assert (stopping["cause"], stopping["requests"]) == (number.name, 20)


@pytest.mark.slow
def test_the_engine_of_the_shipped_deployment_ends_with_a_killed_server():
    with serving(ROOT / "deployments" / "tiny.yaml", "--port", "0") as (server, url):
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            answer = client.chat.completions.create(
                model="builtin:tiny", messages=[{"role": "user", "content": "Hello"}], max_tokens=64
            )
        assert answer.choices[0].message.content
        engine = server.engine
        os.kill(server.process.pid, signal.SIGKILL)
        server.wait()
        _, alive = psutil.wait_procs([engine], timeout=EXIT_LIMIT_S)
        assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_sigterm_during_the_start_ends_server_and_engine(manifest: Path):
    server = Server(manifest)
    try:
        engine = server.wait_engine()
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0  # as after it is ready: a stop that was requested is no failure
        assert server.err[-1] == "stopped before it was ready\n"
        assert not engine.is_running()
    finally:
        server.close()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.usefixtures("hang_up")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.quick_cases(1)
def test_a_stop_before_there_is_an_event_loop_ends_with_0(number: signal.Signals):
    """SIGTERM ended the process without a word, Ctrl-C with 130 or 1."""
    process = subprocess.Popen(
        command("up", "-"), env=environment(), stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # it waits for the configuration on its standard input
    status = Path(f"/proc/{process.pid}/status")
    deadline = time.monotonic() + START_LIMIT_S
    while not int(re.search(r"SigCgt:\s*(\w+)", status.read_text())[1], 16) & 1 << (signal.SIGTERM - 1):
        assert time.monotonic() < deadline
    process.send_signal(number)
    _, err = process.communicate(timeout=EXIT_LIMIT_S)
    assert (process.returncode, err.splitlines()[-1]) == (0, "stopped before it was ready")


@pytest.mark.slow
def test_a_failed_start_ends_with_its_cause(tmp_path: Path):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    manifest = write_manifest(tmp_path / "deploy.yaml", checkpoint)
    done = subprocess.run(
        command("up", str(manifest)),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=EXIT_LIMIT_S,
        check=False,
    )
    assert done.returncode == 3
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert "model.safetensors" in last
    assert "Traceback" not in done.stderr
