"""Processes of a server that are bound: where the kernel says that their threads run and their memory comes from."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest
from tests.e2e.deployment import START_LIMIT_S, Server, serving

from stoker.config.memory_policy import why_no_policy

CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/sys/devices/system/node/node0").exists(), reason="the system has no NUMA nodes"),
    pytest.mark.skipif(bool(why_no_policy()) or len(CPUS) < 2, reason="no memory policy, or one core"),
]
PARALLEL = {"ranks": "{tensor_parallel_size: 2}", "replicas": "{data_parallel_size: 2}"}


def compute_processes(server: Server) -> list[psutil.Process]:
    """Engines and other ranks."""
    engines = server.engines()
    ranks = [each for engine in engines for each in engine.children() if "rank_process" in " ".join(each.cmdline())]
    return [*engines, *ranks]


def cores_of_threads(pid: int) -> set[tuple[int, ...]]:
    tasks = Path(f"/proc/{pid}/task")
    return {tuple(sorted(os.sched_getaffinity(int(thread.name)))) for thread in tasks.iterdir()}


def policies(pid: int) -> set[str]:
    """Of all mappings that have pages of this process alone."""
    lines = Path(f"/proc/{pid}/numa_maps").read_text().splitlines()
    return {line.split()[1] for line in lines if " anon=" in line}


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_ready(url: str) -> bool:
    return httpx.get(f"{url}/readyz", timeout=60).status_code == 200


@pytest.mark.parametrize("parallel", PARALLEL.values(), ids=PARALLEL)
def test_threads_and_memory_of_each_process_are_bound(parallel: str, tmp_path: Path) -> None:
    first, second = CPUS[:2]
    manifest = tmp_path / "deploy.yaml"
    manifest.write_text(
        f"model: {{model: builtin:tiny, max_model_len: 256}}\nparallel: {parallel}\n"
        f'device: {{numa_bind_nodes: [0, 0], numa_bind_cpus: ["{first}", "{second}"]}}\nserver: {{port: 0}}\n'
    )
    with serving(manifest) as (server, url):
        body = {"model": "builtin:tiny", "prompt": "Once", "max_tokens": 8}
        assert httpx.post(f"{url}/v1/completions", json=body, timeout=60).status_code == 200
        processes = compute_processes(server)
        assert sorted(map(tuple, (cores_of_threads(each.pid) for each in processes))) == [((first,),), ((second,),)]
        assert [policies(each.pid) for each in processes] == [{"bind:0"}] * 2
        assert set(CPUS) == set(server.process.cpu_affinity())  # the API is free
        table = "".join(server.out)
        assert f"node 0, core {first}" in table
        assert f"node 0, core {second}" in table


def test_an_engine_that_is_started_again_is_bound_again(tmp_path: Path) -> None:
    manifest = tmp_path / "deploy.yaml"
    manifest.write_text(
        "model: {model: builtin:tiny, max_model_len: 256}\nserver: {port: 0}\n"
        f'device: {{numa_bind_cpus: ["{CPUS[1]}"]}}\n'
    )
    with serving(manifest) as (server, url):
        before = server.engine
        before.kill()
        psutil.wait_procs([before], 60)
        until(lambda: bool(server.engines()))  # the server may not have noticed the end of the first one before
        until(lambda: is_ready(url))
        assert server.engine.pid != before.pid
        assert cores_of_threads(server.engine.pid) == {(CPUS[1],)}
        assert policies(server.engine.pid) == {"bind:0"}
