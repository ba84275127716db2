"""litellm: one interface to many providers; here its provider `openai` with another address."""

from __future__ import annotations

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


def tools(task: Any, **more: Any) -> dict[str, Any]:
    message = litellm.completion(**_request(task, tools=[task.tool], **more)).choices[0].message
    return {"text": message.content, "calls": [call.function.name for call in message.tool_calls or ()]}


def forced_tool(task: Any) -> dict[str, Any]:
    return tools(task, tool_choice="required")


def structured(task: Any) -> Any:
    done = litellm.completion(**_request(task, response_format=Person))
    return Person.model_validate_json(done.choices[0].message.content).model_dump()


def responses(task: Any) -> str:
    done = litellm.responses(**_options(task), input=task.question)
    return "".join(part.text for item in done.output for part in getattr(item, "content", None) or ())


def embeddings(task: Any) -> int:
    return len(litellm.embedding(**_options(task), input=[task.question]).data[0]["embedding"])
