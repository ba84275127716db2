"""A model whose second process is an actor of Ray: its answers, and its end."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from pathlib import Path

import openai
import psutil
import pytest
from tests.stand_in_nsys import write_nsys

from .deployment import Server
from .test_nodes import lose_in_the_middle, started, until

pytest.importorskip("ray")
pytestmark = pytest.mark.slow


def rank_and_actor(server: Server) -> tuple[psutil.Process, psutil.Process]:
    for each in server.engine.children(recursive=True):
        if "stoker.engine.rank_process" in each.cmdline():
            return each, each.parent()
    raise AssertionError("no process of rank 1")


def deployed(folder: Path, **parallel: object) -> Path:
    """The file of a deployment whose second process is an actor."""
    file = folder / "deploy.yaml"
    model = {"model": "builtin:tiny", "max_model_len": 256, "dtype": "float32"}
    on_ray = {"tensor_parallel_size": 2, "distributed_executor_backend": "ray", **parallel}
    file.write_text(json.dumps({"model": model, "parallel": on_ray, "server": {"port": 0}}))
    return file


def test_an_actor_computes_and_the_engine_ends_with_it(tmp_path: Path):
    server = Server(deployed(tmp_path))
    with started(server):
        url = server.wait_ready()
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

        def hello() -> str:
            messages = [{"role": "user", "content": "Hello"}]
            answer = client.chat.completions.create(
                model="builtin:tiny", messages=messages, temperature=0, max_tokens=16
            )
            return answer.choices[0].message.content

        assert hello()
        rank, actor = rank_and_actor(server)
        lose_in_the_middle(url, actor.kill)
        assert re.search(r"rank 1 of the model \(Ray, .*\) has closed its connection", "".join(server.err))
        until(lambda: not rank.is_running() and not actor.is_running())


@pytest.mark.effect("parallel.ray_workers_use_nsight")
def test_a_rank_runs_under_nsys_which_outlives_the_engine_for_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
):
    record = write_nsys(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    folder = Path(tempfile.mkdtemp(prefix="nsys"))  # short: Ray has sockets in it
    request.addfinalizer(lambda: shutil.rmtree(folder, ignore_errors=True))
    monkeypatch.setenv("TMPDIR", str(folder))
    server = Server(deployed(tmp_path, ray_workers_use_nsight=True))
    with started(server):
        client = openai.OpenAI(base_url=f"{server.wait_ready()}/v1", api_key="none", max_retries=0)
        assert client.completions.create(model="builtin:tiny", prompt="Hello", max_tokens=4).choices[0].text
        words = json.loads(record.read_text())
        assert words[:2] == ["profile", "--trace=osrt,nvtx"]
        assert words[4:8] == ["-m", "stoker.engine.rank_process", "--rank", "1"]
    until(lambda: len(list(folder.glob("stoker-nsight-*/rank-1-*.nsys-rep"))) == 1)


def test_a_machine_of_ray_without_nsys_ends_the_start(tmp_path: Path):
    server = Server(deployed(tmp_path, ray_workers_use_nsight=True))
    with started(server):
        with pytest.raises(AssertionError, match="not ready"):
            server.wait_ready()
        assert "needs `nsys`, which is not in the PATH of Ray" in "".join(server.err)
