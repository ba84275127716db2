"""langchain-openai: LangChain's models for OpenAI's API."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


def _options(task: Any) -> dict[str, Any]:
    return {
        "model": task.model,
        "base_url": task.url,
        "api_key": task.key,
        "max_retries": task.retries,
        "timeout": task.timeout_s,
    }


def _model(task: Any, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(**_options(task), extra_body=task.extra, **task.options, **more)


def _answer(message: Any) -> dict[str, Any]:
    usage = message.usage_metadata
    return {
        "text": message.content,
        "finish_reason": message.response_metadata["finish_reason"],
        "usage": [usage["input_tokens"], usage["output_tokens"]],
    }


def completion(task: Any) -> dict[str, Any]:
    return {"text": OpenAI(**_options(task), **task.options).invoke(task.prompt)}


def chat(task: Any) -> dict[str, Any]:
    return _answer(_model(task).invoke(task.question))


async def async_chat(task: Any) -> dict[str, Any]:
    return _answer(await _model(task).ainvoke(task.question))


def history(task: Any) -> dict[str, Any]:
    question = HumanMessage(task.question)
    messages = [SystemMessage(task.system), question]
    answer = _model(task).invoke(messages)
    return _answer(_model(task).invoke([*messages, answer, question]))


def tool_result(task: Any) -> dict[str, Any]:
    return _answer(_model(task).bind_tools([task.tool]).invoke(task.exchange))


def stream(task: Any) -> list[str]:
    return [chunk.content for chunk in _model(task).stream(task.question) if chunk.content]


async def async_stream(task: Any) -> list[str]:
    return [chunk.content async for chunk in _model(task).astream(task.question) if chunk.content]


def stream_usage(task: Any) -> list[int]:
    chunks = _model(task, stream_usage=True).stream(task.question)
    usage = next(chunk.usage_metadata for chunk in chunks if chunk.usage_metadata)
    return [usage["input_tokens"], usage["output_tokens"]]


def cancel(task: Any) -> None:
    chunks = _model(task).stream(task.question)
    next(chunks)
    chunks.close()


async def async_cancel(task: Any) -> None:
    chunks = _model(task).astream(task.question)
    await anext(chunks)
    await chunks.aclose()


def logprobs(task: Any) -> list[Any]:
    message = _model(task, logprobs=True, top_logprobs=2).invoke(task.question)
    found = message.response_metadata["logprobs"]["content"]
    return [[each["token"], each["logprob"], len(each["top_logprobs"])] for each in found]


def several(task: Any) -> list[str]:
    return [each.text for each in _model(task, n=2).generate([[HumanMessage(task.question)]]).generations[0]]


def tools(task: Any, **more: Any) -> dict[str, Any]:
    message = _model(task).bind_tools([task.tool], **more).invoke(task.question)
    return {"text": message.content, "calls": [call["name"] for call in message.tool_calls]}


def forced_tool(task: Any) -> dict[str, Any]:
    return tools(task, tool_choice="any")


def structured(task: Any) -> Any:
    return _model(task).with_structured_output(Person).invoke(task.question).model_dump()


def responses(task: Any) -> str:
    return _model(task, use_responses_api=True).invoke(task.question).text


def embeddings(task: Any) -> int:
    return len(OpenAIEmbeddings(**_options(task), check_embedding_ctx_length=False).embed_query(task.question))
