"""instructor: typed answers, by tool calls (its default mode) or by `response_format`."""

from __future__ import annotations

from typing import Any

import instructor
import openai
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


def _options(task: Any) -> dict[str, Any]:
    return {"base_url": task.url, "api_key": task.key, "max_retries": task.retries, "timeout": task.timeout_s}


def _request(task: Any, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": task.question}]
    return {"model": task.model, "messages": messages, "extra_body": task.extra, **task.options, **more}


def _create(task: Any, mode: instructor.Mode = instructor.Mode.TOOLS, **more: Any) -> Any:
    client = instructor.from_openai(openai.OpenAI(**_options(task)), mode=mode)
    return client.chat.completions.create(**_request(task, **more))


def _answer(completion: Any) -> dict[str, Any]:
    choice, usage = completion.choices[0], completion.usage
    return {
        "text": choice.message.content,
        "finish_reason": choice.finish_reason,
        "usage": [usage.prompt_tokens, usage.completion_tokens],
    }


def chat(task: Any) -> dict[str, Any]:
    return _answer(_create(task, response_model=None))


async def async_chat(task: Any) -> dict[str, Any]:
    async with openai.AsyncOpenAI(**_options(task)) as plain:
        client = instructor.from_openai(plain)
        return _answer(await client.chat.completions.create(**_request(task, response_model=None)))


def history(task: Any) -> dict[str, Any]:
    question = {"role": "user", "content": task.question}
    messages = [{"role": "system", "content": task.system}, question]
    answer = _create(task, response_model=None, messages=messages).choices[0].message.model_dump()
    return _answer(_create(task, response_model=None, messages=[*messages, answer, question]))


def forced_tool(task: Any) -> dict[str, Any]:
    return {"text": "", "calls": [type(_create(task, response_model=Person)).__name__]}


def structured(task: Any) -> Any:
    return _create(task, instructor.Mode.JSON_SCHEMA, response_model=Person).model_dump()
