"""litellm: one interface to many providers; here its provider `openai` with another address."""

from __future__ import annotations

import json
import time
from typing import Any

import litellm
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


def _options(task: Any, provider: str = "openai") -> dict[str, Any]:
    return {
        "model": f"{provider}/{task.model}",
        "api_base": task.url,
        "api_key": task.key,
        "max_retries": task.retries,
        "timeout": task.timeout_s,
    }


def _request(task: Any, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": task.question}]
    return {**_options(task), "messages": messages, "extra_body": task.extra, **task.options, **more}


def _answer(completion: Any) -> dict[str, Any]:
    choice = completion.choices[0]
    return {"text": choice.message.content, "finish_reason": choice.finish_reason, "usage": _usage(completion.usage)}


def _usage(usage: Any) -> list[int]:
    return [usage.prompt_tokens, usage.completion_tokens]


def models(task: Any) -> list[str]:
    return litellm.get_valid_models(
        check_provider_endpoint=True, custom_llm_provider="openai", api_key=task.key, api_base=task.url
    )


def completion(task: Any) -> dict[str, Any]:
    done = litellm.text_completion(**_options(task, "text-completion-openai"), prompt=task.prompt, **task.options)
    return {"text": done.choices[0].text, "usage": _usage(done.usage)}


def chat(task: Any) -> dict[str, Any]:
    return _answer(litellm.completion(**_request(task)))


async def async_chat(task: Any) -> dict[str, Any]:
    return _answer(await litellm.acompletion(**_request(task)))


def history(task: Any) -> dict[str, Any]:
    question = {"role": "user", "content": task.question}
    messages = [{"role": "system", "content": task.system}, question]
    answer = litellm.completion(**_request(task, messages=messages)).choices[0].message
    return _answer(litellm.completion(**_request(task, messages=[*messages, answer, question])))


def tool_result(task: Any) -> dict[str, Any]:
    return _answer(litellm.completion(**_request(task, messages=task.exchange, tools=[task.tool])))


def stream(task: Any) -> list[str]:
    pieces = [chunk.choices[0].delta.content for chunk in litellm.completion(**_request(task, stream=True))]
    return [piece for piece in pieces if piece]


async def async_stream(task: Any) -> list[str]:
    chunks = await litellm.acompletion(**_request(task, stream=True))
    pieces = [chunk.choices[0].delta.content async for chunk in chunks]
    return [piece for piece in pieces if piece]


def stream_usage(task: Any) -> list[int]:
    chunks = litellm.completion(**_request(task, stream=True, stream_options={"include_usage": True}))
    return next(_usage(chunk.usage) for chunk in chunks if getattr(chunk, "usage", None))


def cancel(task: Any) -> None:
    chunks = litellm.completion(**_request(task, stream=True))
    next(iter(chunks))


async def async_cancel(task: Any) -> None:
    chunks = await litellm.acompletion(**_request(task, stream=True))
    await anext(aiter(chunks))
    await chunks.aclose()


def logprobs(task: Any) -> list[Any]:
    found = litellm.completion(**_request(task, logprobs=True, top_logprobs=2)).choices[0].logprobs.content
    return [[each.token, each.logprob, len(each.top_logprobs)] for each in found]


def several(task: Any) -> list[str]:
    return [choice.message.content for choice in litellm.completion(**_request(task, n=2)).choices]


def _calls(message: Any) -> list[dict[str, Any]]:
    calls = message.tool_calls or ()
    return [{"id": call.id, "name": call.function.name, "arguments": call.function.arguments} for call in calls]


def _called(completion: Any) -> dict[str, Any]:
    choice = completion.choices[0]
    return {"text": choice.message.content, "calls": _calls(choice.message), "finish_reason": choice.finish_reason}


def tools(task: Any, **more: Any) -> dict[str, Any]:
    return _called(litellm.completion(**_request(task, tools=[task.tool], **more)))


async def async_tools(task: Any) -> dict[str, Any]:
    return _called(await litellm.acompletion(**_request(task, tools=[task.tool])))


def stream_tools(task: Any, **more: Any) -> dict[str, Any]:
    chunks = list(litellm.completion(**_request(task, tools=[task.tool], stream=True, **more)))
    return _called(litellm.stream_chunk_builder(chunks))


def forced_tool(task: Any) -> dict[str, Any]:
    return tools(task, tool_choice="required")


def stream_forced_tool(task: Any) -> dict[str, Any]:
    return stream_tools(task, tool_choice="required")


def named_tool(task: Any) -> dict[str, Any]:
    choice = {"type": "function", "function": {"name": task.other_tool["function"]["name"]}}
    message = litellm.completion(**_request(task, tools=[task.tool, task.other_tool], tool_choice=choice)).choices[0]
    return {"calls": _calls(message.message)}  # litellm has finish reasons of its own


def no_tools(task: Any) -> dict[str, Any]:
    return tools(task, tool_choice="none")


def one_call(task: Any) -> dict[str, Any]:
    return tools(task, tool_choice="required", parallel_tool_calls=False)


def strict_tool(task: Any) -> dict[str, Any]:
    return tools(task)


def several_tools(task: Any) -> list[Any]:
    return [_calls(choice.message) for choice in litellm.completion(**_request(task, tools=[task.tool], n=2)).choices]


def tool_loop(task: Any) -> dict[str, Any]:
    question = {"role": "user", "content": task.question}
    first = litellm.completion(**_request(task, tools=[task.tool])).choices[0].message
    results = [
        {"role": "tool", "tool_call_id": each.id, "content": task.tool_answer} for each in first.tool_calls or ()
    ]
    done = litellm.completion(**_request(task, tools=[task.tool], messages=[question, first, *results]))
    return {"calls": _calls(first), "text": done.choices[0].message.content}


def reasoning(task: Any) -> dict[str, Any]:
    message = litellm.completion(**_request(task)).choices[0].message
    return {"reasoning": message.reasoning_content, "text": message.content}


def stream_reasoning(task: Any) -> dict[str, Any]:
    chunks = list(litellm.completion(**_request(task, stream=True)))
    message = litellm.stream_chunk_builder(chunks).choices[0].message
    return {"reasoning": message.reasoning_content, "text": message.content}


def reasoning_tokens(task: Any) -> list[int]:
    usage = litellm.completion(**_request(task)).usage
    return [usage.completion_tokens_details.reasoning_tokens, usage.completion_tokens]


def reasoning_back(task: Any) -> dict[str, Any]:
    question = {"role": "user", "content": task.question}
    first = litellm.completion(**_request(task)).choices[0].message
    return _answer(litellm.completion(**_request(task, messages=[question, first, question])))


def reasoning_tools(task: Any) -> dict[str, Any]:
    done = litellm.completion(**_request(task, tools=[task.tool]))
    return {**_called(done), "reasoning": done.choices[0].message.reasoning_content}


def structured(task: Any) -> Any:
    done = litellm.completion(**_request(task, response_format=Person))
    return Person.model_validate_json(done.choices[0].message.content).model_dump()


def stream_structured(task: Any) -> Any:
    chunks = list(litellm.completion(**_request(task, response_format=Person, stream=True)))
    return Person.model_validate_json(litellm.stream_chunk_builder(chunks).choices[0].message.content).model_dump()


def schema(task: Any) -> Any:
    response_format = {"type": "json_schema", "json_schema": {"name": "value", "schema": task.schema, "strict": True}}
    return json.loads(litellm.completion(**_request(task, response_format=response_format)).choices[0].message.content)


def json_object(task: Any) -> Any:
    done = litellm.completion(**_request(task, response_format={"type": "json_object"}))
    return json.loads(done.choices[0].message.content)


def _respond(task: Any, **more: Any) -> Any:
    return litellm.responses(**_options(task), **{"input": task.question, "temperature": 0, **more})


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", **tool["function"]}


def _dumped(item: Any) -> dict[str, Any]:
    return item if isinstance(item, dict) else item.model_dump()


def _response_calls(response: Any) -> list[dict[str, Any]]:
    calls = [item for item in map(_dumped, response.output) if item["type"] == "function_call"]
    return [{"id": call["call_id"], "name": call["name"], "arguments": call["arguments"]} for call in calls]


def _response_text(response: Any) -> str:
    items = [item for item in map(_dumped, response.output) if item["type"] == "message"]
    return "".join(part["text"] for item in items for part in item["content"])


def responses(task: Any) -> str:
    return _response_text(_respond(task))


async def async_responses(task: Any) -> str:
    return _response_text(await litellm.aresponses(**_options(task), input=task.question))


def responses_messages(task: Any) -> str:
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": task.question},
    ]
    return _response_text(_respond(task, instructions=task.system, input=messages))


def responses_tools(task: Any, **more: Any) -> dict[str, Any]:
    return {"calls": _response_calls(_respond(task, tools=[_function(task.tool)], **more))}


def responses_forced_tool(task: Any) -> dict[str, Any]:
    return responses_tools(task, tool_choice="required")


def responses_pieces(task: Any) -> list[str]:
    """The text only: litellm's objects have not all fields of an event."""
    return [event.delta for event in _respond(task, stream=True) if event.type == "response.output_text.delta"]


def responses_stream_call(task: Any) -> dict[str, Any]:
    *_, last = _respond(task, stream=True, tools=[_function(task.tool)])
    return {"calls": _response_calls(last.response)}


def responses_loop(task: Any) -> dict[str, Any]:
    asked = [{"role": "user", "content": task.question}]
    first = _respond(task, input=asked, tools=[_function(task.tool)])
    output = [_dumped(item) for item in first.output]
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": task.tool_answer}
        for item in output
        if item["type"] == "function_call"
    ]
    done = _respond(task, input=[*asked, *output, *results], tools=[_function(task.tool)])
    return {"calls": _response_calls(first), "text": _response_text(done)}


def responses_structured(task: Any) -> Any:
    return Person.model_validate_json(_response_text(_respond(task, text_format=Person))).model_dump()


def _message_request(task: Any, **more: Any) -> dict[str, Any]:
    """Request for `anthropic_messages`, which sends Anthropic's requests as they are; streamed, it needs litellm's
    proxy."""
    return {
        "model": f"anthropic/{task.model}",
        "api_base": task.url.removesuffix("/v1"),
        "api_key": task.key,
        "messages": [{"role": "user", "content": task.question}],
        "max_tokens": task.options["max_tokens"],
        "temperature": 0,
        **more,
    }


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    described = {"name": function["name"], "description": function["description"]}
    return {**described, "input_schema": function["parameters"]}


def _message_calls(message: Any) -> list[dict[str, Any]]:
    uses = [block for block in map(_dumped, message["content"]) if block["type"] == "tool_use"]
    return [{"id": use["id"], "name": use["name"], "arguments": use["input"]} for use in uses]


def _message_text(message: Any) -> str:
    return "".join(block["text"] for block in map(_dumped, message["content"]) if block["type"] == "text")


async def messages(task: Any) -> str:
    return _message_text(await litellm.anthropic.messages.acreate(**_message_request(task)))


async def messages_tools(task: Any) -> dict[str, Any]:
    request = _message_request(task, tools=[_tool(task.tool)])
    return {"calls": _message_calls(await litellm.anthropic.messages.acreate(**request))}


def batch(task: Any) -> dict[str, Any]:
    options = {"custom_llm_provider": "openai", "api_base": task.url, "api_key": task.key}
    body: dict[str, Any] = {"model": task.model, "temperature": 0}
    is_response = task.endpoint == "/v1/responses"
    body |= {"input": task.question} if is_response else {"messages": [{"role": "user", "content": task.question}]}
    rows = [{"custom_id": name, "method": "POST", "url": task.endpoint, "body": body} for name in "abc"]
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    file = litellm.create_file(file=("rows.jsonl", text), purpose="batch", **options)
    found = litellm.create_batch(completion_window="24h", endpoint=task.endpoint, input_file_id=file.id, **options)
    deadline = time.monotonic() + task.timeout_s
    while found.status in ("validating", "in_progress", "finalizing") and time.monotonic() < deadline:
        time.sleep(0.2)
        found = litellm.retrieve_batch(batch_id=found.id, **options)
    counts = found.request_counts
    content = litellm.file_content(file_id=found.output_file_id, **options).content.decode()
    done = [json.loads(line) for line in content.splitlines()]
    bodies = [row["response"]["body"] for row in done]
    texts = [
        body["output"][-1]["content"][0]["text"] if is_response else body["choices"][0]["message"]["content"]
        for body in bodies
    ]
    return {
        "status": found.status,
        "counts": [counts.total, counts.completed, counts.failed],
        "ids": [row["custom_id"] for row in done],
        "texts": texts,
    }


def embeddings(task: Any) -> int:
    return len(litellm.embedding(**_options(task), input=[task.question]).data[0]["embedding"])
