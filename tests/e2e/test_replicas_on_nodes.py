"""One server with replicas on two machines: two commands on this machine. What clients see when one ends or stops."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import httpx
import psutil
import pytest
from tests.free_ports import free_port

from .deployment import START_LIMIT_S, Server
from .test_nodes import BODY, Node, answer, lose_in_the_middle, started, text, until

pytestmark = pytest.mark.slow
OF_REPLICA_1 = {"X-Data-Parallel-Rank": "1"}
OTHER = ("--data-parallel-start-rank", "1")


def manifest(folder: Path, **more: object) -> Path:
    port = free_port()
    parallel = {
        "data_parallel_size": 2,
        "data_parallel_size_local": 1,
        "data_parallel_address": "127.0.0.1",
        "data_parallel_rpc_port": port,
    }
    file = folder / "deploy.yaml"
    model = {"model": "builtin:tiny", "max_model_len": 256, "dtype": "float32"}
    file.write_text(json.dumps({"model": model, "parallel": parallel | more, "server": {"port": 0}}))
    return file


def states(url: str) -> dict[str, str]:
    return httpx.get(f"{url}/health").json()["replicas"]


def on(rank: int, url: str) -> httpx.Response:
    headers = {"X-Data-Parallel-Rank": str(rank)}
    return httpx.post(f"{url}/v1/completions", json=BODY, headers=headers, timeout=START_LIMIT_S)


@pytest.mark.effect(
    "parallel.data_parallel_address",
    "parallel.data_parallel_rpc_port",
    "parallel.data_parallel_size_local",
    "parallel.data_parallel_start_rank",
    "server.headless",
)
def test_a_server_has_replicas_of_another_machine_and_goes_on_when_these_are_lost(tmp_path: Path):
    file = manifest(tmp_path)
    first, other = Server(file), Node(file, *OTHER)
    with started(first, other):
        url, probe = first.wait_ready(), other.wait_ready()
        assert states(url) == {"0": "ready", "1": "ready"}
        assert httpx.get(probe).json()["state"] == "ready"
        expected = text(on(0, url))
        assert text(on(1, url)) == expected

        def returns() -> None:
            assert text(answer(url)) == expected  # of the other replica
            until(lambda: states(url)["1"] == "ready")
            assert text(on(1, url)) == expected

        # its engine is killed
        lose_in_the_middle(url, other.rank().kill, OF_REPLICA_1)
        until(lambda: "replica 1 on 127.0.0.1: the engine process was ended by SIGKILL" in "".join(first.err))
        returns()

        # the whole machine is stopped
        engine = other.rank()

        def stop() -> None:
            other.process.suspend()
            engine.suspend()

        lose_in_the_middle(url, stop, OF_REPLICA_1)
        until(lambda: "replica 1 on 127.0.0.1: it has been silent for 5 s" in "".join(first.err))
        assert text(answer(url)) == expected
        other.process.resume()
        until(lambda: states(url)["1"] == "ready")
        assert not engine.is_running()
        assert text(on(1, url)) == expected

        # the machine with the API is killed, and started again: the replica connects to it
        engine = other.rank()
        children = first.process.children(recursive=True)
        first.process.send_signal(signal.SIGKILL)
        until(lambda: not engine.is_running())
        psutil.wait_procs([first.process, *children], START_LIMIT_S)
        again = Server(file)
        with started(again):
            url = again.wait_ready()
            assert text(on(1, url)) == expected


def test_a_replica_of_another_deployment_is_refused_by_both(tmp_path: Path):
    file = manifest(tmp_path)
    first, other = Server(file), Node(file, *OTHER, "--block-size", "16")
    with started(first, other):
        assert other.process.wait(START_LIMIT_S) == 78
        assert "`cache.block_size` is not written on node 0 and 16 on" in "".join(other.err)
        until(lambda: "replica 1 of" in "".join(first.err))
        third = Node(file, *OTHER)
        with started(third):
            assert text(on(1, first.wait_ready()))
