"""One command with a server for each replica: what clients and the supervisor's health see when a server is lost."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from openai import OpenAI
from tests.free_ports import HOST, free_ports

from .deployment import ENGINE_MODULE, START_LIMIT_S, Server, metric
from .test_nodes import BODY, answer, started, text, until

pytestmark = pytest.mark.slow
MODULE = "stoker.cli.replica_server"


class Replicas(Server):
    """Two servers and their supervisor."""

    def __init__(self, folder: Path, **server: object) -> None:
        first = free_ports(3)
        self.urls = {rank: f"http://{HOST}:{first + rank}" for rank in range(2)}
        self.supervisor = f"http://{HOST}:{first + 2}"
        parallel = {
            "data_parallel_size": 2,
            "data_parallel_multi_port_external_lb": True,
            "data_parallel_supervisor_port": first + 2,
            "dp_supervisor_probe_interval_s": 0.5,
            "dp_supervisor_probe_timeout_s": 2,
            "dp_supervisor_probe_failure_threshold": 2,
        }
        model = {"model": "builtin:tiny", "max_model_len": 256, "dtype": "float32"}
        file = folder / "deploy.yaml"
        file.write_text(json.dumps({"model": model, "parallel": parallel, "server": {"port": first, **server}}))
        super().__init__(file)

    def server(self, rank: int) -> psutil.Process:
        def is_of(child: psutil.Process) -> bool:
            words = child.cmdline()
            return MODULE in words and words[words.index("--rank") + 1] == str(rank)

        (found,) = (child for child in self.process.children() if is_of(child))
        return found

    def engine_of(self, rank: int) -> psutil.Process:
        (found,) = (child for child in self.server(rank).children() if ENGINE_MODULE in child.cmdline())
        return found

    def asked(self, path: str) -> tuple[int, dict[str, Any]]:
        response = httpx.get(f"{self.supervisor}{path}", timeout=START_LIMIT_S)
        return response.status_code, response.json()

    def state(self, rank: int) -> str:
        return str(self.asked("/health")[1]["replicas"][str(rank)])

    def restarts(self, rank: int) -> float:
        return metric(httpx.get(f"{self.supervisor}/metrics").text, f'stoker_server_restarts_total{{engine="{rank}"}}')


def lose(replicas: Replicas, lose_it: Callable[[], object], reason: str) -> None:
    """Calls `lose_it`, which ends the server of replica 1; replica 0 answers all requests until it is back."""
    before, lost = replicas.restarts(1), replicas.server(1)
    lose_it()
    until(lambda: replicas.asked("/readyz")[0] == 503)
    until(lambda: reason in replicas.asked("/health")[1].get("reasons", {}).get("1", ""))
    while replicas.asked("/readyz")[0] == 503:
        assert replicas.asked("/health")[0] == 200
        assert replicas.state(0) == "ready"
        assert text(answer(replicas.urls[0]))
    assert replicas.restarts(1) == before + 1
    assert not lost.is_running()
    assert text(answer(replicas.urls[1]))


@pytest.mark.effect(
    "parallel.data_parallel_multi_port_external_lb",
    "parallel.data_parallel_supervisor_port",
    "parallel.dp_supervisor_probe_interval_s",
    "parallel.dp_supervisor_probe_timeout_s",
    "parallel.dp_supervisor_probe_failure_threshold",
)
def test_each_replica_has_a_server_and_a_lost_one_returns_while_the_other_serves(tmp_path: Path):
    replicas = Replicas(tmp_path)
    with started(replicas):
        assert replicas.wait_ready() == replicas.urls[0]
        for url in replicas.urls.values():
            client = OpenAI(base_url=f"{url}/v1", api_key="none")
            message = client.chat.completions.create(
                model="builtin:tiny", messages=[{"role": "user", "content": "What does --port do?"}], max_tokens=16
            )
            assert message.choices[0].message.content
        for rank, url in replicas.urls.items():  # each has its own replica, and no other
            assert f'stoker_engine_steps_total{{engine="{rank}"' in httpx.get(f"{url}/metrics").text
            assert httpx.get(f"{url}/health").json() == {"status": "ok", "state": "ready"}
        ready = (200, {"status": "ok", "replicas": {"0": "ready", "1": "ready"}})
        assert [replicas.asked(path) for path in ("/livez", "/readyz", "/health")] == [ready] * 3

        lose(replicas, lambda: replicas.server(1).kill(), "the server was ended by SIGKILL")
        lose(replicas, lambda: replicas.server(1).suspend(), "no answer to ")


def test_a_stalled_engine_replaces_its_server_until_no_restart_is_left(tmp_path: Path):
    replicas = Replicas(tmp_path, max_engine_restarts=1)
    with started(replicas):
        replicas.wait_ready()
        with ThreadPoolExecutor(1) as pool:
            replicas.engine_of(1).suspend()
            asked = pool.submit(answer, replicas.urls[1])
            lose(replicas, lambda: None, "the engine has made no progress for 10 seconds")
            assert asked.result().status_code == 503
        replicas.server(1).kill()
        assert replicas.wait() == 1
        assert "replica 1: the server was ended by SIGKILL; 1 restarts are allowed" in "".join(replicas.err)


def test_requests_are_completed_after_a_signal(tmp_path: Path):
    replicas = Replicas(tmp_path)
    with started(replicas):
        replicas.wait_ready()
        long = BODY | {"max_tokens": 200, "stream": True}
        with (
            httpx.stream("POST", f"{replicas.urls[0]}/v1/completions", json=long, timeout=START_LIMIT_S) as first,
            httpx.stream("POST", f"{replicas.urls[1]}/v1/completions", json=long, timeout=START_LIMIT_S) as second,
        ):
            lines = [each.iter_lines() for each in (first, second)]
            for each in lines:
                assert "choices" in next(each)
            children = replicas.process.children(recursive=True)
            replicas.process.send_signal(signal.SIGTERM)
            for each in lines:
                received = [line for line in each if line]
                assert received[-1] == "data: [DONE]"
                assert not any('"error"' in line for line in received)
        assert replicas.wait() == 0
        assert psutil.wait_procs(children, START_LIMIT_S)[1] == []


def test_nothing_is_left_when_the_supervisor_is_killed(tmp_path: Path):
    replicas = Replicas(tmp_path)
    with started(replicas):
        replicas.wait_ready()
        children = replicas.process.children(recursive=True)
        assert len(children) >= 4  # two servers and their engines
        replicas.server(1).suspend()
        replicas.process.kill()
        assert psutil.wait_procs(children, START_LIMIT_S)[1] == []


def test_a_taken_port_and_a_refused_model_end_the_start(tmp_path: Path):
    replicas = Replicas(tmp_path, chat_template="{{ broken")
    with started(replicas):
        assert replicas.wait() != 0
    first = int(replicas.urls[0].rpartition(":")[2])
    with socket.create_server((HOST, first + 1)):
        again = Server(tmp_path / "deploy.yaml")
        with started(again):
            assert again.wait() == 4
            said = (
                f"error: cannot listen on {HOST}:{first + 1}, the port of the server of replica 1: address already in"
            )
            assert said in "".join(again.err)
