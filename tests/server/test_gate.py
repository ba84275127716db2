"""What applies to every route: API keys, probes, metrics, header limits, access log."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from stoker.config.schema.server import ServerConfig
from stoker.engine.client.engine_client import EngineState
from stoker.logs import JsonFormatter
from stoker.server.access.auth import open_paths
from stoker.server.http.limits import UNCOUNTED_BYTES
from stoker.server.page.files import page_paths
from stoker.server.routes.absent import TABLE
from stoker.server.routes.page import assets
from stoker.server.routes.table import routes_of

from .. import virtual_time
from ..fakes import FakeEngine
from ..virtual_time import now
from .deployment import MODEL, Served, on_a_socket

METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE")
ON_DEMAND = {
    "enable_server_load_tracking": True,
    "enable_tokenizer_info_endpoint": True,
    "enable_admin_routes": True,
    "enable_lora_routes": True,
    "files_dir": "files",
    "responses_store": "memory",
}
OPEN = open_paths(ServerConfig(**ON_DEMAND))
PAGES = frozenset(page_paths(ServerConfig(**ON_DEMAND)))  # which are read without a key; POST / is another route
ROUTES = routes_of(ServerConfig(**ON_DEMAND), has_profiler=True, has_sleep=True)
PATHS = [route.path.replace("{model:path}", MODEL) for route in ROUTES]
ASSETS = list(assets(ServerConfig()))
ABSENT = [path for absent in TABLE for path in absent.paths]
PATHS += [path.replace("{rest:path}", "x") for path in ABSENT]
PATHS += ["/page/main.js", "/page/files.py", "/nowhere", "//v1/models", "/v1/models/"]
KEYS = [
    {},
    {"authorization": "Bearer wrong"},
    {"authorization": "Bearer "},
    {"authorization": "secret"},
    {"authorization": "Basic secret"},
    {"x-api-key": "wrong"},
    {"x-api-key": "secret", "authorization": "Bearer other"},
    {"cookie": "key=secret"},
    {"host": "test/health?x="},
    {"host": "test#/health"},
    {"x-forwarded-prefix": "/health"},
]


def test_the_app_serves_exactly_the_table_of_routes(folder: Path):
    served = Served(folder, **ON_DEMAND)
    routes = [route for route in served.app.routes if isinstance(route, Route)]
    assert len(routes) == len(served.app.routes) == len(ROUTES) + len(ASSETS) + len(ABSENT)
    assert {route.path for route in routes if route.path in OPEN} == OPEN


@pytest.mark.effect("server.api_key")
@pytest.mark.slow
def test_no_route_method_or_header_bypasses_a_missing_key(folder: Path):
    served = Served(folder, api_key=["secret"], **ON_DEMAND)

    async def run() -> list[tuple[str, str, dict[str, str], int]]:
        async with served.client() as client:
            return [
                (
                    method,
                    path,
                    headers,
                    (await client.request(method, f"http://test{path}", headers=headers)).status_code,
                )
                for method in METHODS
                for path in PATHS
                for headers in KEYS
            ]

    results = asyncio.run(run())
    assert len(results) == len(METHODS) * len(PATHS) * len(KEYS)
    for method, path, headers, status in results:
        if path in PAGES and method in ("GET", "HEAD"):
            assert status == 200, (method, path, headers)
        elif path in OPEN:
            assert status == (200 if method in ("GET", "HEAD") else 405), (method, path, headers)
        else:
            assert status == 401, (method, path, headers)
    assert served.engine.requests == []


def test_a_response_to_a_wrong_key_says_how_to_authenticate(folder: Path):
    """Its type was `invalid_request_error`, for which LiteLLM raises BadRequestError, not AuthenticationError."""
    response = Served(folder, api_key=["secret"]).get("/v1/models?api_key=secret")
    assert response.status_code == 401
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
    assert response.headers["www-authenticate"] == "Bearer"
    assert "secret" not in response.text


@pytest.mark.parametrize("key", ["one", "zwei 2"])
def test_each_of_several_keys_is_accepted(folder: Path, key: str):
    served = Served(folder, api_key=["one", "zwei 2"])
    headers = [(b"authorization", b"bearer " + key.encode())]
    assert served.get("/v1/models", headers=headers).status_code == 200


def test_two_authorization_headers_are_refused(folder: Path):
    served = Served(folder, api_key=["one"])
    headers = [("authorization", "Bearer one"), ("authorization", "Bearer one")]
    assert served.get("/v1/models", headers=headers).status_code == 401


def test_no_cors_header_is_sent_by_default(served: Served):
    response = served.get("/v1/models", headers={"origin": "http://evil.example"})
    assert not [name for name in response.headers if name.startswith("access-control")]


STATES = [
    (EngineState.READY, 200, 200, ""),
    (EngineState.STARTING, 200, 503, "engine_starting"),
    (EngineState.RESTARTING, 200, 503, "engine_restarting"),
    (EngineState.STALLED, 503, 503, "engine_stalled"),
    (EngineState.DEAD, 503, 503, "engine_dead"),
]


@pytest.mark.parametrize(("state", "alive", "ready", "code"), STATES)
def test_probes_distinguish_alive_from_ready(served: Served, state: EngineState, alive: int, ready: int, code: str):
    served.engine.state, served.engine.reason = state, "why" if code else ""
    assert served.get("/livez").status_code == alive
    assert served.get("/health").status_code == ready
    response = served.get("/readyz")
    assert response.status_code == ready
    if code:
        assert response.json()["error"]["code"] == code
        assert response.json()["reason"] == "why"
        assert int(response.headers["retry-after"]) >= 1
        refused = served.chat()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, code)
        assert int(refused.headers["retry-after"]) >= 1


def test_a_draining_server_is_not_ready_and_serves_requests_that_have_arrived(served: Served):
    served.is_draining = True
    assert served.get("/readyz").json()["error"]["code"] == "server_shutting_down"
    assert served.get("/livez").status_code == 200
    assert served.chat(max_tokens=1).status_code == 200


def test_a_full_queue_is_a_429_with_retry_after(folder: Path):
    served = Served(folder, FakeEngine(max_queued=0))
    for stream in (False, True):
        response = served.chat(stream=stream)
        assert response.status_code == 429
        assert response.json()["error"]["type"] == "rate_limit_error"
        assert response.json()["error"]["code"] == "queue_full"
        assert response.headers["retry-after"] == "3"


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ([("x-big", "x" * 40_000)], 431, "headers_too_large"),
        ([(f"x-{index}", "1") for index in range(300)], 431, "headers_too_large"),
        ([("content-length", "2"), ("transfer-encoding", "chunked")], 400, "bad_request"),
        ([("content-length", "2"), ("content-length", "3")], 400, "bad_request"),
        ([("content-length", "+2")], 400, "bad_request"),
        ([("content-length", str(40 << 20))], 413, "request_too_large"),
        ([("content-length", "9" * 400)], 413, "request_too_large"),
    ],
)
def test_headers_beyond_the_limits_are_refused_and_the_connection_is_closed(
    served: Served, headers: list[tuple[str, str]], status: int, code: str
):
    response = served.request("POST", "/v1/completions", headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert response.headers["connection"] == "close"


@pytest.mark.effect("server.max_request_bytes")
@pytest.mark.parametrize(("size", "status"), [(999, 400), (1000, 400), (1001, 413)])
def test_a_body_is_accepted_up_to_its_limit_also_without_content_length(folder: Path, size: int, status: int):
    served = Served(folder, max_request_bytes=1000)

    async def pieces() -> Any:
        for _ in range(size):
            yield b" "

    response = served.request("POST", "/v1/completions", content=pieces(), headers={"content-type": "application/json"})
    assert response.status_code == status


@pytest.mark.effect("server.body_idle_timeout")
def test_a_body_that_stops_arriving_is_a_408(folder: Path):
    served = Served(folder, body_idle_timeout=7)

    async def run() -> dict[str, Any]:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            return {}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = httpx_scope("POST", "/v1/completions")
        await served.app(scope, receive, send)
        assert now() == 7
        return sent[0]

    answer = virtual_time.run(run())
    assert answer["status"] == 408
    assert (b"connection", b"close") in answer["headers"]


@pytest.mark.effect("server.body_timeout")
def test_a_slow_body_is_a_408_however_short_its_gaps(folder: Path):
    served = Served(folder, body_timeout=70, body_idle_timeout=7)

    async def run() -> int:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(6)  # virtual
            return {"type": "http.request", "body": b" ", "more_body": True}

        async def send(message: Any) -> None:
            sent.append(message)

        await served.app(httpx_scope("POST", "/v1/completions"), receive, send)
        assert now() == 70
        return sent[0]["status"]

    assert virtual_time.run(run()) == 408


def httpx_scope(method: str, path: str) -> dict[str, Any]:
    headers = [(b"content-type", b"application/json")]
    return {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": headers, "root_path": "", "asgi": {"version": "3.0"}, "http_version": "1.1"}  # fmt: skip


@pytest.mark.effect("server.enable_request_id_headers")
def test_valid_request_ids_are_echoed_and_others_are_replaced(folder: Path):
    served = Served(folder, enable_request_id_headers=True)
    assert served.get("/version", headers={"x-request-id": "abc.1"}).headers["x-request-id"] == "abc.1"
    made = served.get("/version", headers={"x-request-id": "a b\t<script>"}).headers["x-request-id"]
    assert len(made) == 32
    assert served.get("/nowhere").headers["x-request-id"]
    served = Served(folder)
    assert "x-request-id" not in served.get("/version").headers
    assert served.get("/nowhere", headers={"x-request-id": "abc.1"}).headers["x-request-id"] == "abc.1"


def test_a_request_id_is_in_the_header_the_answer_and_the_log(folder: Path, caplog: pytest.LogCaptureFixture):
    """The header had an id of its own, which was in no log line; refused requests had none in the log."""
    caplog.set_level(logging.INFO)

    def logged() -> dict[str, Any]:
        return [record.fields for record in caplog.records if record.name.startswith("stoker")][-1]

    served = Served(folder, enable_request_id_headers=True)
    for send, prefix in ((served.chat, "chatcmpl"), (served.complete, "cmpl")):
        response = send(max_tokens=2)
        made = response.headers["x-request-id"]
        assert response.json()["id"] == f"{prefix}-{made}"
        assert logged()["id"] == f"{prefix}-{made}"
    for path in ("/nowhere", "/v1/models"):
        assert served.get(path).headers["x-request-id"] == logged()["id"]
    Served(folder).get("/nowhere", headers={"x-request-id": "abc.1"})
    assert logged()["id"] == "abc.1"
    Served(folder).get("/nowhere")
    assert len(logged()["id"]) == 32


def test_every_log_line_of_a_request_has_its_id(folder: Path, caplog: pytest.LogCaptureFixture):
    """The traceback of a failed request had none, so the request that it belongs to could not be found."""
    served, text, logger = Served(folder), io.StringIO(), logging.getLogger("stoker")
    served.engine.generate = None  # type: ignore[assignment]
    handler = logging.StreamHandler(text)
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    caplog.set_level(logging.INFO)
    body = {"messages": [{"role": "user", "content": "Hello"}]}
    try:
        assert served.post("/v1/chat/completions", body, headers={"x-request-id": "abc.1"}).status_code == 500
    finally:
        logger.removeHandler(handler)
    failed, finished = (json.loads(line) for line in text.getvalue().splitlines())
    assert (failed["message"], failed["id"]) == ("a request failed", "abc.1")
    assert finished["id"].startswith("chatcmpl-abc.1")


@pytest.mark.effect("server.root_path")
def test_a_path_prefix_from_a_proxy_is_removed(folder: Path):
    served = Served(folder, root_path="/llm", api_key=["k"])
    for path in ("/llm/v1/models", "/v1/models"):
        assert served.get(path, headers={"authorization": "Bearer k"}).status_code == 200
        assert served.get(path).status_code == 401
    assert served.get("/llm/health").status_code == 200
    assert served.get("/llm").status_code == 401


def test_metrics_count_requests_tokens_and_times(saying: Callable[..., Served]):
    served = saying("Hello world")
    generated = served.chat().json()["usage"]["completion_tokens"]
    served.chat(max_tokens=1)
    served.chat(temperature="hot")
    text = served.get("/metrics").text
    assert served.metric('stoker_requests_finished_total{finish_reason="stop",model_name="org/tiny"}') == 1
    assert served.metric('stoker_requests_finished_total{finish_reason="length",model_name="org/tiny"}') == 1
    assert served.metric('stoker_generation_tokens_total{model_name="org/tiny"}') == generated + 1
    assert served.metric('stoker_time_to_first_token_seconds_count{model_name="org/tiny"}') == 2
    assert served.metric('stoker_inter_token_latency_seconds_count{model_name="org/tiny"}') == generated - 1
    assert served.metric('stoker_engine_state{engine="0",model_name="org/tiny",state="ready"}') == 1
    assert served.metric('stoker_http_requests_total{method="POST",route="/v1/chat/completions",status="400"}') == 1
    helped = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP") and len(line.split()) > 3}
    named = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert {name for name in named if not name.endswith("_created")} <= helped
    assert all(name.startswith(("stoker_", "vllm:", "process_")) for name in named)


def test_a_finished_request_is_one_log_line(folder: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    served = Served(folder)
    served.chat(max_tokens=3, ignore_eos=True)
    served.get("/health")
    served.get("/metrics")
    (finish,) = [record for record in caplog.records if record.name.startswith("stoker")]
    assert finish.getMessage() == "POST /v1/chat/completions"
    assert (finish.fields["status"], finish.fields["finish"], finish.fields["generated_tokens"]) == (200, "length", 3)
    assert finish.fields["id"] == served.engine.requests[0].request_id


def test_the_version_is_that_of_the_package(served: Served):
    from stoker import __version__

    assert served.get("/version").json() == {"version": __version__}


def test_errors_of_every_kind_share_one_shape(folder: Path):
    served = Served(folder, api_key=["k"], max_request_bytes=100)
    authorised = {"authorization": "Bearer k"}
    answers: list[httpx.Response] = [
        served.get("/v1/models"),
        served.get("/nowhere", headers=authorised),
        served.request("PUT", "/v1/models", headers=authorised),
        served.request("POST", "/v1/completions", headers=authorised, content=b"x"),
        served.request("POST", "/v1/completions", headers=authorised, content=b"x" * 101),
    ]
    assert [answer.status_code for answer in answers] == [401, 404, 405, 415, 413]
    for answer in answers:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


class Upload:
    """A body that is being sent to a served deployment."""

    def __init__(self, served: Served, declared: int) -> None:
        self.parts: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[dict[str, Any]] = []
        scope = {
            "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": "/v1/completions",
            "raw_path": b"/v1/completions", "root_path": "", "query_string": b"", "client": None, "server": None,
            "headers": [(b"content-type", b"application/json"), (b"content-length", str(declared).encode())],
        }  # fmt: skip
        self.call = asyncio.ensure_future(served.app(scope, self.parts.get, self._keep))

    async def _keep(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    def send(self, part: bytes, *, is_last: bool = False) -> None:
        self.parts.put_nowait({"type": "http.request", "body": part, "more_body": not is_last})

    def leave(self) -> None:
        self.parts.put_nowait({"type": "http.disconnect"})

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None


async def until_idle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


PART = b" " * UNCOUNTED_BYTES


@pytest.mark.effect("server.max_total_request_bytes")
def test_all_unfinished_bodies_together_are_limited(folder: Path):
    """Forty unfinished bodies of 30 MB held 1.2 GB."""

    async def run() -> None:
        served = Served(folder, max_total_request_bytes=3 * len(PART))
        uploads = [Upload(served, 10 * len(PART)) for _ in range(3)]
        for upload in uploads:
            upload.send(PART)
            upload.send(PART)
        await until_idle()
        assert [upload.status for upload in uploads] == [None, None, None]
        uploads[0].send(PART)
        await until_idle()
        assert [upload.status for upload in uploads] == [503, None, None]
        headers = dict(uploads[0].sent[0]["headers"])
        assert (headers[b"retry-after"], headers[b"connection"]) == (b"1", b"close")
        assert json.loads(uploads[0].sent[1]["body"])["error"]["code"] == "too_many_bodies"
        uploads[1].send(PART)  # what the refused one held is free
        await until_idle()
        assert uploads[1].status is None
        for upload in uploads[1:]:
            upload.leave()
        await asyncio.gather(*(upload.call for upload in uploads))
        last = Upload(served, 10 * len(PART))
        for _ in range(4):
            last.send(PART)
        await until_idle()
        assert last.status is None
        last.leave()
        await last.call

    asyncio.run(run())


def test_a_body_of_ordinary_size_is_accepted_while_large_ones_hold_all_memory(folder: Path):
    async def run() -> None:
        served = Served(folder, max_total_request_bytes=len(PART))
        large = Upload(served, 10 * len(PART))
        large.send(PART)
        large.send(PART)
        await until_idle()
        body = json.dumps({"model": MODEL, "prompt": "Hello", "max_tokens": 1}).encode()
        small = Upload(served, len(body))
        small.send(body[:10])
        small.send(body[10:], is_last=True)
        await until_idle()
        async with asyncio.timeout(60):
            await small.call
        assert (small.status, large.status) == (200, None)
        large.leave()
        await large.call

    asyncio.run(run())


@pytest.mark.effect("server.max_header_bytes")
@pytest.mark.parametrize(("limit", "status"), [(1000, 431), (4000, 200)])
def test_headers_are_accepted_up_to_their_limit_in_bytes(folder: Path, limit: int, status: int):
    response = Served(folder, max_header_bytes=limit).get("/v1/models", headers={"x-big": "x" * 1000})
    assert response.status_code == status


@pytest.mark.effect("server.max_header_count")
@pytest.mark.parametrize(("limit", "status"), [(40, 431), (60, 200)])
def test_headers_are_accepted_up_to_their_limit_in_number(folder: Path, limit: int, status: int):
    headers = {f"x-{index}": "1" for index in range(45)}
    response = Served(folder, max_header_count=limit).get("/v1/models", headers=headers)
    assert response.status_code == status


@pytest.mark.effect("server.max_incomplete_header_bytes")
@pytest.mark.parametrize(("limit", "is_cut"), [(2000, True), (8000, False)])
def test_an_incomplete_head_is_buffered_up_to_its_limit(folder: Path, limit: int, is_cut: bool):
    async def run() -> bytes:
        async with on_a_socket(folder, FakeEngine(), max_incomplete_header_bytes=limit) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /version HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-big: " + b"x" * 4000)
            if not is_cut:
                writer.write(b"\r\n\r\n")
            answer = await reader.readline()
            writer.close()
        return answer

    assert asyncio.run(run()).startswith(b"HTTP/1.1 431" if is_cut else b"HTTP/1.1 200")


@pytest.mark.effect("server.disable_access_log")
@pytest.mark.parametrize("disabled", [False, True])
def test_only_the_access_log_line_can_be_disabled(folder: Path, caplog: pytest.LogCaptureFixture, disabled: bool):
    caplog.set_level(logging.INFO)
    served = Served(folder, disable_access_log=disabled, enable_log_requests=True)
    served.chat(max_tokens=1)
    lines = [record.name for record in caplog.records if record.name.startswith("stoker")]
    assert ("stoker.server.http.access" in lines) is not disabled
    assert len(lines) == (1 if disabled else 2)  # the arrival of the request is logged in both cases


@pytest.mark.effect("server.disable_access_log_for_endpoints")
@pytest.mark.parametrize("option", [(), ("/v1/models", "/nowhere")])
def test_requests_of_named_paths_get_no_access_log_line(
    folder: Path, caplog: pytest.LogCaptureFixture, option: tuple[str, ...]
):
    caplog.set_level(logging.INFO)
    served = Served(folder, disable_access_log_for_endpoints=option)
    for path in ("/v1/models", "/nowhere", "/version", "/health"):
        served.get(path)
    lines = [record.getMessage().split()[1] for record in caplog.records if record.name.endswith("access")]
    assert lines == (["/version"] if option else ["/v1/models", "other", "/version"])
    assert served.metric('stoker_http_requests_total{method="GET",route="/v1/models",status="200"}') == 1
