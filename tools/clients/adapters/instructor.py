"""instructor: typed answers, by tool calls (its default mode) or by `response_format`."""

from __future__ import annotations

from typing import Any, Literal

import instructor
import openai
from pydantic import BaseModel, Field


class Person(BaseModel):
    name: str = Field(max_length=20)  # so that a small model ends it
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


def structured(task: Any) -> Any:
    return _create(task, instructor.Mode.JSON_SCHEMA, response_model=Person).model_dump()


def structured_tool(task: Any) -> Any:
    return _create(task, response_model=Person).model_dump()


def stream_structured(task: Any) -> Any:
    client = instructor.from_openai(openai.OpenAI(**_options(task)), mode=instructor.Mode.JSON_SCHEMA)
    *_, last = client.chat.completions.create_partial(**_request(task, response_model=Person))
    return last.model_dump()


def strict_tool(task: Any) -> Any:
    class get_weather(BaseModel):  # the name of the tool
        """The weather in a city"""

        city: str = Field(max_length=12)
        unit: Literal["kelvin", "celsius"]

    found = _create(task, instructor.Mode.TOOLS_STRICT, response_model=get_weather)
    return {"calls": [{"name": type(found).__name__, "arguments": found.model_dump()}]}


def objects(task: Any) -> Any:
    client = instructor.from_openai(openai.OpenAI(**_options(task)), mode=instructor.Mode.TOOLS)
    request = _request(task, response_model=Person)
    return [each.model_dump() for each in client.chat.completions.create_iterable(**request)]


def responses_structured(task: Any) -> Any:
    client = instructor.from_openai(openai.OpenAI(**_options(task)), mode=instructor.Mode.RESPONSES_TOOLS)
    request = {"model": task.model, "input": task.question, "temperature": 0}
    return client.responses.create(**request, response_model=Person).model_dump()
