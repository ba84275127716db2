"""openai, the Python library of OpenAI."""

from __future__ import annotations

from typing import Any

import openai
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


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


def tools(task: Any, **more: Any) -> dict[str, Any]:
    message = _chat(task, tools=[task.tool], **more).choices[0].message
    return {"text": message.content, "calls": [call.function.name for call in message.tool_calls or ()]}


def forced_tool(task: Any) -> dict[str, Any]:
    return tools(task, tool_choice="required")


def structured(task: Any) -> Any:
    client = openai.OpenAI(**_options(task))
    done = client.beta.chat.completions.parse(
        model=task.model, messages=_messages(task), response_format=Person, **task.options
    )
    return done.choices[0].message.parsed.model_dump()


def responses(task: Any) -> str:
    return openai.OpenAI(**_options(task)).responses.create(model=task.model, input=task.question).output_text


def embeddings(task: Any) -> int:
    done = openai.OpenAI(**_options(task)).embeddings.create(model=task.model, input=task.question)
    return len(done.data[0].embedding)
