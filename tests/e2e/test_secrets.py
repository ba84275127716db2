"""A served deployment at its most talkative, asked in every way, shows its key nowhere."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import pytest
from tests.e2e.deployment import serving

PLANTED = "Pa55word-4711"
MANIFEST = """\
model: {model: builtin:tiny, hf_token: {env: HF_PLANTED}, max_model_len: 512}
cache: {num_gpu_blocks_override: 64}
device: {num_threads: 1}
server:
  port: 0
  api_key: [{file: key}, "x${HF_PLANTED}"]
  log_level: debug
  uvicorn_log_level: trace
  log_format: json
  enable_log_requests: true
  enable_log_outputs: true
  log_error_stack: true
  enable_tokenizer_info_endpoint: true
  enable_server_load_tracking: true
"""


@pytest.mark.effect("server.api_key")
def test_neither_answers_nor_logs_nor_the_start_show_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text(f"{PLANTED}\n")
    (tmp_path / "deploy.yaml").write_text(MANIFEST)
    monkeypatch.setenv("HF_PLANTED", PLANTED)
    answers: list[str] = []
    with serving(tmp_path / "deploy.yaml") as (server, url):
        with httpx.Client(base_url=url, timeout=60) as client:
            key = {"authorization": f"Bearer {PLANTED}"}
            assert client.get("/v1/models").status_code == 401
            assert client.get("/v1/models", headers={"authorization": f"Bearer y{PLANTED}"}).status_code == 401
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
                ("GET", f"/v1/models?key={PLANTED}", None, key),
                ("POST", "/v1/chat/completions", {**message, "max_tokens": 4}, key),
                ("POST", "/v1/chat/completions", {**message, "max_tokens": "four"}, key),
                ("POST", "/v1/chat/completions", {**message, "max_tokens": 4}, {"authorization": f"Basic {PLANTED}"}),
            ]
            found = [client.request(verb, path, json=body, headers=headers) for verb, path, body, headers in requests]
            answers += [f"{answer.status_code} {answer.headers} {answer.text}" for answer in found]
            assert found[0].status_code == found[9].status_code == 200
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.wait(30) == 0
        said = "".join([*answers, *server.out, *server.err])
    assert "/v1/chat/completions" in "".join(server.err), "requests are logged"
    assert PLANTED not in said
