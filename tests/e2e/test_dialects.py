"""Tools and reasoning through the official clients of each API, with a model that really calls and thinks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from .deployment import serving

pytestmark = pytest.mark.slow
MODEL = "builtin:tiny"
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
FUNCTION = {"name": "add", "description": "Add two numbers", "parameters": PARAMETERS, "strict": True}
CHAT_TOOL: Any = {"type": "function", "function": FUNCTION}
RESPONSE_TOOL: Any = {"type": "function", **FUNCTION}
MESSAGE_TOOL: Any = {"name": "add", "description": "Add two numbers", "input_schema": PARAMETERS, "strict": True}
SUM = "Use the tool: 3 + 4"
OPTION = "What does max_num_seqs do?"
PATCH = 'start: "*** Begin" LF line "*** End"\nline: ("+" | "-") /[a-z]{1,5}/ LF\n%import common.LF'


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = {
        "port": 0,
        "drain_timeout": "1s",
        "responses_store": "memory",
        "enable_prompt_tokens_details": True,
        "model_aliases": {"claude-*": MODEL},
    }
    content = {"apiVersion": "stoker/v1", "kind": "Deployment", "model": {"model": MODEL}, "server": server}
    path = tmp_path_factory.mktemp("dialects") / "deploy.yaml"
    path.write_text(json.dumps(content))
    with serving(path) as (_, address):
        yield address


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


@pytest.fixture
def claude(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as opened:
        yield opened


def chat(client: openai.OpenAI, question: str, **fields: Any) -> Any:
    messages: Any = [{"role": "user", "content": question}]
    return client.chat.completions.create(model=MODEL, messages=messages, max_tokens=200, temperature=0, **fields)


def test_a_chat_calls_a_tool_and_answers_with_its_result(client: openai.OpenAI):
    message = chat(client, SUM, tools=[CHAT_TOOL], tool_choice="required").choices[0].message
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments).keys() == {"a", "b"}
    messages: Any = [
        {"role": "user", "content": SUM},
        message.model_dump(),
        {"role": "tool", "tool_call_id": call.id, "content": "7"},
    ]
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[CHAT_TOOL], max_tokens=50)
    assert answer.choices[0].message.content
    named = chat(client, "Hello", tools=[CHAT_TOOL], tool_choice={"type": "function", "function": {"name": "add"}})
    assert named.choices[0].finish_reason == "stop"
    with client.chat.completions.stream(
        model=MODEL, messages=[{"role": "user", "content": SUM}], tools=[CHAT_TOOL], max_tokens=200
    ) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].finish_reason in ("tool_calls", "stop", "length")


def test_a_chat_thinks_and_a_budget_ends_its_thinking(client: openai.OpenAI):
    free = chat(client, OPTION, extra_body={"enable_thinking": True})
    assert free.choices[0].message.reasoning
    assert "max_num_seqs" in free.choices[0].message.content
    short = chat(client, OPTION, extra_body={"enable_thinking": True, "thinking_token_budget": 4})
    num_free, num_short = (each.usage.completion_tokens_details.reasoning_tokens for each in (free, short))
    assert 0 < num_short < num_free
    assert chat(client, OPTION, reasoning_effort="none").choices[0].message.reasoning is None


def test_responses_call_tools_continue_and_stream(client: openai.OpenAI):
    first: Any = client.responses.create(
        model=MODEL, input=SUM, tools=[RESPONSE_TOOL], tool_choice="required", max_output_tokens=200
    )
    call = first.output[-1]
    assert (call.type, call.name) == ("function_call", "add")
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "7"}]
    second = client.responses.create(
        model=MODEL, previous_response_id=first.id, input=result, tools=[RESPONSE_TOOL], max_output_tokens=100
    )
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens > 0
    assert client.responses.retrieve(second.id).output_text == second.output_text
    tool: Any = {
        "type": "custom",
        "name": "patch",
        "format": {"type": "grammar", "syntax": "lark", "definition": PATCH},
    }
    custom: Any = client.responses.create(
        model=MODEL, input="Patch it", tools=[tool], tool_choice={"type": "custom", "name": "patch"}
    )
    assert custom.output[-1].input.startswith("*** Begin\n")
    assert custom.output[-1].input.endswith("*** End")
    with client.responses.stream(model=MODEL, input=OPTION, reasoning={"effort": "high"}) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert "response.reasoning_text.delta" in kinds


def test_messages_call_tools_think_and_stream(claude: anthropic.Anthropic):
    question: Any = {"role": "user", "content": SUM}
    first = claude.messages.create(
        model="claude-sonnet-5", max_tokens=200, messages=[question], tools=[MESSAGE_TOOL], tool_choice={"type": "any"}
    )
    call: Any = first.content[-1]
    assert (first.stop_reason, call.type, call.input.keys()) == ("tool_use", "tool_use", {"a", "b"})
    result: Any = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "7"}]}
    history: Any = [question, {"role": "assistant", "content": first.content}, result]
    second = claude.messages.create(model="claude-x", max_tokens=100, messages=history, tools=[MESSAGE_TOOL])
    assert second.usage.cache_read_input_tokens
    assert second.usage.input_tokens < 16  # what is after the last full block
    unseen: Any = {"role": "user", "content": "No other test sends this text to the server. " * 4}
    third = claude.messages.create(model="claude-x", max_tokens=1, messages=[unseen])
    assert third.usage.cache_creation_input_tokens
    with claude.messages.stream(
        model="claude-x",
        max_tokens=1200,
        thinking={"type": "enabled", "budget_tokens": 1024},
        messages=[{"role": "user", "content": OPTION}],
    ) as stream:
        for _ in stream:
            pass
        thinking, text = stream.get_final_message().content
    assert (thinking.type, text.type) == ("thinking", "text")
    assert claude.messages.count_tokens(model="claude-x", messages=[question]).input_tokens > 10
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="other", max_tokens=1, messages=[question])
