"""Random bodies: none causes a 500 or a response of another shape, or affects a later valid request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.formats.registry import find
from stoker.server.protocol.chat import ChatRequest
from stoker.server.protocol.completions import CompletionRequest
from stoker.server.protocol.messages import MessagesRequest
from stoker.server.protocol.responses import ResponsesRequest
from stoker.server.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from stoker.server.protocol.unserved import UNSERVED

from .deployment import MODEL, Served

ROUTES: dict[str, tuple[Any, dict[str, Any]]] = {
    "/v1/chat/completions": (ChatRequest, {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}),
    "/v1/completions": (CompletionRequest, {"model": MODEL, "prompt": "Hello"}),
    "/v1/responses": (ResponsesRequest, {"model": MODEL, "input": "Hello"}),
    "/v1/messages": (MessagesRequest, {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}),
    "/tokenize": (TokenizeRequest, {"prompt": "Hello"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [5]}),
}
NAMES = st.sampled_from(
    ["role", "content", "text", "type", "function", "name", "arguments", "tool_calls", "input", "format", "tools", "x"]
)
NUMBERS = [0, 1, -1, 2, 7, 128, 129, 511, 512, 2**31, 2**63, 10**39, 0.5, -0.5, 1e308, 5e-324]
TEXTS = [
    "",
    "user",
    "text",
    "function",
    "custom",
    "namespace",
    "message",
    "reasoning",
    "tool_use",
    "auto",
    "required",
    "\x00",
    "\ud83d\ude00",
    "x" * 2000,
    "{",
    "{}",
    "{{ 7*7 }}",
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.sampled_from(NUMBERS) | st.sampled_from(TEXTS) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES | st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)

BYTES = st.binary(max_size=40) | st.text(alphabet='{}[]",:\\u0d8e1tfn -+.', max_size=40).map(str.encode)


@pytest.fixture(scope="module")
def fuzzed(folder: Path) -> Served:
    return Served(folder, answer_format=find("hermes"), responses_store="memory")


@pytest.mark.parametrize("route", ROUTES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_random_values_of_fields_are_refused_or_served(fuzzed: Served, route: str, data: st.DataObject):
    check_random_fields(fuzzed, route, data)


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
@settings(max_examples=500, deadline=None)
@given(data=st.data())
def test_many_random_values_of_fields_are_refused_or_served(fuzzed: Served, route: str, data: st.DataObject):
    check_random_fields(fuzzed, route, data)


def check_random_fields(fuzzed: Served, route: str, data: st.DataObject) -> None:
    model, valid = ROUTES[route]
    names = st.sampled_from(sorted([*model.model_fields, *UNSERVED[model.route], "x"]))
    fields = data.draw(st.dictionaries(names, VALUES, max_size=3))  # words: ok
    short = {"max_output_tokens": 2} if route == "/v1/responses" else {"max_tokens": 2}
    content = json.dumps({**valid, **short, **fields}).encode("utf-8", "surrogatepass")
    response = fuzzed.post(route, content)
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert " at 0x" not in error["message"]
        assert "Error(" not in error["message"]
    elif response.headers["content-type"].startswith("text/event-stream"):
        ends = ("data: [DONE]", '"type":"response.', '{"type":"message_stop"}')
        assert response.text.endswith("\n\n")
        assert any(end in response.text.split("\n")[-3] for end in ends)
    assert not fuzzed.engine.open_requests


@settings(max_examples=50, deadline=None)
@given(content=BYTES)
def test_random_bytes_are_refused(fuzzed: Served, content: bytes):
    check_random_bytes(fuzzed, content)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None)
@given(content=BYTES)
def test_many_random_bytes_are_refused(fuzzed: Served, content: bytes):
    check_random_bytes(fuzzed, content)


def check_random_bytes(fuzzed: Served, content: bytes) -> None:
    response = fuzzed.post("/v1/completions", content)
    assert response.status_code == 400
    assert response.json()["error"]["code"] in (
        "invalid_json", "invalid_unicode", "json_too_deep", "missing_required_parameter"
    )  # fmt: skip


def test_a_valid_request_is_served_after_the_random_ones(fuzzed: Served, folder: Path):
    assert fuzzed.complete(max_tokens=5).json()["choices"] == Served(folder).complete(max_tokens=5).json()["choices"]
