"""llama-index-llms-openai-like: LlamaIndex's model for servers with OpenAI's API."""

from __future__ import annotations

from typing import Any

from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai.utils import from_openai_message_dicts
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


def _options(task: Any) -> dict[str, Any]:
    return {"api_base": task.url, "api_key": task.key, "max_retries": task.retries, "timeout": task.timeout_s}


def _model(task: Any, **more: Any) -> OpenAILike:
    known = {name: value for name, value in task.options.items() if name in ("temperature", "max_tokens")}
    further = {name: value for name, value in task.options.items() if name not in known}
    further |= more.pop("additional_kwargs", {})
    return OpenAILike(
        model=task.model,
        **{"is_chat_model": True, "is_function_calling_model": True, **_options(task), **known, **more},
        additional_kwargs={**further, "extra_body": task.extra},
    )


def _messages(task: Any) -> list[ChatMessage]:
    return [ChatMessage(role="user", content=task.question)]


def _answer(response: Any) -> dict[str, Any]:
    return {
        "text": response.message.content,
        "finish_reason": response.raw.choices[0].finish_reason,
        "usage": _usage(response.raw.usage),
    }


def _usage(usage: Any) -> list[int]:
    return [usage.prompt_tokens, usage.completion_tokens]


def completion(task: Any) -> dict[str, Any]:
    response = _model(task, is_chat_model=False).complete(task.prompt)
    return {"text": response.text, "usage": _usage(response.raw.usage)}


def chat(task: Any) -> dict[str, Any]:
    return _answer(_model(task).chat(_messages(task)))


async def async_chat(task: Any) -> dict[str, Any]:
    return _answer(await _model(task).achat(_messages(task)))


def history(task: Any) -> dict[str, Any]:
    messages = [ChatMessage(role="system", content=task.system), *_messages(task)]
    answer = _model(task).chat(messages).message
    return _answer(_model(task).chat([*messages, answer, *_messages(task)]))


def tool_result(task: Any) -> dict[str, Any]:
    return _answer(_model(task).chat(from_openai_message_dicts(task.exchange), tools=[task.tool]))


def stream(task: Any) -> list[str]:
    return [chunk.delta for chunk in _model(task).stream_chat(_messages(task)) if chunk.delta]


async def async_stream(task: Any) -> list[str]:
    chunks = await _model(task).astream_chat(_messages(task))
    return [chunk.delta async for chunk in chunks if chunk.delta]


def stream_usage(task: Any) -> list[int]:
    more = {"stream_options": {"include_usage": True}}
    *_, last = _model(task, additional_kwargs=more).stream_chat(_messages(task))
    return _usage(last.raw.usage)


def cancel(task: Any) -> None:
    chunks = _model(task).stream_chat(_messages(task))
    next(chunks)
    chunks.close()


async def async_cancel(task: Any) -> None:
    chunks = await _model(task).astream_chat(_messages(task))
    await anext(chunks)
    await chunks.aclose()


def logprobs(task: Any) -> list[Any]:
    found = _model(task, logprobs=True, top_logprobs=2).chat(_messages(task)).raw.choices[0].logprobs.content
    return [[each.token, each.logprob, len(each.top_logprobs)] for each in found]


def several(task: Any) -> list[str]:
    response = _model(task, additional_kwargs={"n": 2}).chat(_messages(task))
    return [choice.message.content for choice in response.raw.choices]


def tools(task: Any, **more: Any) -> dict[str, Any]:
    response = _model(task).chat(_messages(task), tools=[task.tool], **more)
    calls = response.raw.choices[0].message.tool_calls or ()
    found = [{"id": each.id, "name": each.function.name, "arguments": each.function.arguments} for each in calls]
    return {"text": response.message.content, "calls": found}


def forced_tool(task: Any) -> dict[str, Any]:
    return tools(task, tool_choice="required")


def structured(task: Any) -> Any:
    model = _model(task, should_use_structured_outputs=True)
    return model.structured_predict(Person, PromptTemplate(task.question)).model_dump()


def embeddings(task: Any) -> int:
    return len(OpenAILikeEmbedding(model_name=task.model, **_options(task)).get_text_embedding(task.question))
