"""pydantic-ai: agents with typed answers; its model for OpenAI's chat API."""

from __future__ import annotations

from typing import Any

import openai
from pydantic import BaseModel
from pydantic_ai import Agent, Embedder, NativeOutput, PromptedOutput
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class Person(BaseModel):
    name: str
    age: int


def get_weather(city: str) -> str:
    """The weather in a city."""
    return '{"temperature": 7}'


def _provider(task: Any) -> OpenAIProvider:
    client = openai.AsyncOpenAI(base_url=task.url, api_key=task.key, max_retries=task.retries, timeout=task.timeout_s)
    return OpenAIProvider(openai_client=client)


def _settings(task: Any, **more: Any) -> Any:
    names = {"stop": "stop_sequences"}
    options = {names.get(name, name): value for name, value in task.options.items()}
    return {"extra_body": task.extra, **options, **more}


def _agent(task: Any, settings: dict[str, Any] | None = None, **more: Any) -> Agent[Any, Any]:
    model = OpenAIChatModel(task.model, provider=_provider(task))
    return Agent(model, model_settings=_settings(task, **(settings or {})), **more)


def _answer(result: Any) -> dict[str, Any]:
    return {"text": result.output, "finish_reason": result.response.finish_reason, "usage": _usage(result)}


def _usage(result: Any) -> list[int]:
    usage = result.usage
    return [usage.input_tokens, usage.output_tokens]


def chat(task: Any) -> dict[str, Any]:
    return _answer(_agent(task).run_sync(task.question))


async def async_chat(task: Any) -> dict[str, Any]:
    return _answer(await _agent(task).run(task.question))


def history(task: Any) -> dict[str, Any]:
    agent = _agent(task, instructions=task.system)
    answer = agent.run_sync(task.question)
    return _answer(agent.run_sync(task.question, message_history=answer.all_messages()))


def tool_result(task: Any) -> dict[str, Any]:
    question, call, result = task.exchange
    function = call["tool_calls"][0]["function"]
    history = [
        ModelRequest([UserPromptPart(question["content"])]),
        ModelResponse([ToolCallPart(function["name"], function["arguments"], result["tool_call_id"])]),
        ModelRequest([ToolReturnPart(function["name"], result["content"], result["tool_call_id"])]),
    ]
    return _answer(_agent(task, tools=[get_weather]).run_sync(message_history=history))


async def async_stream(task: Any) -> list[str]:
    async with _agent(task).run_stream(task.question) as result:
        return [piece async for piece in result.stream_text(delta=True, debounce_by=None)]


async def stream_usage(task: Any) -> list[int]:
    async with _agent(task).run_stream(task.question) as result:
        await result.get_output()
        return _usage(result)


async def async_cancel(task: Any) -> None:
    async with _agent(task).run_stream(task.question) as result:
        async for _ in result.stream_text(delta=True, debounce_by=None):
            break


def logprobs(task: Any) -> list[Any]:
    result = _agent(task, {"openai_logprobs": True, "openai_top_logprobs": 2}).run_sync(task.question)
    found = result.response.provider_details["logprobs"]
    return [[each["token"], each["logprob"], len(each["top_logprobs"])] for each in found]


def _calls(result: Any) -> list[dict[str, Any]]:
    responses = [each for each in result.all_messages() if isinstance(each, ModelResponse)]
    parts = [part for response in responses for part in response.parts if isinstance(part, ToolCallPart)]
    return [{"id": part.tool_call_id, "name": part.tool_name, "arguments": part.args_as_dict()} for part in parts]


def _loop(result: Any) -> dict[str, Any]:
    return {"text": result.output, "calls": _calls(result)}


def tools(task: Any) -> dict[str, Any]:
    return _loop(_agent(task, tools=[get_weather]).run_sync(task.question))


async def async_tools(task: Any) -> dict[str, Any]:
    return _loop(await _agent(task, tools=[get_weather]).run(task.question))


async def stream_tools(task: Any) -> dict[str, Any]:
    async with _agent(task, tools=[get_weather]).run_stream(task.question) as result:
        text = await result.get_output()
        return {"text": text, "calls": _calls(result)}


def tool_loop(task: Any) -> dict[str, Any]:
    return tools(task)


def stream_tool_loop(task: Any) -> Any:
    return stream_tools(task)


def _thinking(result: Any) -> dict[str, Any]:
    parts = [part for part in result.response.parts if isinstance(part, ThinkingPart)]
    return {"reasoning": "".join(part.content for part in parts), "text": result.output}


def reasoning(task: Any) -> dict[str, Any]:
    return _thinking(_agent(task).run_sync(task.question))


async def stream_reasoning(task: Any) -> dict[str, Any]:
    async with _agent(task).run_stream(task.question) as result:
        text = await result.get_output()
        parts = [part for part in result.response.parts if isinstance(part, ThinkingPart)]
        return {"reasoning": "".join(part.content for part in parts), "text": text}


def effort(task: Any) -> dict[str, Any]:
    return _thinking(_agent(task, {"openai_reasoning_effort": "low"}).run_sync(task.question))


def reasoning_back(task: Any) -> dict[str, Any]:
    first = _agent(task).run_sync(task.question)
    return _answer(_agent(task).run_sync(task.question, message_history=first.all_messages()))


def structured_tool(task: Any) -> Any:
    return _agent(task, output_type=Person).run_sync(task.question).output.model_dump()


def structured(task: Any) -> Any:
    return _agent(task, output_type=NativeOutput(Person)).run_sync(task.question).output.model_dump()


async def stream_structured(task: Any) -> Any:
    async with _agent(task, output_type=NativeOutput(Person)).run_stream(task.question) as result:
        return (await result.get_output()).model_dump()


def json_object(task: Any) -> Any:
    return _agent(task, output_type=PromptedOutput(Person)).run_sync(task.question).output.model_dump()


def _responses_agent(task: Any, **more: Any) -> Agent[Any, Any]:
    model = OpenAIResponsesModel(task.model, provider=_provider(task))
    return Agent(model, model_settings={"temperature": 0, "max_tokens": task.options["max_tokens"]}, **more)


def responses(task: Any) -> str:
    return _responses_agent(task).run_sync(task.question).output


async def async_responses(task: Any) -> str:
    return (await _responses_agent(task).run(task.question)).output


async def responses_pieces(task: Any) -> list[str]:
    async with _responses_agent(task).run_stream(task.question) as result:
        return [piece async for piece in result.stream_text(delta=True, debounce_by=None)]


def responses_tools(task: Any) -> dict[str, Any]:
    return _loop(_responses_agent(task, tools=[get_weather]).run_sync(task.question))


def responses_loop(task: Any) -> dict[str, Any]:
    return responses_tools(task)


def responses_structured(task: Any) -> Any:
    return _responses_agent(task, output_type=NativeOutput(Person)).run_sync(task.question).output.model_dump()


def embeddings(task: Any) -> int:
    embedder = Embedder(OpenAIEmbeddingModel(task.model, provider=_provider(task)))
    return len(embedder.embed_query_sync(task.question).embeddings[0])
