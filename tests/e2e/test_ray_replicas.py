"""One server whose replicas are actors of Ray: their answers, their end, and the end of the server."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil
import pytest

from .deployment import ENGINE_MODULE, START_LIMIT_S, Server
from .test_nodes import BODY, started, text, until
from .test_replicas_on_nodes import on, states

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Ray that servers connect to."""
    found = ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    monkeypatch.setenv("RAY_ADDRESS", found.address_info["address"])
    yield
    ray.shutdown()


def engines() -> list[psutil.Process]:
    """In actors: Ray's processes are those of this one."""
    return [each for each in psutil.Process().children(recursive=True) if ENGINE_MODULE in _words(each)]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def reserved() -> list[dict[str, object]]:
    """The places in Ray that are not given back."""
    groups = ray.util.placement_group_table().values()
    return [group for group in groups if group["state"] != "REMOVED"]


@pytest.mark.effect("parallel.data_parallel_backend")
def test_actors_serve_are_replaced_and_end_with_the_server(tmp_path: Path, cluster: None):
    file = tmp_path / "deploy.yaml"
    model = {"model": "builtin:tiny", "max_model_len": 256, "dtype": "float32"}
    parallel = {"data_parallel_size": 2, "data_parallel_backend": "ray"}
    device = {"num_threads": 1}
    file.write_text(json.dumps({"model": model, "parallel": parallel, "device": device, "server": {"port": 0}}))

    server = Server(file)
    with started(server):
        url = server.wait_ready()
        assert states(url) == {"0": "ready", "1": "ready"}
        assert "2, actors of Ray; what" in "".join(server.out)
        assert server.engines() == []
        (places,) = reserved()
        assert [place["CPU"] for place in places["bundles"].values()] == [1, 1]
        expected = text(on(0, url))
        assert text(on(1, url)) == expected

        # an actor is killed: its replica's request ends with an error, that of the other goes on
        victim = engines()[0].parent()
        with ExitStack() as stack:
            streams = [stack.enter_context(stream(url, rank)).iter_lines() for rank in (0, 1)]
            assert all("choices" in next(lines) for lines in streams)
            victim.kill()
            lost = [any("engine_restarting" in line for line in lines) for lines in streams]
        assert sorted(lost) == [False, True]
        assert text(on(lost.index(False), url)) == expected
        until(lambda: set(states(url).values()) == {"ready"})
        assert text(on(lost.index(True), url)) == expected
        assert victim not in [engine.parent() for engine in engines()]

        server.process.send_signal(signal.SIGKILL)
        until(lambda: not engines() and not reserved())

    again = Server(file)
    with started(again):
        assert text(on(1, again.wait_ready())) == expected
        again.process.terminate()
        assert again.wait() == 0
        assert not reserved()
        until(lambda: not engines())


def stream(url: str, rank: int) -> object:
    headers = {"X-Data-Parallel-Rank": str(rank)}
    body = BODY | {"stream": True, "max_tokens": 240}
    return httpx.stream("POST", f"{url}/v1/completions", json=body, headers=headers, timeout=START_LIMIT_S)
