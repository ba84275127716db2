"""A model on two nodes: two commands on this machine. What clients see when one node ends, stops or returns."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from .deployment import START_LIMIT_S, Server

pytestmark = pytest.mark.slow
WAYS = {
    "tensor": {"tensor_parallel_size": 2},
    "pipeline": {"pipeline_parallel_size": 2, "cpu_distributed_timeout_seconds": 3},
    "prompts": {"prefill_context_parallel_size": 2},
}
LONG = "Once upon a time there was a server that answered. " * 8
BODY = {"model": "builtin:tiny", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 16, "ignore_eos": True}


def manifest(folder: Path, **parallel: object) -> Path:
    file = folder / "deploy.yaml"
    model = {"model": "builtin:tiny", "max_model_len": 256, "dtype": "float32"}
    file.write_text(json.dumps({"model": model, "parallel": parallel, "server": {"port": 0}}))
    return file


def on_two_nodes(folder: Path, **parallel: object) -> Path:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    return manifest(folder, nnodes=2, master_addr="127.0.0.1", master_port=port, **parallel)


class Node(Server):
    """Another node than 0."""

    def wait_ready(self) -> str:
        until(lambda: any("/health" in line for line in self.out) or self.process.poll() is not None)
        (line,) = (line for line in self.out if "/health" in line)
        return line.rpartition(" ")[2].strip()

    def rank(self) -> psutil.Process:
        def ranks() -> list[psutil.Process]:
            return [each for each in self.process.children() if each.status() != psutil.STATUS_ZOMBIE]

        until(lambda: len(ranks()) == 1)
        return ranks()[0]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def answer(url: str, **more: object) -> httpx.Response:
    return httpx.post(f"{url}/v1/completions", json=BODY | more, timeout=START_LIMIT_S)


def text(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


def lose_in_the_middle(url: str, lose: Callable[[], object], headers: dict[str, str] | None = None) -> None:
    """Calls `lose` when a stream has begun, which ends with an error."""
    with httpx.stream(
        "POST",
        f"{url}/v1/completions",
        json=BODY | {"stream": True, "max_tokens": 240},
        headers=headers,
        timeout=START_LIMIT_S,
    ) as response:
        lines = response.iter_lines()
        assert "choices" in next(lines)
        lose()
        assert any("engine_restarting" in line for line in lines)


def lose_before_a_prompt(url: str, lose: Callable[[], object]) -> None:
    """As `lose_in_the_middle`, where the nodes share prompts and each computes single tokens alone."""
    lose()
    assert "engine_restarting" in answer(url, prompt=LONG[::-1]).text


def is_ready(url: str) -> bool:
    return httpx.get(f"{url}/readyz").status_code == 200


@contextmanager
def started(*servers: Server) -> Iterator[None]:
    try:
        yield
    finally:
        for server in servers:
            children = server.process.children(recursive=True) if server.process.poll() is None else []
            if server.process.poll() is None:
                server.process.resume()
                server.process.terminate()
                server.process.wait(START_LIMIT_S)
            server.close()
            _, alive = psutil.wait_procs(children, START_LIMIT_S)
            assert not alive


@pytest.mark.effect("parallel.nnodes", "parallel.node_rank", "parallel.master_addr", "parallel.master_port")
@pytest.mark.effect("parallel.cpu_distributed_timeout_seconds")
@pytest.mark.parametrize("sizes", WAYS.values(), ids=WAYS)
def test_answers_are_those_of_one_process_and_a_node_that_is_lost_returns(sizes: dict[str, int], tmp_path: Path):
    alone = Server(manifest(tmp_path))
    with started(alone):
        expected = text(answer(alone.wait_ready()))
        expected_of_long = answer(alone.wait_ready(), prompt=LONG)
    assert expected_of_long.json()["usage"]["prompt_tokens"] > 64
    lose_and_ask = lose_before_a_prompt if "prefill_context_parallel_size" in sizes else lose_in_the_middle
    file = on_two_nodes(tmp_path, **sizes)
    other = Node(file, "--node-rank", "1")
    first = Server(file)
    with started(first, other):
        url, probe = first.wait_ready(), other.wait_ready()
        assert text(answer(url)) == expected
        assert text(answer(url, prompt=LONG)) == text(expected_of_long)
        assert httpx.get(probe).json()["state"] == "ready"

        # a rank is killed
        lose_and_ask(url, other.rank().kill)
        assert re.search(r"rank 1 of the model \(node 1, .*\) has closed its connection", "".join(first.err))
        until(lambda: is_ready(url))
        assert text(answer(url)) == expected

        # the whole node is stopped
        rank = other.rank()

        def stop() -> None:
            other.process.suspend()
            rank.suspend()

        lose_and_ask(url, stop)
        silence_s = sizes.get("cpu_distributed_timeout_seconds", 5)
        log = "".join(first.err)
        assert re.search(rf"rank 1 of the model \(node 1, .*\) has not answered for {silence_s} s", log)
        other.process.resume()
        until(lambda: is_ready(url))
        assert not rank.is_running()
        assert text(answer(url)) == expected

        # the engine of node 0 is killed: the ranks of node 1 end, and come again
        before = other.rank()
        first.engine.send_signal(signal.SIGKILL)
        until(lambda: not before.is_running())
        until(lambda: not is_ready(url))  # the rank may notice the end of the engine before the server does
        until(lambda: is_ready(url))
        assert text(answer(url)) == expected


def test_a_node_that_is_killed_leaves_no_process_and_another_takes_its_place(tmp_path: Path):
    file = on_two_nodes(tmp_path, tensor_parallel_size=2)
    first, other = Server(file), Node(file, "--node-rank", "1")
    with started(first):
        with started(other):
            url = first.wait_ready()
            expected, rank = text(answer(url)), other.rank()
            other.process.kill()
            until(lambda: not rank.is_running())
            until(lambda: not is_ready(url))
        again = Node(file, "--node-rank", "1")
        with started(again):
            until(lambda: is_ready(url))
            assert text(answer(url)) == expected


def test_a_node_of_another_deployment_is_refused_by_both(tmp_path: Path):
    file = on_two_nodes(tmp_path, tensor_parallel_size=2)
    first, other = Server(file), Node(file, "--node-rank", "1", "--max-model-len", "128")
    with started(first, other):
        assert other.process.wait(START_LIMIT_S) == 78
        wrong = "`model.max_model_len` is 256 on node 0 and 128 on"
        assert wrong in "".join(other.err)
        until(lambda: wrong in "".join(first.err))
        right = Node(file, "--node-rank", "1")
        with started(right):
            assert text(answer(first.wait_ready()))
