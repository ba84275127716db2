"""Several API processes in front of one engine: the whole command, with the built-in model."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from tests.free_ports import free_port

ROOT = Path(__file__).parents[2]
LIMIT_S = 120.0
BODY = {"prompt": "Hello", "max_tokens": 4, "ignore_eos": True}
pytestmark = pytest.mark.slow


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.1)


class Running:
    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        keys = folder / "keys.yaml"
        keys.write_text("keys: {a: {requests_per_minute: 6, secrets: [{key: sk-a}]}}")
        options = {"port": self.port, "api-server-count": 2, "api-key": "k", "api-keys-file": keys}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        self.log = folder / "log"
        environment = {**os.environ, "PYTHONPATH": str(ROOT / ".dev"), "TMPDIR": str(folder)}
        with self.log.open("w") as log:
            command = [sys.executable, "-m", "stoker", "serve", "builtin:tiny", *words, "--enable-admin-routes"]
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def request(self, method: str, path: str, *, key: str = "k", **arguments: object) -> httpx.Response:
        """On a connection of its own, so that any process may accept it."""
        headers = {"authorization": f"Bearer {key}"}
        url = f"http://127.0.0.1:{self.port}{path}"
        return httpx.request(method, url, headers=headers, timeout=LIMIT_S, **arguments)  # type: ignore[arg-type]

    def generate(self, key: str = "k") -> httpx.Response:
        return self.request("POST", "/v1/completions", key=key, json=BODY)

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        with contextlib.suppress(httpx.TransportError):
            return self.request("GET", "/health").status_code == 200
        return False

    def metric(self, name: str) -> float:
        lines = self.request("GET", "/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if re.match(rf"{name}[ {{]", line))

    def children(self, module: str) -> list[psutil.Process]:
        found = []
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if module in child.cmdline():
                    found.append(child)
        return found


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    server = Running(tmp_path_factory.mktemp("up"))
    try:
        until(server.is_ready)
        until(lambda: "ready in" in server.log.read_text())
        yield server
    finally:
        server.process.kill()
        server.process.wait()


@pytest.mark.effect("server.api_server_count")
def test_processes_serve_one_port_and_count_together(running: Running):
    assert len(running.children("stoker.cli.api_process")) == 2
    assert len(running.children("stoker.engine.process")) == 1
    before = running.metric("stoker_generation_tokens_total")
    assert [running.generate().status_code for _ in range(10)] == [200] * 10
    assert running.metric("stoker_generation_tokens_total") == before + 40
    assert running.metric("vllm:generation_tokens_total") == before + 40
    statuses = [running.generate("sk-a").status_code for _ in range(8)]
    assert statuses[:6] == [200] * 6
    assert statuses.count(429) >= 1


def test_a_process_that_died_is_started_again_and_its_counts_remain(running: Running):
    before = running.metric("stoker_generation_tokens_total")
    victim = running.children("stoker.cli.api_process")[0]
    victim.kill()
    until(lambda: len({child.pid for child in running.children("stoker.cli.api_process")} - {victim.pid}) == 2)
    assert [running.generate().status_code for _ in range(4)] == [200] * 4
    assert running.metric("stoker_generation_tokens_total") == before + 16
    assert "ended with code -9; restarting it" in running.log.read_text()


def test_all_processes_use_the_engine_that_replaces_a_dead_one(running: Running):
    running.children("stoker.engine.process")[0].kill()
    until(lambda: "the engine is ready again" in running.log.read_text())
    until(running.is_ready)
    until(lambda: [running.generate().status_code for _ in range(6)] == [200] * 6)


def test_a_reset_of_the_prefix_cache_holds_for_all_processes(running: Running):
    prompt = "one two three four five six seven eight nine ten " * 8

    def cached() -> float:
        before = running.metric("stoker_cached_prompt_tokens_total")
        running.request("POST", "/v1/completions", json={**BODY, "prompt": prompt})
        return running.metric("stoker_cached_prompt_tokens_total") - before

    cached()
    assert cached() > 0
    assert running.request("POST", "/reset_prefix_cache").status_code == 200
    assert cached() == 0
    assert all(cached() > 0 for _ in range(6))  # whichever process serves it


def test_a_shutdown_waits_for_running_requests_and_leaves_nothing(running: Running):
    body = {**BODY, "max_tokens": 400, "stream": True}
    url = f"http://127.0.0.1:{running.port}/v1/completions"
    with httpx.stream("POST", url, json=body, headers={"authorization": "Bearer k"}, timeout=LIMIT_S) as stream:
        lines = stream.iter_lines()
        next(lines)
        running.process.send_signal(signal.SIGTERM)
        assert "data: [DONE]" in list(lines)
    assert running.process.wait(LIMIT_S) == 0
    assert not [path.name for path in running.log.parent.iterdir() if path.name.startswith("stoker-")]
