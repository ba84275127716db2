"""Two replicas on a local Ray: chat, streams, the end of an engine, and errors before the start."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from tests.free_ports import free_port

from stoker.config.errors import ConfigError

ray = pytest.importorskip("ray")
serve = pytest.importorskip("ray.serve")

pytestmark = pytest.mark.slow
MODEL = "builtin:tiny"
MESSAGES: Any = [{"role": "user", "content": "What does max_num_seqs do?"}]
LIMIT_S = 180.0  # generous: processes start


def _until(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_done():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


class _Running:
    def __init__(self, handle: Any, port: int) -> None:
        self._handle = handle
        self.client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=5)

    def ask(self) -> str:
        answer = self.client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=16, temperature=0)
        return answer.choices[0].message.content or ""

    def replicas(self) -> dict[int, dict[str, Any]]:
        """By process. A handle chooses one at a time, so all are found by repetition."""
        found = {}
        for _ in range(16):
            try:
                each = self._handle.describe.remote().result(timeout_s=LIMIT_S)
            except ray.exceptions.RayActorError:  # it ended while it was asked
                continue
            found[each["pid"]] = each
        return found


@pytest.fixture(scope="module")
def running() -> Iterator[_Running]:
    from stoker.ray import app_builder

    port = free_port()
    with pytest.MonkeyPatch.context() as patch:  # by itself it gives up a proxy whose process takes 15 s to start
        patch.setenv("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", str(LIMIT_S))
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        app = app_builder(
            {
                "deployment": "deployments/tiny.yaml",
                "overrides": "--device cpu --num-threads 1",
                "num_replicas": 2,
                "ray_actor_options": {"num_cpus": 1},
            }
        )
        yield _Running(serve.run(app), port)
    finally:
        serve.shutdown()
        ray.shutdown()


def test_a_stream_has_the_text_of_the_answer(running: _Running):
    chunks = running.client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=16, temperature=0, stream=True
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == running.ask() != ""


def test_both_replicas_serve(running: _Running):
    def both_generated() -> bool:
        running.ask()
        found = running.replicas().values()
        return len(found) == 2 and all(each["generated_tokens"] for each in found)

    _until(both_generated)


def test_a_client_that_leaves_ends_its_request(running: _Running):
    stream = running.client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=900, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    assert sum(each["open_requests"] for each in running.replicas().values()) == 1
    stream.close()
    _until(lambda: not any(each["open_requests"] for each in running.replicas().values()))
    assert sum(each["generated_tokens"] for each in running.replicas().values()) < 900


def test_an_error_of_a_request_is_that_of_the_api(running: _Running):
    with pytest.raises(openai.NotFoundError) as raised:
        running.client.chat.completions.create(model="other", messages=MESSAGES)
    assert raised.value.code == "model_not_found"


def test_requests_go_on_while_ray_replaces_a_replica_whose_engine_was_killed(running: _Running):
    _until(lambda: len(running.replicas()) == 2)
    before = running.replicas()
    victim = next(iter(before.values()))
    expected = running.ask()
    os.kill(victim["engine_pid"], signal.SIGKILL)

    def is_replaced() -> bool:
        assert running.ask() == expected
        now = running.replicas()
        return victim["pid"] not in now and len(now) == 2

    _until(is_replaced)
    assert {each["state"] for each in running.replicas().values()} == {"ready"}


def test_the_end_of_the_application_waits_for_open_requests(running: _Running):
    """The last test with this application."""
    stream = running.client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=400, stream=True, extra_body={"ignore_eos": True}
    )
    chunks = iter(stream)
    next(chunks)
    end = threading.Thread(target=serve.delete, args=("default",))
    end.start()
    rest = [chunk for chunk in chunks if chunk.choices]
    end.join(LIMIT_S)
    assert rest[-1].choices[0].finish_reason == "length"


def test_a_wrong_deployment_fails_before_any_actor():
    from stoker.ray import build_app

    with pytest.raises(ConfigError, match=r"`scheduler\.max_num_seqs` is 0"):
        build_app("deployments/tiny.yaml", ("--max-num-seqs", "0"))


def test_a_wrong_argument_is_named():
    from stoker.ray import app_builder

    with pytest.raises(ValueError, match="replicas"):
        app_builder({"deployment": "deployments/tiny.yaml", "replicas": 2})
