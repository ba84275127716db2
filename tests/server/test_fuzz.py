"""No body, whatever is in it, is a 500 or an answer of another shape, or changes what a good request gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.server.protocol.chat import ChatRequest
from stoker.server.protocol.completions import CompletionRequest
from stoker.server.protocol.fields import REFUSED
from stoker.server.protocol.tokenize import DetokenizeRequest, TokenizeRequest

from .deployment import MODEL, Served

ROUTES: dict[str, tuple[Any, dict[str, Any]]] = {
    "/v1/chat/completions": (ChatRequest, {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}),
    "/v1/completions": (CompletionRequest, {"model": MODEL, "prompt": "Hello"}),
    "/tokenize": (TokenizeRequest, {"prompt": "Hello"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [5]}),
}
NAMES = st.sampled_from(["role", "content", "text", "type", "function", "name", "arguments", "tool_calls", "x"])
NUMBERS = [0, 1, -1, 2, 7, 128, 129, 511, 512, 2**31, 2**63, 10**39, 0.5, -0.5, 1e308, 5e-324]
TEXTS = ["", "user", "text", "function", "auto", "required", "\x00", "\ud83d\ude00", "x" * 2000, "{", "{}", "{{ 7*7 }}"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.sampled_from(NUMBERS) | st.sampled_from(TEXTS) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES | st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def fuzzed(folder: Path) -> Served:
    return Served(folder)


@pytest.mark.parametrize("route", ROUTES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_field_may_hold_anything(fuzzed: Served, route: str, data: st.DataObject):
    model, valid = ROUTES[route]
    names = st.sampled_from(sorted([*model.model_fields, *REFUSED, "x"]))
    body = {**valid, "max_tokens": 2, **data.draw(st.dictionaries(names, VALUES, max_size=3))}
    content = json.dumps(body).encode("utf-8", "surrogatepass")
    response = fuzzed.post(route, content)
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert " at 0x" not in error["message"]
        assert "Error(" not in error["message"]
    elif "data:" in response.text[:5]:
        assert response.text.endswith("data: [DONE]\n\n")
    assert not fuzzed.engine.open_requests


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=40) | st.text(alphabet='{}[]",:\\u0d8e1tfn -+.', max_size=40).map(str.encode))
def test_any_bytes_may_be_a_body(fuzzed: Served, content: bytes):
    response = fuzzed.post("/v1/completions", content)
    assert response.status_code == 400
    assert response.json()["error"]["code"] in (
        "invalid_json", "invalid_unicode", "json_too_deep", "missing_required_parameter"
    )  # fmt: skip


def test_a_good_request_is_served_as_ever_after_all_that(fuzzed: Served, folder: Path):
    assert fuzzed.complete(max_tokens=5).json()["choices"] == Served(folder).complete(max_tokens=5).json()["choices"]
