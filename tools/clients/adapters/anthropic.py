"""anthropic, the Python library of Anthropic, for the Messages API."""

from __future__ import annotations

import json
from typing import Any

import anthropic
from anthropic import beta_tool
from pydantic import BaseModel

# In OpenAI's words, with which the answers of all clients are compared.
_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
_MAX_TOKENS = 60
_THINKING = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1100}


class Person(BaseModel):
    name: str
    age: int


def _options(task: Any) -> dict[str, Any]:
    url = task.url.removesuffix("/v1")
    return {"base_url": url, "api_key": task.key, "max_retries": task.retries, "timeout": task.timeout_s}


def _client(task: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(**_options(task))


def _messages(task: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": task.question}]


def _request(task: Any, **more: Any) -> dict[str, Any]:
    options = {**task.options}
    known = {"max_tokens": options.pop("max_tokens", _MAX_TOKENS)}
    if "stop" in options:
        known["stop_sequences"] = options.pop("stop")
    extra = {**options, **task.extra}  # with the temperature, for which this library has no argument any more
    return {"model": task.model, "messages": _messages(task), "extra_body": extra, **known, **more}


def _create(task: Any, **more: Any) -> Any:
    return _client(task).messages.create(**_request(task, **more))


def _text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def _thinking_of(message: Any) -> str:
    return "".join(block.thinking for block in message.content if block.type == "thinking")


def _usage(usage: Any) -> list[int]:
    cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    return [usage.input_tokens + cached, usage.output_tokens]


def _answer(message: Any) -> dict[str, Any]:
    return {
        "text": _text_of(message),
        "finish_reason": _REASONS[message.stop_reason],
        "usage": _usage(message.usage),
    }


def models(task: Any) -> list[str]:
    return [model.id for model in _client(task).models.list()]


def chat(task: Any) -> dict[str, Any]:
    return _answer(_create(task))


async def async_chat(task: Any) -> dict[str, Any]:
    async with anthropic.AsyncAnthropic(**_options(task)) as client:
        return _answer(await client.messages.create(**_request(task)))


def history(task: Any) -> dict[str, Any]:
    answer = _create(task, system=task.system)
    messages = [*_messages(task), {"role": "assistant", "content": answer.content}, *_messages(task)]
    system = [{"type": "text", "text": task.system, "cache_control": {"type": "ephemeral"}}]
    return _answer(_create(task, system=system, messages=messages))


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    more = {"strict": True} if function.get("strict") else {}
    described = {"name": function["name"], "description": function["description"]}
    return {**described, "input_schema": function["parameters"], **more}


def _result(call: Any, answer: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call.id, "content": answer}


def tool_result(task: Any) -> dict[str, Any]:
    asked, called, answered = task.exchange
    (call,) = called["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    use = {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": arguments}
    content = [{"type": "text", "text": answered["content"]}]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": content, "is_error": False}
    messages = [asked, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    return _answer(_create(task, messages=messages, tools=[_tool(task.tool)]))


def stream(task: Any) -> list[str]:
    with _client(task).messages.stream(**_request(task)) as found:
        return [text for text in found.text_stream if text]


async def async_stream(task: Any) -> list[str]:
    async with anthropic.AsyncAnthropic(**_options(task)) as client, client.messages.stream(**_request(task)) as found:
        return [text async for text in found.text_stream if text]


def stream_usage(task: Any) -> list[int]:
    with _client(task).messages.stream(**_request(task)) as found:
        return _usage(found.get_final_message().usage)


def cancel(task: Any) -> None:
    with _client(task).messages.stream(**_request(task)) as found:
        next(iter(found.text_stream))


async def async_cancel(task: Any) -> None:
    async with anthropic.AsyncAnthropic(**_options(task)) as client, client.messages.stream(**_request(task)) as found:
        await anext(aiter(found.text_stream))


def _calls(message: Any) -> list[dict[str, Any]]:
    uses = [block for block in message.content if block.type == "tool_use"]
    return [{"id": use.id, "name": use.name, "arguments": use.input} for use in uses]


def _called(message: Any) -> dict[str, Any]:
    return {"text": _text_of(message), "calls": _calls(message), "finish_reason": _REASONS[message.stop_reason]}


def tools(task: Any, **more: Any) -> dict[str, Any]:
    return _called(_create(task, tools=[_tool(task.tool)], **more))


async def async_tools(task: Any) -> dict[str, Any]:
    async with anthropic.AsyncAnthropic(**_options(task)) as client:
        return _called(await client.messages.create(**_request(task, tools=[_tool(task.tool)])))


def stream_tools(task: Any, **more: Any) -> dict[str, Any]:
    with _client(task).messages.stream(**_request(task, tools=[_tool(task.tool)], **more)) as found:
        return _called(found.get_final_message())


def forced_tool(task: Any) -> dict[str, Any]:
    return tools(task, tool_choice={"type": "any"})


def stream_forced_tool(task: Any) -> dict[str, Any]:
    return stream_tools(task, tool_choice={"type": "any"})


def named_tool(task: Any) -> dict[str, Any]:
    choice = {"type": "tool", "name": task.other_tool["function"]["name"]}
    message = _create(task, tools=[_tool(task.tool), _tool(task.other_tool)], tool_choice=choice)
    return {"calls": _calls(message)}  # stop_reason is tool_use here: only OpenAI has `stop` for a named tool


def no_tools(task: Any) -> dict[str, Any]:
    return tools(task, tool_choice={"type": "none"})


def one_call(task: Any) -> dict[str, Any]:
    return tools(task, tool_choice={"type": "any", "disable_parallel_tool_use": True})


def strict_tool(task: Any) -> dict[str, Any]:
    return tools(task)


def tool_loop(task: Any) -> dict[str, Any]:
    first = _create(task, tools=[_tool(task.tool)])
    results = [_result(block, task.tool_answer) for block in first.content if block.type == "tool_use"]
    messages = [*_messages(task), {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    return {"calls": _calls(first), "text": _text_of(_create(task, tools=[_tool(task.tool)], messages=messages))}


def reasoning(task: Any) -> dict[str, Any]:
    message = _create(task, **_THINKING)
    assert all(block.signature for block in message.content if block.type == "thinking"), "no signature"
    return {"reasoning": _thinking_of(message), "text": _text_of(message)}


def stream_reasoning(task: Any) -> dict[str, Any]:
    with _client(task).messages.stream(**_request(task, **_THINKING)) as found:
        message = found.get_final_message()
    assert all(block.signature for block in message.content if block.type == "thinking"), "no signature"
    return {"reasoning": _thinking_of(message), "text": _text_of(message)}


def no_effort(task: Any) -> dict[str, Any]:
    message = _create(task, thinking={"type": "disabled"}, extra_body={"temperature": 0})
    return {"reasoning": _thinking_of(message), "text": _text_of(message)}


def reasoning_back(task: Any) -> dict[str, Any]:
    first = _create(task, **_THINKING)
    messages = [*_messages(task), {"role": "assistant", "content": first.content}, *_messages(task)]
    return _answer(_create(task, messages=messages, **_THINKING))


def reasoning_tools(task: Any) -> dict[str, Any]:
    message = _create(task, tools=[_tool(task.tool)], **_THINKING)
    return {**_called(message), "reasoning": _thinking_of(message)}


def structured(task: Any) -> Any:
    done = _client(task).messages.parse(output_format=Person, **_request(task))
    return done.parsed_output.model_dump()


def schema(task: Any) -> Any:
    output = {"format": {"type": "json_schema", "schema": task.schema}}
    return json.loads(_text_of(_create(task, output_config=output)))


def messages(task: Any) -> str:
    return _text_of(_create(task))


def messages_stream(task: Any, **more: Any) -> list[Any]:
    """The events as they were sent, without those that the library adds."""
    return [event.model_dump() for event in _create(task, stream=True, **more)]


def messages_tools(task: Any) -> dict[str, Any]:
    return tools(task)


def messages_stream_tools(task: Any) -> list[Any]:
    return messages_stream(task, tools=[_tool(task.tool)])


def messages_thinking(task: Any) -> list[Any]:
    return messages_stream(task, **_THINKING)


def messages_count(task: Any, **more: Any) -> list[int]:
    request = {"model": task.model, "messages": _messages(task), "system": task.system, **more}
    counted = _client(task).messages.count_tokens(**request).input_tokens
    used = _client(task).messages.create(max_tokens=1, **request)
    return [counted, _usage(used.usage)[0]]


def messages_tools_count(task: Any) -> list[int]:
    return messages_count(task, tools=[_tool(task.tool)])


def messages_agent(task: Any) -> dict[str, Any]:
    calls = []

    @beta_tool
    def get_weather(city: str) -> str:
        """The weather in a city.

        Args:
            city: Name of the city
        """
        calls.append({"name": "get_weather", "arguments": {"city": city}})
        return str(task.tool_answer)

    request = _request(task)
    # thread=False: the transcript is sent with every request, as the server keeps none
    runner = _client(task).beta.messages.tool_runner(tools=[get_weather], max_iterations=3, thread=False, **request)
    return {"text": _text_of(runner.until_done()), "calls": calls}
