"""Responses whose tools are run by the server: the rounds, with a model and tool servers whose answers are known."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from stoker.formats.registry import FORMATS
from stoker.server.tool_server.servers import (
    Tool,
    ToolResult,
    ToolServer,
    ToolServerError,
    ToolServersProblem,
    headers_of,
)
from stoker.text.tokenizer import Tokenizer

from ..fakes import FakeEngine
from .deployment import Served
from .dialects import named_events

ADD = Tool("add", "Add two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}})
MCP = {"type": "mcp", "server_label": "math", "require_approval": "never"}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'


class FakeServer(ToolServer):
    """A tool server without a connection."""

    def __init__(self, answer: Callable[[str], ToolResult]) -> None:
        super().__init__("math", {"url": "http://absent/mcp", "allowed_tools": ["add"]})
        self.calls: list[str] = []
        self._answer = answer

    async def tools(self) -> list[Tool]:
        return [ADD]

    async def run(self, name: str, arguments: str) -> ToolResult:
        self.calls.append(arguments)
        return self._answer(arguments)


class Model:
    """A server whose model says the given texts, one in each round, and then the last one again."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, *said: str, answer: Any = None, **options: Any) -> None:
        texts = [*said]

        def script(_: Any) -> list[int]:
            return tokenizer.encode(texts.pop(0) if len(texts) > 1 else texts[0])

        settings = {"math": {"url": "http://absent/mcp", "allowed_tools": ["add"]}}
        self.served = Served(
            folder, FakeEngine(script=script), answer_format=FORMATS["hermes"], tool_server=settings, **options
        )
        self.tools = FakeServer(answer or (lambda arguments: ToolResult("5")))
        assert self.served.service.tool_servers is not None
        self.served.service.tool_servers._servers["math"] = self.tools

    def post(self, **fields: Any) -> Any:
        return self.served.post("/v1/responses", {"input": "What is 2 + 3?", "tools": [MCP], **fields})

    @property
    def prompts(self) -> list[str]:
        tokenizer = self.served.service.tokenizer
        assert tokenizer is not None
        return [
            tokenizer.decode(request.inputs.prompt_token_ids, skip_special_tokens=False)
            for request in self.served.engine.requests
        ]


@pytest.mark.effect("server.tool_server")
def test_calls_are_run_until_the_model_answers(folder: Path, tokenizer: Tokenizer):
    model = Model(folder, tokenizer, CALL, "It is 5.")
    answer = model.post().json()
    assert [item["type"] for item in answer["output"]] == ["mcp_list_tools", "mcp_call", "message"]
    _, call, message = answer["output"]
    assert (call["server_label"], call["name"], json.loads(call["arguments"])) == ("math", "add", {"a": 2})
    assert (call["output"], call["error"], call["status"]) == ("5", None, "completed")
    assert message["content"][0]["text"] == "It is 5."
    assert (answer["status"], answer["tools"]) == ("completed", [MCP])
    assert len(model.served.engine.requests) == 2
    again = model.post(input=[{"role": "user", "content": "Hello"}, *answer["output"]])
    assert again.json()["status"] == "completed"
    assert "5" in model.prompts[-1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [{"type": "mcp_list_tools"}]}, "input[0].server_label"),
        ({"input": [{"type": "mcp_list_tools", "server_label": "math", "tools": [{}]}]}, "input[0].tools[0].name"),
        ({"input": [{"type": "mcp_list_tools", "server_label": "math", "tools": {}}]}, "input[0].tools"),
    ],
)
def test_a_list_of_tools_that_the_client_sends_back_is_checked(
    folder: Path, tokenizer: Tokenizer, fields: dict[str, Any], param: str
):
    answer = Model(folder, tokenizer, "Hi").post(**fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_skipped_tool_may_have_any_name(folder: Path, tokenizer: Tokenizer):
    answer = Model(folder, tokenizer, "Hi").post(tools=[MCP, {"type": "web_search", "name": ["x"]}])
    assert (answer.status_code, answer.headers["x-stoker-skipped-tools"]) == (200, "web_search")


def test_a_tool_of_a_server_whose_name_no_call_can_have_is_refused(folder: Path, tokenizer: Tokenizer):
    model = Model(folder, tokenizer, "Hi")

    async def tools() -> list[Tool]:
        return [Tool("files/read", None, {"type": "object"})]

    model.tools.tools = tools  # type: ignore[method-assign]
    error = model.post().json()["error"]
    assert error["param"] == "tools[0].name"
    assert "files/read" in error["message"]


def test_a_stream_has_the_events_of_every_item_in_order(folder: Path, tokenizer: Tokenizer):
    model = Model(folder, tokenizer, CALL, "It is 5.")
    streamed = model.post(stream=True).text
    events = [json.loads(line.removeprefix("data: ")) for line in streamed.splitlines() if line.startswith("data: ")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [kind.removeprefix("response.") for kind, _ in groupby(event["type"] for event in events)] == [
        "created",
        "in_progress",
        "output_item.added",
        "mcp_list_tools.in_progress",
        "mcp_list_tools.completed",
        "output_item.done",
        "output_item.added",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "mcp_call.completed",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done
    assert [event["output_index"] for event in events if event["type"] == "response.output_item.added"] == [0, 1, 2]
    assert {event["response"]["id"] for event in events if "response" in event} == {events[0]["response"]["id"]}


def test_calls_of_both_sides_in_one_answer_are_shown_one_after_the_other(folder: Path, tokenizer: Tokenizer):
    own = {"type": "function", "name": "mine", "parameters": {"type": "object"}}
    said = f'Now:{CALL}\n<tool_call>\n{{"name": "mine", "arguments": {{}}}}\n</tool_call>'
    events = named_events(Model(folder, tokenizer, said).post(tools=[MCP, own], stream=True).text)
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["mcp_list_tools", "message", "mcp_call", "function_call"]
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == output
    indexes = [event["output_index"] for event in events if "output_index" in event]
    assert indexes == sorted(indexes)


@pytest.mark.parametrize("value", ["", "Bearer \u00e9", "Bearer a\nb"])
def test_a_credential_that_cannot_be_sent_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch, value: str):
    monkeypatch.setenv("DOCS_SECRET", value)
    settings = {"url": "http://absent/mcp", "headers_from_env": {"Authorization": "DOCS_SECRET"}}
    with pytest.raises(ToolServersProblem, match="DOCS_SECRET") as problem:
        headers_of("docs", settings)
    assert "Bearer" not in str(problem.value)


@pytest.mark.parametrize("background", [False, True])
def test_calls_of_a_stored_response_are_rendered_again(folder: Path, tokenizer: Tokenizer, background: bool):
    model = Model(folder, tokenizer, CALL, "It is 5.", responses_store="memory")

    async def run() -> list[dict[str, Any]]:
        async with model.served.client() as client:
            body = {"input": "What is 2 + 3?", "tools": [MCP], "background": background}
            first = (await client.post("/v1/responses", json=body)).json()
            for _ in range(1000):
                if first["status"] == "completed":
                    break
                await asyncio.sleep(0.01)
                first = (await client.get(f"/v1/responses/{first['id']}")).json()
            again = {"input": "Sure?", "tools": [MCP], "previous_response_id": first["id"]}
            second = (await client.post("/v1/responses", json=again)).json()
            listed = (await client.get(f"/v1/responses/{second['id']}/input_items")).json()["data"]
            return [first, second, *listed]

    first, second, *given = asyncio.run(run())
    assert [item["type"] for item in first["output"]] == ["mcp_list_tools", "mcp_call", "message"]
    assert [item["type"] for item in second["output"]] == ["message"]  # the tools were listed before
    assert [item["content"][0]["text"] for item in given] == ["Sure?"]
    assert second["previous_response_id"] == first["id"]
    assert second["store"] is True
    before, prompt = model.prompts[-2:]
    assert prompt.startswith(f"{before}It is 5.")  # the model reads the call and its result as it did before


def test_a_function_in_a_namespace_is_the_clients_own(folder: Path, tokenizer: Tokenizer):
    own = {"type": "namespace", "name": "box", "description": "", "tools": [{"type": "function", "name": "add"}]}
    model = Model(folder, tokenizer, CALL.replace("add", "box__add"))
    assert [item["type"] for item in model.post(tools=[MCP, own]).json()["output"]][1:] == ["function_call"]
    assert model.tools.calls == []


@pytest.mark.parametrize("round_index", [1, 2])
def test_an_error_within_a_round_ends_the_stream(folder: Path, tokenizer: Tokenizer, round_index: int):
    model = Model(folder, tokenizer, CALL, "It is 5. " * 9)
    engine, paced = model.served.engine, []

    async def pace() -> None:
        if len(engine.requests) == round_index:
            paced.append(1)
        if len(paced) > 4:
            engine.die()

    engine._pace = pace
    events = named_events(model.post(stream=True).text)
    assert events[-1]["type"] == "response.failed"
    kinds = [event["type"].removeprefix("response.output_item.") for event in events]
    assert kinds.count("added") == kinds.count("done") == (1 if round_index == 1 else 3)


def test_the_model_reads_why_a_call_failed(folder: Path, tokenizer: Tokenizer):
    def failing(arguments: str) -> ToolResult:
        raise ToolServerError("no answer within 60 s")

    model = Model(folder, tokenizer, CALL, "Sorry.", answer=failing)
    _, call, _ = model.post().json()["output"]
    assert (call["status"], call["output"], call["error"]) == ("failed", None, "no answer within 60 s")


def test_a_model_that_only_calls_is_ended(folder: Path, tokenizer: Tokenizer):
    model = Model(folder, tokenizer, CALL)
    answer = model.post(max_tool_calls=3).json()
    assert answer["status"] == "completed"
    assert len(model.tools.calls) == 3


def test_a_call_of_the_clients_own_function_ends_the_response(folder: Path, tokenizer: Tokenizer):
    own = {"type": "function", "name": "mine", "parameters": {"type": "object"}}
    model = Model(folder, tokenizer, '<tool_call>\n{"name": "mine", "arguments": {}}\n</tool_call>')
    answer = model.post(tools=[MCP, own]).json()
    assert [item["type"] for item in answer["output"]] == ["mcp_list_tools", "function_call"]
    assert len(model.served.engine.requests) == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{**MCP, "server_url": "https://evil.example"}]}, "tools[0].server_url"),
        ({"tools": [{**MCP, "connector_id": "x"}]}, "tools[0].connector_id"),
        ({"tools": [{**MCP, "server_label": "other"}]}, "tools[0].server_label"),
        ({"tools": [{"type": "mcp", "server_label": "math"}]}, "tools[0].require_approval"),
        ({"tools": [MCP, MCP]}, "tools[1]"),
        ({"tools": [{**MCP, "allowed_tools": "add"}]}, "tools[0].allowed_tools"),
        ({"background": True}, "background"),  # without a store
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"temperature": 9}, "temperature"),
    ],
)
def test_what_the_deployment_does_not_allow_is_refused(
    folder: Path, tokenizer: Tokenizer, fields: dict[str, Any], param: str
):
    model = Model(folder, tokenizer, "Hello")
    for stream in (False, True):
        answer = model.post(**fields, stream=stream)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert model.tools.calls == []


def test_a_request_without_servers_is_an_ordinary_one(folder: Path, tokenizer: Tokenizer):
    model = Model(folder, tokenizer, "Hello")
    assert [item["type"] for item in model.post(tools=[]).json()["output"]] == ["message"]
    text = 'a "mcp" in the text'
    assert model.post(tools=[], input=text).json()["output"][0]["content"][0]["text"] == "Hello"
    assert asyncio.run(model.tools.tools()) == [ADD]


@pytest.mark.parametrize(
    "choice",
    ["required", {"type": "mcp", "server_label": "math"}, {"type": "mcp", "server_label": "math", "name": "add"}],
)
def test_a_call_may_be_required_of_tools_that_only_a_server_has(folder: Path, tokenizer: Tokenizer, choice: Any):
    """Before, this was a 400: "the request has no tools"."""
    answer = Model(folder, tokenizer, CALL, "Four.").post(tool_choice=choice)
    assert answer.status_code == 200, answer.text
    assert [item["type"] for item in answer.json()["output"]] == ["mcp_list_tools", "mcp_call", "message"]


@pytest.mark.parametrize("choice", [{"server_label": "x"}, {"server_label": "math", "name": "x"}])
def test_a_choice_of_a_tool_that_no_server_has_is_refused(folder: Path, tokenizer: Tokenizer, choice: Any):
    answer = Model(folder, tokenizer, "Hi").post(tool_choice={"type": "mcp", **choice})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tool_choice")
