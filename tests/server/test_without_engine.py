"""`server.engine: none`: a tokenizer and a chat template, and no weights, engine or GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.flags.checking import PlanFlags
from stoker.cli.plan import run as plan
from stoker.cli.prepare import engine_client
from stoker.config import load_deployment, read_machine_spec, read_model_files, resolve_deployment
from stoker.config.fetch import fetch_model
from stoker.config.importer.read import import_script
from stoker.server.app import build_app
from stoker.server.run import load_text
from stoker.server.service import Service

from ..fakes import FakeEngine
from ..tiny_tokenizer import write_tokenizer
from .deployment import PROCESSES, Served

LARGE = {  # 70 billion parameters, of which there is not one here
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 400,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096,
    "eos_token_id": 2,
    "dtype": "bfloat16",
}
MESSAGES = [{"role": "user", "content": "Hello"}]
OPTIONS = ["--engine", "none", "--tool-call-parser", "hermes"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = write_tokenizer(tmp_path / "model")
    (folder / "config.json").write_text(json.dumps(LARGE))
    return folder


def serving(model: Path, *options: str) -> Served:
    deployment = load_deployment([], ["--model", str(model), *OPTIONS, *options])
    assert fetch_model(deployment) == model
    settings = resolve_deployment(deployment, read_model_files(deployment), read_machine_spec())
    tokenizer, renderer, answers = load_text(settings, PROCESSES)
    served = Served(model, FakeEngine())
    served.service = Service(
        settings, engine_client(settings, lambda phase: None), tokenizer, renderer, answers=answers
    )
    served.app = build_app(served.service)
    return served


@pytest.mark.effect("server.engine")
def test_what_needs_a_tokenizer_is_served_and_what_needs_an_engine_says_so(model: Path):
    served = serving(model)
    rendered = served.post("/v1/chat/completions/render", {"messages": MESSAGES, "max_tokens": 5}).json()
    assert served.post("/tokenize", {"messages": MESSAGES}).json()["tokens"] == rendered["token_ids"]
    text = "<think>\nHm.\n</think>\n\nHi"
    token_ids = served.post("/tokenize", {"prompt": text}).json()["tokens"]
    sent: dict[str, Any] = {"chat_request": {"messages": MESSAGES}, "prompt_token_ids": rendered["token_ids"]}
    sent["generate_response"] = {"request_id": "a", "choices": [{"token_ids": [*token_ids, 2]}]}
    answer = served.post("/v1/chat/completions/derender", sent).json()
    message = answer["choices"][0]["message"]
    assert (message["content"].strip().endswith("Hi"), answer["choices"][0]["finish_reason"]) == (True, "stop")
    assert served.post("/v1/messages/count_tokens", {"messages": MESSAGES, "model": str(model)}).status_code == 200
    for path in ("/v1/models", "/health", "/readyz", "/livez", "/metrics", "/version", "/server_info", "/config"):
        assert served.get(path).status_code == 200, path
    assert "/v1/chat/completions/render" in served.get("/openapi.json").json()["paths"]
    assert "/v1/chat/completions" not in served.get("/openapi.json").json()["paths"]
    body = {"messages": MESSAGES}
    for path in ("/v1/chat/completions", "/v1/completions", "/inference/v1/generate", "/v1/responses", "/v1/messages"):
        error = served.post(path, body).json()["error"]
        assert "server.engine: none" in error["message"], path


def test_options_of_the_engine_are_left_out_and_named(model: Path):
    """A file that is meant for the servers that generate is used as it is."""
    more = ["--device", "cuda", "--tensor-parallel-size", "8", "--max-num-seqs", "3", "--max-model-len", "1024"]
    deployment = load_deployment([], ["--model", str(model), *OPTIONS, *more])
    (warning,) = (finding for finding in deployment.warnings if finding.code == "C127")
    for path in ("device.device", "parallel.tensor_parallel_size", "scheduler.max_num_seqs"):
        assert f"`{path}`" in warning.message
    assert serving(model, *more).get("/v1/models").json()["data"][0]["max_model_len"] == 1024


def test_a_plan_says_that_nothing_is_computed(model: Path, capsys: pytest.CaptureFixture[str]):
    assert plan([], ["--model", str(model), *OPTIONS], PlanFlags()) == 0
    assert capsys.readouterr().out.startswith("fits: `server.engine` is none: no weights are read")
    assert plan([], ["--model", str(model), *OPTIONS], PlanFlags(output="json")) == 0
    assert json.loads(capsys.readouterr().out)["engine"] == "none"


def test_a_launch_that_only_renders_is_imported_as_such():
    assert import_script("vllm launch render m --port 8001").values["server.engine"].text == "none"
