"""Code of the operator's around every request, and calls from web sites."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from stoker.server.middleware import MiddlewareProblem, load_middleware

from ..fakes import FakeEngine
from .deployment import MODEL, Served, on_a_socket
from .test_interruption import CHAT, Pace, http, until

AROUND = "tests.server.around"
SITE = "https://chat.example"


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
def test_the_first_middleware_sees_a_request_first_and_its_answer_last(
    folder: Path, names: list[str], stamp: str | None
):
    served = Served(folder, middleware=[f"{AROUND}.{name}" for name in names])
    assert served.get("/v1/models").headers.get("x-stamp") == stamp
    assert served.chat(max_tokens=2).status_code == 200


@pytest.mark.parametrize("name", ["stamp", "Tag"])
@pytest.mark.parametrize(("path", "status"), [("/v1/models/other", 404), ("/nowhere", 404), ("/v1/completions", 405)])
def test_middleware_sees_refusals_as_answers(folder: Path, name: str, path: str, status: int):
    """Once they passed it as exceptions, and an answer that was an error was without its header."""
    served = Served(folder, middleware=[f"{AROUND}.{name}"], api_key=["secret"])
    unknown, refused = served.get(path), served.get(path, headers={"authorization": "Bearer secret"})
    assert (unknown.status_code, refused.status_code) == (401, status)
    assert unknown.headers["x-stamp"] == refused.headers["x-stamp"]
    assert {answer.json()["error"]["code"] for answer in (unknown, refused)} > {"invalid_api_key"}


def test_a_path_may_have_a_colon_before_the_name(folder: Path):
    assert Served(folder, middleware=[f"{AROUND}:stamp"]).get("/v1/models").headers["x-stamp"] == "stamp GET;"


def test_middleware_may_bring_the_key_but_not_its_absence(folder: Path):
    served = Served(folder, middleware=[f"{AROUND}.bring_a_key"], api_key=["secret"])
    assert served.get("/v1/models", headers={"x-user": "known"}).status_code == 200
    assert served.get("/v1/models").status_code == 401


@pytest.mark.parametrize(("key", "status", "code"), [("secret", 500, "internal_error"), ("", 500, "internal_error")])
def test_middleware_that_fails_is_one_answer_of_the_usual_shape(folder: Path, key: str, status: int, code: str):
    response = Served(folder, middleware=[f"{AROUND}.fail"]).get("/v1/models")
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert "operator" not in response.text


@pytest.mark.parametrize("name", ["stamp", "Tag"])
def test_a_stream_passes_middleware_piece_by_piece_and_its_client_may_leave(folder: Path, name: str):
    async def run() -> tuple[bytes, FakeEngine]:
        engine = FakeEngine(pace=Pace(3))
        async with on_a_socket(folder, engine, middleware=[f"{AROUND}.{name}"]) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(http(port, {**CHAT, "stream": True}))
            first = await reader.readuntil(b'"content"')  # while the engine waits for leave to go on
            writer.close()
            await until(lambda: not engine.open_requests)
        return first, engine

    first, engine = asyncio.run(run())
    assert b"x-stamp" in first
    assert len(engine.aborted) == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("stamp", "is no import path"),
        ("no.such.module", "cannot be imported: No module named 'no'; it is looked for"),
        (f"{AROUND}.missing", "cannot be imported: module 'tests.server.around' has no attribute 'missing'"),
        (f"{AROUND}.NUMBER", "is neither an async function nor a class, but int"),
        (f"{AROUND}.plain", "is neither an async function nor a class, but function"),
        (f"{AROUND}.too_narrow", "does not take (request, call_next)"),
        (f"{AROUND}.NoApp", "does not take (app)"),
    ],
)
def test_what_is_no_middleware_is_told_by_name(name: str, said: str):
    with pytest.raises(MiddlewareProblem) as caught:
        load_middleware([name])
    assert str(caught.value).startswith(f"`server.middleware`: {name} ")
    assert said in str(caught.value)


def preflight(served: Served, *, method: str = "POST", headers: str = "authorization", origin: str = SITE) -> Any:
    asked = {"origin": origin, "access-control-request-method": method, "access-control-request-headers": headers}
    return served.request("OPTIONS", "/v1/chat/completions", headers=asked)


@pytest.mark.effect("server.allowed_origins")
@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        ([SITE], SITE, SITE),
        ([SITE], "https://evil.example", None),
        (["*"], "https://any.example", "*"),
        ([], SITE, None),
    ],
)
def test_a_site_may_call_if_it_is_listed(folder: Path, origins: list[str], origin: str, allowed: str | None):
    served = Served(folder, allowed_origins=origins, api_key=["secret"])
    asked = preflight(served, origin=origin)
    assert asked.headers.get("access-control-allow-origin") == allowed
    if origins:  # a browser asks before it sends a key
        assert asked.status_code == (200 if allowed else 400)
    for key, status in (("secret", 200), ("wrong", 401)):  # a script may read why it was refused
        answer = served.get("/v1/models", headers={"origin": origin, "authorization": f"Bearer {key}"})
        assert answer.status_code == status
        assert answer.headers.get("access-control-allow-origin") == allowed


@pytest.mark.effect("server.allowed_methods", "server.allowed_headers")
def test_methods_and_headers_of_other_sites_are_those_listed(folder: Path):
    served = Served(folder, allowed_origins=[SITE], allowed_methods=["post"], allowed_headers=["Authorization"])
    assert preflight(served).status_code == 200
    for asked, what in ((preflight(served, method="GET"), "method"), (preflight(served, headers="x-odd"), "headers")):
        assert asked.status_code == 400
        error = asked.json()["error"]
        assert error["code"] == "cross_origin_refused"
        assert error["message"].endswith(f"with this {what}")
    anything = Served(folder, allowed_origins=[SITE])
    assert preflight(anything, method="DELETE", headers="x-odd").status_code == 200


@pytest.mark.effect("server.allow_credentials")
@pytest.mark.parametrize("allowed", [False, True])
def test_browsers_send_credentials_along_only_where_it_is_allowed(folder: Path, allowed: bool):
    served = Served(folder, allowed_origins=[SITE], allow_credentials=allowed)
    for answer in (preflight(served), served.get("/version", headers={"origin": SITE})):
        assert answer.headers.get("access-control-allow-credentials") == ("true" if allowed else None)


def test_programs_that_are_no_browsers_see_no_difference(folder: Path):
    served = Served(folder, allowed_origins=[SITE])
    assert "access-control-allow-origin" not in served.get("/version").headers
    assert served.post("/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 1}).status_code == 200
    assert json.loads(served.get("/nowhere").text)["error"]["code"] == "not_found"
    assert isinstance(served.request("OPTIONS", "/v1/models"), httpx.Response)
