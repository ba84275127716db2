"""Routes that clients and supervisors of other servers call: those that exist here, and those that say why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.config.schema.server import ServerConfig
from stoker.engine.client.engine_client import EngineState
from stoker.server.routes.absent import TABLE, disabled
from stoker.server.routes.table import routes_of

from .deployment import MODEL, Served

ABSENT = [path for absent in TABLE for path in absent.paths]
ALL_ON = {
    "enable_server_load_tracking": True,
    "enable_tokenizer_info_endpoint": True,
    "enable_admin_routes": True,
    "enable_lora_routes": True,
    "files_dir": "files",
    "responses_store": "memory",
}


def test_the_probe_of_sagemaker_is_that_of_readiness_and_needs_no_key(folder: Path):
    served = Served(folder, api_key=["secret"])
    assert served.get("/ping").status_code == 200
    served.engine.die(EngineState.RESTARTING)
    assert served.get("/ping").status_code == 503


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"messages": [{"role": "user", "content": "x"}]}, "chat.completion"),
        ({"prompt": "x"}, "text_completion"),
    ],
)
def test_an_invocation_is_a_chat_or_a_completion(folder: Path, fields: dict[str, object], kind: str):
    served = Served(folder)
    body = {"model": MODEL, "max_tokens": 2, **fields}
    assert served.post("/invocations", body).json()["object"] == kind
    assert served.post("/invocations", {"max_tokens": 2, **fields}).json()["model"] == MODEL
    assert served.post("/invocations", {**body, "model": "other"}).status_code == 404
    streamed = served.post("/invocations", {**body, "stream": True})
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert f'"object":"{kind}' in streamed.text


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'"messages"'])
def test_a_bad_invocation_is_a_400(folder: Path, body: bytes):
    assert Served(folder).post("/invocations", body).status_code == 400


def test_an_invocation_needs_a_key(folder: Path):
    assert Served(folder, api_key=["secret"]).post("/invocations", {"prompt": "x"}).status_code == 401


@pytest.mark.effect("server.enable_admin_routes")
def test_after_a_reset_requests_share_no_prefix_with_those_before(folder: Path):
    served = Served(folder, enable_admin_routes=True)
    for _ in range(2):
        served.complete(max_tokens=1)
    assert served.post("/reset_prefix_cache").status_code == 200
    for _ in range(2):
        served.complete(max_tokens=1)
    assert [request.inputs.scope.epoch for request in served.engine.requests] == [0, 0, 1, 1]
    assert {request.inputs.scope.salt for request in served.engine.requests} == {""}
    assert Served(folder).post("/reset_prefix_cache").status_code == 404
    guarded = Served(folder, enable_admin_routes=True, api_key=["secret"])
    assert guarded.post("/reset_prefix_cache").status_code == 401


def test_server_info_has_the_engine_and_the_configuration_without_secrets(folder: Path):
    served = Served(folder, api_key=["secret"])
    assert served.get("/server_info").status_code == 401
    answer = served.get("/server_info", headers={"authorization": "Bearer secret"})
    shown = answer.json()
    assert (shown["model"], shown["state"], shown["engine"]["block_size"]) == (MODEL, "ready", 16)
    assert "secret" not in answer.text.replace("secrets", "")
    assert shown["config"]


@pytest.mark.effect("server.routes_without_key")
def test_only_the_named_routes_are_open_on_a_server_with_keys(folder: Path):
    served = Served(folder, api_key=["secret"], routes_without_key=("/metrics", "/version"))
    paths = ("/metrics", "/version", "/v1/models", "/config", "/openapi.json")
    assert [served.get(path).status_code for path in paths] == [200, 200, 401, 401, 401]
    closed = Served(folder, api_key=["secret"])
    assert [closed.get(path).status_code for path in paths] == [401] * 5
    described = served.get("/openapi.json", headers={"authorization": "Bearer secret"}).json()["paths"]
    assert described["/metrics"]["get"]["security"] == []
    assert described["/config"]["get"]["security"] == [{"key": []}]


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_a_route_of_another_server_says_why_it_is_absent(folder: Path, method: str):
    served, closed = Served(folder), Served(folder, api_key=["secret"])
    for path in ABSENT:
        called = path.replace("{rest:path}", "x/y")
        answer = served.request(method, called)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (404, "not_found"), path
        assert error["message"].startswith(f"{called}, a route of "), path
        assert closed.request(method, called).status_code == 401, path


def test_a_route_that_an_option_adds_names_the_option(folder: Path):
    served = Served(folder, disable_docs=True)
    for path, option in {
        "/load": "enable_server_load_tracking: true",
        "/tokenizer_info": "enable_tokenizer_info_endpoint: true",
        "/reset_prefix_cache": "enable_admin_routes: true",
        "/v1/load_lora_adapter": "enable_lora_routes: true",
        "/v1/unload_lora_adapter": "enable_lora_routes: true",
        "/docs": "disable_docs: false",
    }.items():
        assert f"`server.{option}` adds it" in served.get(path).json()["error"]["message"]
    assert list(disabled(ServerConfig(**ALL_ON), has_profiler=True, has_sleep=True)) == []


def test_no_route_is_served_and_absent() -> None:
    served = {route.path for route in routes_of(ServerConfig(**ALL_ON), has_profiler=True, has_sleep=True)}
    assert served & set(ABSENT) == set()
    assert len(set(ABSENT)) == len(ABSENT)
