"""The operator's middleware around every request, and CORS."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stoker.server.http.middleware import MiddlewareProblem, load_middleware

from ..fakes import FakeEngine
from .deployment import MODEL, Served, on_a_socket
from .test_interruption import CHAT, Pace, http, until

EXAMPLES = "tests.server.example_middleware"
ORIGIN = "https://chat.example"


@pytest.mark.effect("server.middleware")
@pytest.mark.parametrize(
    ("names", "stamp"),
    [
        ([], None),
        (["stamp"], "stamp GET;"),
        (["Tag"], "tag;"),
        (["stamp", "Tag"], "tag;stamp GET;"),
        (["Tag", "stamp"], "stamp GET;tag;"),
    ],
)
def test_the_first_middleware_gets_a_request_first_and_its_response_last(
    folder: Path, names: list[str], stamp: str | None
):
    served = Served(folder, middleware=[f"{EXAMPLES}.{name}" for name in names])
    assert served.get("/v1/models").headers.get("x-stamp") == stamp
    assert served.chat(max_tokens=2).status_code == 200


@pytest.mark.parametrize("name", ["stamp", "Tag"])
@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/models/other", 404, "model_not_found"),
        ("/nowhere", 404, "not_found"),
        ("/v1/completions", 405, "method_not_allowed"),
    ],
)
def test_middleware_gets_errors_as_responses(folder: Path, name: str, path: str, status: int, code: str):
    """Errors passed the middleware as exceptions, so error responses were without its header."""
    served = Served(folder, middleware=[f"{EXAMPLES}.{name}"], api_key=["secret"])
    no_key, with_key = served.get(path), served.get(path, headers={"authorization": "Bearer secret"})
    assert (no_key.status_code, no_key.json()["error"]["code"]) == (401, "invalid_api_key")
    assert (with_key.status_code, with_key.json()["error"]["code"]) == (status, code)
    assert no_key.headers["x-stamp"] == with_key.headers["x-stamp"] == {"stamp": "stamp GET;", "Tag": "tag;"}[name]


def test_an_http_exception_of_middleware_is_an_error_with_its_message_and_headers(folder: Path):
    """Its message was "there is no such route" and its code `not_found`, whatever the status."""
    response = Served(folder, middleware=[f"{EXAMPLES}.refuse_by_exception"]).get("/v1/models")
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (402, "http_402")
    assert error["message"] == "the budget of this month is spent"
    assert response.headers["x-budget"] == "0"


def test_an_import_path_may_have_a_colon_before_the_name(folder: Path):
    assert Served(folder, middleware=[f"{EXAMPLES}:stamp"]).get("/v1/models").headers["x-stamp"] == "stamp GET;"


def test_middleware_can_add_a_key_but_not_skip_the_key_check(folder: Path):
    served = Served(folder, middleware=[f"{EXAMPLES}.add_key"], api_key=["secret"])
    assert served.get("/v1/models", headers={"x-user": "known"}).status_code == 200
    assert served.get("/v1/models").status_code == 401


@pytest.mark.parametrize("headers", [{"authorization": "Bearer secret"}, {}])
def test_a_failure_of_middleware_is_a_500_that_shows_nothing_of_it(
    folder: Path, headers: dict[str, str], caplog: pytest.LogCaptureFixture
):
    served = Served(folder, middleware=[f"{EXAMPLES}.fail"], api_key=["secret"])
    response = served.get("/v1/models", headers=headers)
    assert response.status_code == 500
    assert response.json()["error"] == {
        "message": "the server failed on this request", "type": "server_error", "param": None, "code": "internal_error"
    }  # fmt: skip
    (logged,) = [record for record in caplog.records if record.exc_info]
    assert str(logged.exc_info[1]) == "a bug in the operator's code"


@pytest.mark.parametrize("name", ["stamp", "Tag"])
def test_middleware_does_not_buffer_a_stream_nor_hide_a_disconnect(folder: Path, name: str):
    async def run() -> tuple[bytes, FakeEngine]:
        engine = FakeEngine(pace=Pace(3))
        async with on_a_socket(folder, engine, middleware=[f"{EXAMPLES}.{name}"]) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(http(port, {**CHAT, "stream": True}))
            first = await reader.readuntil(b'"content"')  # the engine may generate 3 tokens, then waits
            writer.close()
            await until(lambda: not engine.open_requests)
        return first, engine

    first, engine = asyncio.run(run())
    assert b"x-stamp" in first
    assert len(engine.aborted) == 1


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("stamp", "not an import path; write package.module:Name"),
        (
            "no.such.module",
            "no.such cannot be imported: ModuleNotFoundError: No module named 'no'; Python searches the installed "
            "packages and the folders of PYTHONPATH",
        ),
        (f"{EXAMPLES}.missing", f"{EXAMPLES} has no missing"),
        (f"{EXAMPLES}.NUMBER", "neither an async function nor a class, but int"),
        (f"{EXAMPLES}.not_async", "neither an async function nor a class, but function"),
        (f"{EXAMPLES}.one_argument", "cannot be called with (request, call_next): too many positional arguments"),
        (f"{EXAMPLES}.NoArgument", "cannot be called with (app): too many positional arguments"),
    ],
)
def test_an_object_that_is_not_middleware_is_reported_with_its_path(name: str, problem: str):
    with pytest.raises(MiddlewareProblem) as caught:
        load_middleware([name])
    assert str(caught.value) == f"`server.middleware`: {name}: {problem}"


def preflight(served: Served, *, method: str = "POST", headers: str = "authorization", origin: str = ORIGIN) -> Any:
    asked = {"origin": origin, "access-control-request-method": method, "access-control-request-headers": headers}
    return served.request("OPTIONS", "/v1/chat/completions", headers=asked)


@pytest.mark.effect("server.allowed_origins")
@pytest.mark.parametrize(
    ("origins", "origin", "preflight_status", "allowed"),
    [
        ([ORIGIN], ORIGIN, 200, ORIGIN),
        ([ORIGIN], "https://evil.example", 400, None),
        (["*"], "https://any.example", 200, "*"),
        ([], ORIGIN, 401, None),
    ],
)
def test_another_origin_may_call_if_it_is_listed(
    folder: Path, origins: list[str], origin: str, preflight_status: int, allowed: str | None
):
    served = Served(folder, allowed_origins=origins, api_key=["secret"])
    answered = preflight(served, origin=origin)  # without a key: browsers send none with a preflight
    assert answered.status_code == preflight_status
    assert answered.headers.get("access-control-allow-origin") == allowed
    for key, status in (("secret", 200), ("wrong", 401)):  # scripts can read error responses too
        answer = served.get("/v1/models", headers={"origin": origin, "authorization": f"Bearer {key}"})
        assert answer.status_code == status
        assert answer.headers.get("access-control-allow-origin") == allowed


@pytest.mark.effect("server.allowed_methods", "server.allowed_headers")
def test_a_preflight_is_refused_for_methods_and_headers_that_are_not_listed(folder: Path):
    served = Served(folder, allowed_origins=[ORIGIN], allowed_methods=["post"], allowed_headers=["Authorization"])
    assert preflight(served).status_code == 200
    for answered, refused in (
        (preflight(served, method="GET"), "method"),
        (preflight(served, headers="x-odd"), "headers"),
    ):
        assert answered.status_code == 400
        error = answered.json()["error"]
        assert error["code"] == "cross_origin_refused"
        assert error["message"] == f"cross-origin requests with this {refused} are not allowed"
    anything = Served(folder, allowed_origins=[ORIGIN])
    assert preflight(anything, method="DELETE", headers="x-odd").status_code == 200


@pytest.mark.effect("server.allow_credentials")
@pytest.mark.parametrize("allowed", [False, True])
def test_credentials_are_allowed_only_with_the_option(folder: Path, allowed: bool):
    served = Served(folder, allowed_origins=[ORIGIN], allow_credentials=allowed)
    for answer in (preflight(served), served.get("/version", headers={"origin": ORIGIN})):
        assert answer.headers.get("access-control-allow-credentials") == ("true" if allowed else None)


def test_cors_changes_nothing_for_requests_without_an_origin_but_adds_vary_for_caches(folder: Path):
    def responses(**options: Any) -> list[tuple[int, dict[str, str], Any]]:
        served = Served(folder, **options)
        headers = {"x-request-id": "a"}  # errors have it
        found = [
            served.get("/version", headers=headers),
            served.get("/nowhere", headers=headers),
            served.request("OPTIONS", "/v1/models", headers=headers),
            served.post("/tokenize", {"model": MODEL, "prompt": "x"}, headers=headers),
        ]
        return [(one.status_code, dict(one.headers), one.json()) for one in found]

    without = responses()
    assert [status for status, _, _ in without] == [200, 404, 405, 200]
    expected = [(status, {**headers, "vary": "Origin"}, body) for status, headers, body in without]
    assert responses(allowed_origins=[ORIGIN]) == expected
