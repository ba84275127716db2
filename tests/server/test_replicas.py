"""Several replicas behind one API: their states, their metrics, and the header that names one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests.free_ports import free_port

from stoker.engine.client.engine_client import EngineState
from stoker.engine.client.replicated import ReplicatedClient

from ..fakes import FakeEngine
from .deployment import MODEL, Served

ROOT = Path(__file__).parents[2]
LIMIT_S = 120.0
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}


@pytest.fixture
def engines() -> dict[int, FakeEngine]:
    return {4: FakeEngine(), 5: FakeEngine()}


@pytest.fixture
def replicated(folder: Path, engines: dict[int, FakeEngine]) -> Served:
    parallel = {
        "data_parallel_size": 8,
        "data_parallel_size_local": 2,
        "data_parallel_start_rank": 4,
        "data_parallel_hybrid_lb": True,
    }
    return Served(folder, ReplicatedClient(engines), parallel=parallel)  # type: ignore[arg-type]


def ask(served: Served, method: str, path: str, **arguments: Any) -> httpx.Response:
    async def run() -> httpx.Response:
        async with served.client() as client:
            return await client.request(method, path, **arguments)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", BODY),
        ("/v1/completions", {"model": MODEL, "prompt": "Hello", "max_tokens": 4}),
        ("/inference/v1/generate", {"model": MODEL, "token_ids": [5, 6], "sampling_params": {"max_tokens": 4}}),
    ],
)
def test_the_header_names_the_replica(
    replicated: Served, engines: dict[int, FakeEngine], path: str, body: dict[str, Any]
):
    for rank in (5, 4, 5):
        response = ask(replicated, "POST", path, json=body, headers={"X-Data-Parallel-Rank": str(rank)})
        assert response.status_code == 200, response.text
    assert [len(engines[rank].requests) for rank in (4, 5)] == [1, 2]


@pytest.mark.parametrize("rank", ["0", "6", "-1", "four", "", "4, 5", "٤", "9" * 5000])
def test_the_rank_of_another_server_is_refused(replicated: Served, rank: str):
    headers = {"X-Data-Parallel-Rank": rank.encode()}
    response = ask(replicated, "POST", "/v1/chat/completions", json=BODY, headers=headers)
    assert response.status_code == 400
    assert "4 to 5" in response.json()["error"]["message"]


def test_the_header_is_accepted_where_one_replica_serves(served: Served):
    for rank, status in (("0", 200), ("1", 400)):
        headers = {"X-Data-Parallel-Rank": rank}
        assert ask(served, "POST", "/v1/chat/completions", json=BODY, headers=headers).status_code == status


def test_requests_go_to_replicas_that_are_ready(replicated: Served, engines: dict[int, FakeEngine]):
    engines[4].die()
    assert [ask(replicated, "POST", "/v1/chat/completions", json=BODY).status_code for _ in range(4)] == [200] * 4
    assert len(engines[5].requests) == 4
    health = ask(replicated, "GET", "/health")
    assert health.status_code == 200
    assert health.json()["replicas"] == {"4": "restarting", "5": "ready"}
    named = ask(replicated, "POST", "/v1/chat/completions", json=BODY, headers={"X-Data-Parallel-Rank": "4"})
    assert (named.status_code, named.json()["error"]["code"]) == (503, "engine_restarting")
    engines[5].die()
    refused = ask(replicated, "POST", "/v1/chat/completions", json=BODY)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_restarting")
    assert ask(replicated, "GET", "/health").json()["replicas"] == {"4": "restarting", "5": "restarting"}
    engines[5].die(EngineState.DEAD)
    assert ask(replicated, "GET", "/livez").status_code == 503


def test_a_replica_without_progress_is_reported_and_gets_no_requests(
    replicated: Served, engines: dict[int, FakeEngine]
):
    """The others serve; a supervisor replaces the process, because nothing else ends a replica that hangs."""
    engines[4].state = EngineState.STALLED
    assert [ask(replicated, "POST", "/v1/chat/completions", json=BODY).status_code for _ in range(4)] == [200] * 4
    assert len(engines[5].requests) == 4
    assert ask(replicated, "GET", "/readyz").status_code == 200
    alive = ask(replicated, "GET", "/livez")
    assert (alive.status_code, alive.json()["error"]["code"]) == (503, "engine_stalled")
    assert alive.json()["replicas"] == {"4": "stalled", "5": "ready"}
    named = ask(replicated, "POST", "/v1/chat/completions", json=BODY, headers={"X-Data-Parallel-Rank": "4"})
    assert (named.status_code, named.json()["error"]["code"]) == (503, "engine_stalled")


def test_metrics_of_engines_are_labelled_with_their_rank(replicated: Served, engines: dict[int, FakeEngine]):
    for rank in (4, 5, 5):
        ask(replicated, "POST", "/v1/chat/completions", json=BODY, headers={"X-Data-Parallel-Rank": str(rank)})
    engines[4].die()
    text = ask(replicated, "GET", "/metrics").text
    for engine, steps, is_ready in (("4", 1, 0), ("5", 2, 1)):
        labels = f'engine="{engine}",model_name="{MODEL}"'
        assert f"stoker_engine_steps_total{{{labels}}} {steps}.0" in text
        assert f'stoker_engine_state{{{labels},state="ready"}} {is_ready}.0' in text
        assert f"vllm:num_requests_running{{{labels}}} 0.0" in text
    assert text.count("# TYPE stoker_engine_steps_total counter") == 1
    # what the server itself counts has no engine; under vLLM's names it is that of the first
    assert f'stoker_generation_tokens_total{{model_name="{MODEL}"}} 12.0' in text
    assert f'vllm:generation_tokens_total{{engine="4",model_name="{MODEL}"}} 12.0' in text


# ---- the whole command


class Running:
    def __init__(self, folder: Path, *words: str) -> None:
        self.port = free_port()
        self.log = folder / "log"
        environment = {**os.environ, "PYTHONPATH": str(ROOT / ".dev"), "TMPDIR": str(folder)}
        command = [sys.executable, "-m", "stoker", "serve", "builtin:tiny", "--port", str(self.port), *words]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        return httpx.request(method, f"http://127.0.0.1:{self.port}{path}", timeout=LIMIT_S, **arguments)

    def generate(self, **headers: str) -> int:
        body = {"prompt": "Hello", "max_tokens": 4, "ignore_eos": True}
        return self.request("POST", "/v1/completions", json=body, headers=headers).status_code

    def replicas(self) -> dict[str, str]:
        assert self.process.poll() is None, self.log.read_text()
        with contextlib.suppress(httpx.TransportError):
            return dict(self.request("GET", "/health").json().get("replicas", {}))
        return {}

    def steps(self) -> dict[str, float]:
        found = re.findall(r'stoker_engine_steps_total{engine="(\d)".*} (.*)', self.request("GET", "/metrics").text)
        return {rank: float(steps) for rank, steps in found}

    def engines(self) -> list[psutil.Process]:
        found = []
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if "stoker.engine.process" in child.cmdline():
                    found.append(child)
        return found


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.1)


@pytest.fixture(scope="module", params=["1", "2"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """With one API process, and with two."""
    words = ["-dp", "2", "--api-server-count", request.param, "--enable-admin-routes"]
    server = Running(tmp_path_factory.mktemp("up"), *words)
    try:
        until(lambda: list(server.replicas().values()) == ["ready", "ready"])
        yield server
    finally:
        server.process.kill()
        server.process.wait()


@pytest.mark.slow
def test_engines_serve_one_port_and_one_that_is_killed_is_started_again(running: Running):
    first = running.engines()
    assert len(first) == 2
    for rank in ("0", "1"):
        assert running.generate(**{"x-data-parallel-rank": rank}) == 200
    until(lambda: running.steps().keys() == {"0", "1"} and min(running.steps().values()) >= 4)
    first[0].kill()
    until(lambda: "restarting" in running.replicas().values())
    assert [running.generate() for _ in range(6)] == [200] * 6  # while the other is loading
    until(lambda: list(running.replicas().values()) == ["ready", "ready"])
    for rank in ("0", "1"):
        until(lambda rank=rank: running.generate(**{"x-data-parallel-rank": rank}) == 200)
    assert running.request("POST", "/reset_prefix_cache").status_code == 200
    assert [running.generate() for _ in range(4)] == [200] * 4


@pytest.mark.slow
def test_a_shutdown_leaves_no_engine(running: Running):
    engines = running.engines()
    assert len(engines) == 2
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(LIMIT_S) == 0
    assert not [engine for engine in engines if engine.is_running()]
    assert not [path.name for path in running.log.parent.iterdir() if path.name.startswith("stoker-")]


@pytest.mark.slow
def test_a_server_that_is_killed_leaves_no_engine(tmp_path: Path):
    server = Running(tmp_path, "-dp", "2")
    try:
        until(lambda: list(server.replicas().values()) == ["ready", "ready"])
        engines = server.engines()
    finally:
        server.process.kill()
        server.process.wait()
    assert len(engines) == 2
    until(lambda: not any(engine.is_running() for engine in engines))
