"""Random bodies: none causes a 500 or a response of another shape, or affects a later valid request."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.formats.registry import find
from stoker.model.pooling import PoolHead, Pooling
from stoker.server.protocol.chat import ChatRequest
from stoker.server.protocol.completions import CompletionRequest
from stoker.server.protocol.messages import MessagesRequest
from stoker.server.protocol.pooling import (
    ClassifyRequest,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)
from stoker.server.protocol.pooling_dialects import (
    CohereEmbedRequest,
    TeiDecodeRequest,
    TeiEmbedRequest,
    TeiPredictRequest,
    TeiSimilarityRequest,
)
from stoker.server.protocol.responses import ResponsesRequest
from stoker.server.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from stoker.server.protocol.unserved import UNSERVED

from ..fakes import FakeEngine
from .deployment import MODEL, Served

ROUTES: dict[str, tuple[Any, dict[str, Any]]] = {
    "/v1/chat/completions": (ChatRequest, {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}),
    "/v1/completions": (CompletionRequest, {"model": MODEL, "prompt": "Hello"}),
    "/v1/responses": (ResponsesRequest, {"model": MODEL, "input": "Hello"}),
    "/v1/messages": (MessagesRequest, {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}),
    "/tokenize": (TokenizeRequest, {"prompt": "Hello"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [5]}),
    "/v1/embeddings": (EmbeddingRequest, {"input": ["Hello", "world"]}),
    "/pooling": (PoolingRequest, {"input": ["Hello", "world"]}),
    "/classify": (ClassifyRequest, {"input": "Hello"}),
    "/v1/score": (ScoreRequest, {"queries": "Hello", "documents": ["Hello", "world"]}),
    "/rerank": (RerankRequest, {"query": "Hello", "documents": ["Hello", "world"]}),
    "/v2/embed": (CohereEmbedRequest, {"texts": ["Hello", "world"]}),
    "/embed": (TeiEmbedRequest, {"inputs": ["Hello", "world"]}),
    "/predict": (TeiPredictRequest, {"inputs": "Hello"}),
    "/similarity": (TeiSimilarityRequest, {"inputs": {"source_sentence": "Hello", "sentences": ["Hello"]}}),
    "/decode": (TeiDecodeRequest, {"ids": [5]}),
}
HEADS = tuple(
    PoolHead(task=task, width=width, modes=("last",) if task in ("embed", "classify") else ())
    for task, width in FakeEngine().widths.items()
)
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/b"}, "maxItems": 2}, "c": {"enum": ["x", 1]}},
    "required": ["a"],
    "$defs": {"b": {"anyOf": [{"type": "string", "pattern": "^x"}, {"type": "integer", "minimum": 1}]}},
}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
ARGUMENTS = '{"a": []}'
# What agents send: values at any depth.
LONG: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": MODEL,
        "max_tokens": 2,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": "b", "reasoning": "c", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": ARGUMENTS}}]},
            {"role": "tool", "tool_call_id": "1", "content": "d"},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {
            "mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
    },
    "/v1/responses": {
        "model": MODEL,
        "max_output_tokens": 2,
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "stoker1:"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": ARGUMENTS, "namespace": "n"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "o"}]},
            {"type": "custom_tool_call", "call_id": "d", "name": "p", "input": "i"},
            {"type": "custom_tool_call_output", "call_id": "d", "output": "o"},
            {"type": "mcp_list_tools", "server_label": "m", "tools": [{"name": "g"}]},
            {"type": "mcp_call", "id": "e", "server_label": "m", "name": "g", "arguments": "{}", "output": "5"},
        ],
        "tools": [
            {"type": "function", **FUNCTION},
            {"type": "custom", "name": "p", "format": {"type": "grammar", "syntax": "regex", "definition": "a+"}},
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]},
            {"type": "web_search", "filters": {}},
        ],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
        "reasoning": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
    },
    "/v1/messages": {
        "model": MODEL,
        "max_tokens": 2,
        "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": "d"}}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "redacted_thinking", "data": "x"},
                {"type": "tool_use", "id": "1", "name": "f", "input": {"a": []}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "r"}]}]},
            {"role": "assistant", "content": [{"type": "text", "text": "The"}]},
        ],
        "tools": [{"name": "f", "input_schema": SCHEMA, "strict": True}, {"type": "bash_20250124", "name": "b"}],
        "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
        "metadata": {"user_id": "u"},
    },
}  # fmt: skip
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
    options = {"responses_store": "memory", "pooling": Pooling(heads=HEADS)}
    return Served(folder, answer_format=find("hermes"), **options)


@pytest.fixture(scope="module")
def roomy(folder: Path) -> Served:
    """With a context for long bodies."""
    engine = FakeEngine(max_model_len=4096, num_blocks=1000)
    return Served(folder, engine, model={"max_model_len": 4096}, answer_format=find("hermes"), responses_store="memory")


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_random_values_of_fields_are_refused_or_served(fuzzed: Served, route: str, data: st.DataObject):
    check_random_fields(fuzzed, route, data)


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_many_random_values_of_fields_are_refused_or_served(fuzzed: Served, route: str, data: st.DataObject):
    check_random_fields(fuzzed, route, data)


def check_random_fields(fuzzed: Served, route: str, data: st.DataObject) -> None:
    model, valid = ROUTES[route]
    names = st.sampled_from(sorted([*model.model_fields, *UNSERVED[model.route], "x"]))
    fields = data.draw(st.dictionaries(names, VALUES, max_size=3))  # words: ok
    short = {"/v1/responses": "max_output_tokens"}.get(route, "max_tokens")
    limit = {short: 2} if route.startswith(("/v1/chat", "/v1/comp", "/v1/resp", "/v1/mess")) else {}
    content = json.dumps({**valid, **limit, **fields}).encode("utf-8", "surrogatepass")
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


@pytest.mark.parametrize("route", LONG)
@pytest.mark.quick_cases(1)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_bodies_of_agents_with_other_values_in_them_are_refused_or_served(roomy: Served, route: str, data: Any):
    check_changed_body(roomy, route, data)


@pytest.mark.slow
@pytest.mark.parametrize("route", LONG)
@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_many_bodies_of_agents_with_other_values_in_them_are_refused_or_served(
    roomy: Served, route: str, data: st.DataObject
):
    check_changed_body(roomy, route, data)


def test_the_bodies_of_agents_are_served(roomy: Served):
    for route, body in LONG.items():
        answer = roomy.post(route, body)
        assert answer.status_code == 200, answer.text


def check_changed_body(roomy: Served, route: str, data: st.DataObject) -> None:
    body = copy.deepcopy(LONG[route])
    for _ in range(data.draw(st.integers(1, 3))):  # words: ok
        *path, last = data.draw(st.sampled_from(list(places(body))))  # words: ok
        parent: Any = body
        for step in path:
            parent = parent[step]
        parent[last] = data.draw(VALUES)  # words: ok
    response = roomy.post(route, json.dumps(body).encode())
    assert response.status_code in (200, 400, 404), response.text
    assert "internal_error" not in response.text
    assert not roomy.engine.open_requests


def places(value: Any) -> Iterator[tuple[str | int, ...]]:
    """The path of each value within this one."""
    steps = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for step in steps:
        yield (step,)
        for path in places(value[step]):
            yield step, *path


@settings(max_examples=50, deadline=None)
@given(content=BYTES)
def test_random_bytes_are_refused(fuzzed: Served, content: bytes):
    check_random_bytes(fuzzed, content)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
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
