"""openai, the Python library of OpenAI."""

from __future__ import annotations

import json
import time
from typing import Any, Literal

import openai
from pydantic import BaseModel, Field

from ..events import chat_answer, response_answer


class Person(BaseModel):
    name: str
    age: int


class Weather(BaseModel):
    city: str = Field(max_length=12)  # so that a small model ends it
    unit: Literal["kelvin", "celsius"]


def _options(task: Any) -> dict[str, Any]:
    return {"base_url": task.url, "api_key": task.key, "max_retries": task.retries, "timeout": task.timeout_s}


def _messages(task: Any) -> list[dict[str, str]]:
    return [{"role": "user", "content": task.question}]


def _chat(task: Any, **more: Any) -> Any:
    request = {"model": task.model, "messages": _messages(task), "extra_body": task.extra, **task.options, **more}
    return openai.OpenAI(**_options(task)).chat.completions.create(**request)


def _answer(completion: Any) -> dict[str, Any]:
    choice = completion.choices[0]
    return {"text": choice.message.content, "finish_reason": choice.finish_reason, "usage": _usage(completion.usage)}


def _usage(usage: Any) -> list[int]:
    return [usage.prompt_tokens, usage.completion_tokens]


def models(task: Any) -> list[str]:
    return [model.id for model in openai.OpenAI(**_options(task)).models.list()]


def completion(task: Any) -> dict[str, Any]:
    done = openai.OpenAI(**_options(task)).completions.create(model=task.model, prompt=task.prompt, **task.options)
    return {"text": done.choices[0].text, "usage": _usage(done.usage)}


def chat(task: Any) -> dict[str, Any]:
    return _answer(_chat(task))


async def async_chat(task: Any) -> dict[str, Any]:
    async with openai.AsyncOpenAI(**_options(task)) as client:
        return _answer(await client.chat.completions.create(model=task.model, messages=_messages(task), **task.options))


def raw(task: Any) -> dict[str, Any]:
    client = openai.OpenAI(**_options(task))
    response = client.chat.completions.with_raw_response.create(
        model=task.model, messages=_messages(task), **task.options
    )
    return {**_answer(response.parse()), "headers": sorted(name.lower() for name in response.headers)}


def history(task: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": task.system}, *_messages(task)]
    answer = _chat(task, messages=messages).choices[0].message
    return _answer(_chat(task, messages=[*messages, answer, *_messages(task)]))


def tool_result(task: Any) -> dict[str, Any]:
    return _answer(_chat(task, messages=task.exchange, tools=[task.tool]))


def stream(task: Any) -> list[str]:
    pieces = [chunk.choices[0].delta.content for chunk in _chat(task, stream=True) if chunk.choices]
    return [piece for piece in pieces if piece]


async def async_stream(task: Any) -> list[str]:
    async with openai.AsyncOpenAI(**_options(task)) as client:
        chunks = await client.chat.completions.create(
            model=task.model, messages=_messages(task), stream=True, **task.options
        )
        pieces = [chunk.choices[0].delta.content async for chunk in chunks if chunk.choices]
    return [piece for piece in pieces if piece]


def stream_usage(task: Any) -> list[int]:
    *_, last = _chat(task, stream=True, stream_options={"include_usage": True})
    return _usage(last.usage)


def cancel(task: Any) -> None:
    with _chat(task, stream=True) as chunks:
        next(iter(chunks))


async def async_cancel(task: Any) -> None:
    async with openai.AsyncOpenAI(**_options(task)) as client:
        request = {"model": task.model, "messages": _messages(task), "extra_body": task.extra, **task.options}
        async with await client.chat.completions.create(**request, stream=True) as chunks:
            await anext(aiter(chunks))


def logprobs(task: Any) -> list[Any]:
    found = _chat(task, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    return [[each.token, each.logprob, len(each.top_logprobs)] for each in found]


def several(task: Any) -> list[str]:
    return [choice.message.content for choice in _chat(task, n=2).choices]


def _calls(message: Any) -> list[dict[str, Any]]:
    calls = message.tool_calls or ()
    return [{"id": call.id, "name": call.function.name, "arguments": call.function.arguments} for call in calls]


def _called(completion: Any) -> dict[str, Any]:
    choice = completion.choices[0]
    return {"text": choice.message.content, "calls": _calls(choice.message), "finish_reason": choice.finish_reason}


def tools(task: Any, **more: Any) -> dict[str, Any]:
    return _called(_chat(task, tools=[task.tool], **more))


async def async_tools(task: Any) -> dict[str, Any]:
    async with openai.AsyncOpenAI(**_options(task)) as client:
        request = {"model": task.model, "messages": _messages(task), "tools": [task.tool], **task.options}
        return _called(await client.chat.completions.create(**request))


def stream_tools(task: Any, **more: Any) -> dict[str, Any]:
    return chat_answer(chunk.model_dump() for chunk in _chat(task, tools=[task.tool], stream=True, **more))


def forced_tool(task: Any) -> dict[str, Any]:
    return tools(task, tool_choice="required")


def stream_forced_tool(task: Any) -> dict[str, Any]:
    return stream_tools(task, tool_choice="required")


def _choice(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def named_tool(task: Any) -> dict[str, Any]:
    name = task.other_tool["function"]["name"]
    return _called(_chat(task, tools=[task.tool, task.other_tool], tool_choice=_choice(name)))


def allowed_tools(task: Any) -> dict[str, Any]:
    allowed = {"mode": "required", "tools": [_choice(task.other_tool["function"]["name"])]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    return _called(_chat(task, tools=[task.tool, task.other_tool], tool_choice=choice))


def no_tools(task: Any) -> dict[str, Any]:
    return tools(task, tool_choice="none")


def one_call(task: Any) -> dict[str, Any]:
    return tools(task, tool_choice="required", parallel_tool_calls=False)


def strict_tool(task: Any) -> dict[str, Any]:
    return tools(task)


def parsed_tool(task: Any) -> dict[str, Any]:
    client = openai.OpenAI(**_options(task))
    tool = openai.pydantic_function_tool(Weather, name=task.tool["function"]["name"])
    done = client.chat.completions.parse(
        model=task.model, messages=_messages(task), tools=[tool], tool_choice="required", **task.options
    )
    calls = done.choices[0].message.tool_calls or ()
    found = [
        {"id": call.id, "name": call.function.name, "arguments": call.function.parsed_arguments.model_dump()}
        for call in calls
    ]
    return {"calls": found}


def several_tools(task: Any) -> list[Any]:
    return [_calls(choice.message) for choice in _chat(task, tools=[task.tool], n=2).choices]


def functions(task: Any) -> dict[str, Any]:
    message = _chat(task, functions=[task.tool["function"]]).choices[0].message
    return {"text": message.content, "calls": [message.function_call.name] if message.function_call else []}


def _results(task: Any, message: Any) -> list[dict[str, Any]]:
    ids = [call.id for call in message.tool_calls or ()]
    return [{"role": "tool", "tool_call_id": each, "content": task.tool_answer} for each in ids]


def tool_loop(task: Any) -> dict[str, Any]:
    first = _chat(task, tools=[task.tool]).choices[0].message
    results = [
        {"role": "tool", "tool_call_id": each.id, "content": task.tool_answer} for each in first.tool_calls or ()
    ]
    done = _chat(task, tools=[task.tool], messages=[*_messages(task), first, *results])
    return {"calls": _calls(first), "text": done.choices[0].message.content}


def stream_tool_loop(task: Any) -> dict[str, Any]:
    client = openai.OpenAI(**_options(task))
    request = {"model": task.model, "tools": [task.tool], **task.options}
    with client.chat.completions.stream(messages=_messages(task), **request) as stream:
        first = stream.get_final_completion().choices[0].message
    results = [
        {"role": "tool", "tool_call_id": each.id, "content": task.tool_answer} for each in first.tool_calls or ()
    ]
    with client.chat.completions.stream(messages=[*_messages(task), first, *results], **request) as stream:
        text = stream.get_final_completion().choices[0].message.content
    return {"calls": _calls(first), "text": text}


def reasoning(task: Any) -> dict[str, Any]:
    message = _chat(task).choices[0].message
    assert message.reasoning_content == message.reasoning, "`reasoning_content` is not `reasoning`"
    return {"reasoning": message.reasoning, "text": message.content}


def stream_reasoning(task: Any) -> dict[str, Any]:
    return chat_answer(chunk.model_dump() for chunk in _chat(task, stream=True))


def effort(task: Any, level: str = "low") -> dict[str, Any]:
    message = _chat(task, reasoning_effort=level).choices[0].message
    return {"reasoning": message.reasoning, "text": message.content}


def no_effort(task: Any) -> dict[str, Any]:
    message = _chat(task, extra_body={}, reasoning_effort="none").choices[0].message
    return {"reasoning": message.reasoning, "text": message.content}


def hidden_reasoning(task: Any) -> dict[str, Any]:
    message = _chat(task, extra_body={**task.extra, "include_reasoning": False}).choices[0].message
    return {"reasoning": getattr(message, "reasoning", None), "text": message.content}


def reasoning_tokens(task: Any) -> list[int]:
    usage = _chat(task).usage
    return [usage.completion_tokens_details.reasoning_tokens, usage.completion_tokens]


def reasoning_back(task: Any) -> dict[str, Any]:
    first = _chat(task).choices[0].message
    return _answer(_chat(task, messages=[*_messages(task), first.model_dump(), *_messages(task)]))


def reasoning_tools(task: Any) -> dict[str, Any]:
    done = _chat(task, tools=[task.tool])
    return {**_called(done), "reasoning": done.choices[0].message.reasoning}


def structured(task: Any) -> Any:
    client = openai.OpenAI(**_options(task))
    done = client.chat.completions.parse(
        model=task.model, messages=_messages(task), response_format=Person, **task.options
    )
    return done.choices[0].message.parsed.model_dump()


def stream_structured(task: Any) -> Any:
    client = openai.OpenAI(**_options(task))
    request = {"model": task.model, "messages": _messages(task), **task.options}
    with client.chat.completions.stream(response_format=Person, **request) as stream:
        return stream.get_final_completion().choices[0].message.parsed.model_dump()


def _formatted(task: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "value", "schema": task.schema, "strict": True}}


def schema(task: Any) -> Any:
    return json.loads(_chat(task, response_format=_formatted(task)).choices[0].message.content)


def json_object(task: Any) -> Any:
    return json.loads(_chat(task, response_format={"type": "json_object"}).choices[0].message.content)


def structured_reasoning(task: Any) -> Any:
    message = _chat(task, response_format=_formatted(task)).choices[0].message
    return {"reasoning": message.reasoning, "value": json.loads(message.content)}


def _constrained(task: Any, **constraint: Any) -> str:
    return _chat(task, extra_body={"structured_outputs": constraint}).choices[0].message.content


def regex(task: Any) -> list[Any]:
    return [_constrained(task, regex="(red|green) [0-3]"), [f"{c} {n}" for c in ("red", "green") for n in range(4)]]


def choice(task: Any) -> list[Any]:
    return [_constrained(task, choice=["red", "green"]), ["red", "green"]]


def grammar(task: Any) -> list[Any]:
    return [_constrained(task, grammar='start: "red" | "green"'), ["red", "green"]]


def several_objects(task: Any) -> Any:
    return [json.loads(each.message.content) for each in _chat(task, n=2, response_format=_formatted(task)).choices]


def wrong_schema(task: Any) -> list[Any]:
    try:
        return [200, None, str(schema(task))]
    except openai.BadRequestError as error:
        return [error.status_code, error.param, error.body["message"]]


def _respond(task: Any, **more: Any) -> Any:
    names = {"max_tokens": "max_output_tokens"}
    options = {names.get(name, name): value for name, value in task.options.items()}
    request = {"model": task.model, "input": task.question, "extra_body": task.extra, **options, **more}
    return openai.OpenAI(**_options(task)).responses.create(**request)


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    """The form of a function tool in Responses."""
    return {"type": "function", **tool["function"]}


def _response_calls(response: Any) -> list[dict[str, Any]]:
    calls = [item for item in response.output if item.type == "function_call"]
    return [{"id": call.call_id, "name": call.name, "arguments": call.arguments} for call in calls]


def responses(task: Any) -> str:
    return _respond(task).output_text


async def async_responses(task: Any) -> str:
    async with openai.AsyncOpenAI(**_options(task)) as client:
        return (await client.responses.create(model=task.model, input=task.question)).output_text


def responses_messages(task: Any) -> str:
    content = [{"type": "input_text", "text": task.question}]
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello."},
        {"type": "message", "role": "user", "content": content},
    ]
    return _respond(task, instructions=task.system, input=messages).output_text


def responses_stream(task: Any, **more: Any) -> list[Any]:
    return [event.model_dump() for event in _respond(task, stream=True, **more)]


def responses_tools(task: Any, **more: Any) -> dict[str, Any]:
    return {"calls": _response_calls(_respond(task, tools=[_function(task.tool)], **more))}


def responses_forced_tool(task: Any) -> dict[str, Any]:
    return responses_tools(task, tool_choice="required")


def responses_stream_tools(task: Any) -> list[Any]:
    return responses_stream(task, tools=[_function(task.tool)])


def responses_loop(task: Any) -> dict[str, Any]:
    asked = [{"role": "user", "content": task.question}]
    first = _respond(task, input=asked, tools=[_function(task.tool)])
    results = [
        {"type": "function_call_output", "call_id": item.call_id, "output": task.tool_answer}
        for item in first.output
        if item.type == "function_call"
    ]
    done = _respond(task, input=[*asked, *first.output, *results], tools=[_function(task.tool)])
    return {"calls": _response_calls(first), "text": done.output_text}


def _patch_tool(**more: Any) -> dict[str, Any]:
    return {"type": "custom", "name": "apply_patch", "description": "Change files", **more}


def responses_custom(task: Any, **more: Any) -> list[Any]:
    choice = {"type": "custom", "name": "apply_patch"}
    done = _respond(task, tools=[_patch_tool(**more)], tool_choice=choice)
    return [item.model_dump() for item in done.output]


def _lark(task: Any) -> dict[str, Any]:
    return {"type": "grammar", "syntax": "lark", "definition": task.lark}


def responses_grammar(task: Any) -> list[Any]:
    return responses_custom(task, format=_lark(task))


def responses_stream_grammar(task: Any) -> list[Any]:
    choice = {"type": "custom", "name": "apply_patch"}
    return response_answer(responses_stream(task, tools=[_patch_tool(format=_lark(task))], tool_choice=choice))[
        "output"
    ]


def responses_unknown_tools(task: Any) -> dict[str, Any]:
    tools = [{"type": "web_search"}, _function(task.tool), {"type": "image_generation"}]
    return {"calls": _response_calls(_respond(task, tools=tools))}


def responses_structured(task: Any) -> Any:
    client = openai.OpenAI(**_options(task))
    done = client.responses.parse(model=task.model, input=task.question, text_format=Person, temperature=0)
    return done.output_parsed.model_dump()


def responses_stream_structured(task: Any) -> Any:
    client = openai.OpenAI(**_options(task))
    request = {"model": task.model, "input": task.question, "temperature": 0}
    with client.responses.stream(text_format=Person, **request) as stream:
        return stream.get_final_response().output_parsed.model_dump()


def responses_json_object(task: Any) -> Any:
    return json.loads(_respond(task, text={"format": {"type": "json_object"}}).output_text)


def responses_reasoning(task: Any) -> list[Any]:
    return responses_stream(task)


def responses_reasoning_back(task: Any) -> str:
    asked = {"role": "user", "content": task.question}
    first = _respond(task, input=[asked], reasoning={"effort": "low"})
    assert [item.type for item in first.output] == ["reasoning", "message"], first.output
    return _respond(task, input=[asked, *first.output, asked], reasoning={"effort": "low"}).output_text


def responses_incomplete(task: Any) -> list[Any]:
    done = _respond(task, max_output_tokens=3)
    return [done.status, done.incomplete_details and done.incomplete_details.reason]


def responses_stored(task: Any) -> dict[str, Any]:
    client = openai.OpenAI(**_options(task))
    first = _respond(task, store=True)
    more = _respond(task, store=True, previous_response_id=first.id)
    retrieved = client.responses.retrieve(first.id)
    inputs = client.responses.input_items.list(first.id)
    client.responses.delete(first.id)
    try:
        client.responses.retrieve(first.id)
        deleted = "it is still there"
    except openai.OpenAIError as error:
        deleted = f"openai.{type(error).__name__}"
    return {
        "text": first.output_text,
        "retrieved": retrieved.output_text,
        "input_items": len(inputs.data),
        "first": first.usage.input_tokens,
        "more": more.usage.input_tokens,
        "deleted": deleted,
    }


def responses_background(task: Any) -> str:
    begun = _respond(task, background=True, store=True, max_output_tokens=1900)
    assert begun.status in ("queued", "in_progress"), begun.status
    client = openai.OpenAI(**_options(task))
    client.responses.cancel(begun.id)
    return client.responses.retrieve(begun.id).status


def responses_probe(task: Any) -> str:
    return _respond(task, input=[], max_output_tokens=1).status


def responses_input_tokens(task: Any) -> list[int]:
    counted = openai.OpenAI(**_options(task)).responses.input_tokens.count(model=task.model, input=task.question)
    return [counted.input_tokens, _respond(task).usage.input_tokens]


def files(task: Any) -> dict[str, Any]:
    client = openai.OpenAI(**_options(task))
    sent = json.dumps({"custom_id": "a"}) + "\n"
    made = client.files.create(file=("rows.jsonl", sent.encode()), purpose="batch")
    listed = [each.id for each in client.files.list()]
    content = client.files.content(made.id).text
    size = client.files.retrieve(made.id).bytes
    deleted = client.files.delete(made.id).deleted
    try:
        client.files.retrieve(made.id)
        after = "it is still there"
    except openai.OpenAIError as error:
        after = f"openai.{type(error).__name__}"
    return {
        "sent": sent,
        "content": content,
        "is_listed": made.id in listed,
        "bytes": size,
        "deleted": deleted,
        "after": after,
    }


def _row(task: Any, endpoint: str, name: str, **more: Any) -> dict[str, Any]:
    body = {"model": task.model, "temperature": 0}
    body |= {"input": task.question} if endpoint == "/v1/responses" else {"messages": _messages(task)}
    return {"custom_id": name, "method": "POST", "url": endpoint, "body": {**body, **more}}


def _begun(client: openai.OpenAI, endpoint: str, rows: list[dict[str, Any]]) -> Any:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    file = client.files.create(file=("rows.jsonl", text.encode()), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")


def _run_batch(task: Any, endpoint: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    client = openai.OpenAI(**_options(task))
    batch = _begun(client, endpoint, rows)
    deadline = time.monotonic() + task.timeout_s
    while batch.status in ("validating", "in_progress", "finalizing") and time.monotonic() < deadline:
        time.sleep(0.2)
        batch = client.batches.retrieve(batch.id)
    assert batch.id in [each.id for each in client.batches.list()], "the batch is not listed"
    counts = batch.request_counts
    done = _lines(client, batch.output_file_id)
    bodies = [row["response"]["body"] for row in done]
    if endpoint == "/v1/responses":
        texts = [item["content"][0]["text"] for body in bodies for item in body["output"] if item["type"] == "message"]
    else:
        texts = [body["choices"][0]["message"]["content"] for body in bodies]
    return {
        "status": batch.status,
        "counts": [counts.total, counts.completed, counts.failed],
        "ids": [row["custom_id"] for row in done],
        "failed": [row["custom_id"] for row in _lines(client, batch.error_file_id)],
        "texts": texts,
    }


def _lines(client: openai.OpenAI, file_id: str | None) -> list[Any]:
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()] if file_id else []


def batch(task: Any) -> dict[str, Any]:
    return _run_batch(task, task.endpoint, [_row(task, task.endpoint, name) for name in "abc"])


def batch_error(task: Any) -> dict[str, Any]:
    endpoint = "/v1/chat/completions"
    rows = [_row(task, endpoint, "right"), _row(task, endpoint, "wrong", temperature="hot")]
    return _run_batch(task, endpoint, rows)


def batch_cancel(task: Any) -> str:
    client = openai.OpenAI(**_options(task))
    endpoint = "/v1/chat/completions"
    rows = [_row(task, endpoint, str(number), max_tokens=1900, ignore_eos=True) for number in range(20)]
    return client.batches.cancel(_begun(client, endpoint, rows).id).status


def embeddings(task: Any) -> int:
    done = openai.OpenAI(**_options(task)).embeddings.create(model=task.model, input=task.question)
    return len(done.data[0].embedding)
