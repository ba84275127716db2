"""A deployment with all logging enabled does not show its key, whatever is requested. Its engine does not get it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import pytest
from tests.e2e.deployment import serving

pytestmark = pytest.mark.slow

SECRET = "Pa55word-4711"
MANIFEST = """\
model: {model: builtin:tiny, hf_token: {env: HF_SECRET}, max_model_len: 512}
cache: {num_gpu_blocks_override: 64}
device: {num_threads: 1}
server:
  port: 0
  api_key: [{file: key}, "x${HF_SECRET}"]
  log_level: debug
  http_log_level: trace
  log_format: json
  enable_log_requests: true
  enable_log_outputs: true
  log_error_stack: true
  enable_tokenizer_info_endpoint: true
  enable_server_load_tracking: true
"""


@pytest.mark.effect("server.api_key")
def test_no_response_log_line_or_start_output_contains_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text(f"{SECRET}\n")
    (tmp_path / "deploy.yaml").write_text(MANIFEST)
    monkeypatch.setenv("HF_SECRET", SECRET)
    answers: list[str] = []
    with serving(tmp_path / "deploy.yaml") as (server, url):
        with httpx.Client(base_url=url, timeout=60) as client:
            key = {"authorization": f"Bearer {SECRET}"}
            assert client.get("/v1/models").status_code == 401
            assert client.get("/v1/models", headers={"authorization": f"Bearer y{SECRET}"}).status_code == 401
            message = {"model": "builtin:tiny", "messages": [{"role": "user", "content": "What is 2 + 3?"}]}
            requests = [
                ("GET", "/config", None, key),
                ("GET", "/v1/models", None, key),
                ("GET", "/metrics", None, key),
                ("GET", "/version", None, key),
                ("GET", "/load", None, key),
                ("GET", "/tokenizer_info", None, key),
                ("GET", "/health", None, {}),
                ("GET", "/nowhere", None, key),
                ("GET", f"/v1/models?key={SECRET}", None, key),
                ("POST", "/v1/chat/completions", {**message, "max_tokens": 4}, key),
                ("POST", "/v1/chat/completions", {**message, "max_tokens": "four"}, key),
                ("POST", "/v1/chat/completions", {**message, "max_tokens": 4}, {"authorization": f"Basic {SECRET}"}),
            ]
            found = [client.request(verb, path, json=body, headers=headers) for verb, path, body, headers in requests]
            answers += [f"{answer.status_code} {answer.headers} {answer.text}" for answer in found]
            assert found[0].status_code == found[9].status_code == 200
        answers.append(str(server.engine.environ()))
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.wait() == 0
        output = "".join([*answers, *server.out, *server.err])
    assert "/v1/chat/completions" in "".join(server.err), "requests are logged"
    assert SECRET not in output
