"""A model whose second process is an actor of Ray: its answers, and its end."""

from __future__ import annotations

import json
import re
from pathlib import Path

import openai
import psutil
import pytest

from .deployment import Server
from .test_nodes import lose_in_the_middle, started, until

pytest.importorskip("ray")
pytestmark = pytest.mark.slow


def rank_and_actor(server: Server) -> tuple[psutil.Process, psutil.Process]:
    for each in server.engine.children(recursive=True):
        if "stoker.engine.rank_process" in each.cmdline():
            return each, each.parent()
    raise AssertionError("no process of rank 1")


def test_an_actor_computes_and_the_engine_ends_with_it(tmp_path: Path):
    file = tmp_path / "deploy.yaml"
    model = {"model": "builtin:tiny", "max_model_len": 256, "dtype": "float32"}
    parallel = {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}
    file.write_text(json.dumps({"model": model, "parallel": parallel, "server": {"port": 0}}))
    server = Server(file)
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
