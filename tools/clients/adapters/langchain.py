"""langchain-openai: LangChain's models for OpenAI's API."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
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


def _calls(message: Any) -> list[dict[str, Any]]:
    return [{"id": call["id"], "name": call["name"], "arguments": call["args"]} for call in message.tool_calls]


def _called(message: Any) -> dict[str, Any]:
    reason = message.response_metadata["finish_reason"]
    return {"text": message.content, "calls": _calls(message), "finish_reason": reason}


def tools(task: Any, **more: Any) -> dict[str, Any]:
    return _called(_model(task).bind_tools([task.tool], **more).invoke(task.question))


async def async_tools(task: Any) -> dict[str, Any]:
    return _called(await _model(task).bind_tools([task.tool]).ainvoke(task.question))


def _sum(chunks: Any) -> Any:
    first, *rest = chunks
    return sum(rest, first)


def stream_tools(task: Any, **more: Any) -> dict[str, Any]:
    return _called(_sum(_model(task).bind_tools([task.tool], **more).stream(task.question)))


def forced_tool(task: Any) -> dict[str, Any]:
    return tools(task, tool_choice="any")


def stream_forced_tool(task: Any) -> dict[str, Any]:
    return stream_tools(task, tool_choice="any")


def named_tool(task: Any) -> dict[str, Any]:
    model = _model(task).bind_tools([task.tool, task.other_tool], tool_choice=task.other_tool["function"]["name"])
    return _called(model.invoke(task.question))


def no_tools(task: Any) -> dict[str, Any]:
    return tools(task, tool_choice="none")


def one_call(task: Any) -> dict[str, Any]:
    return tools(task, tool_choice="any", parallel_tool_calls=False)


def strict_tool(task: Any) -> dict[str, Any]:
    return tools(task, strict=True)


def tool_loop(task: Any) -> dict[str, Any]:
    model = _model(task).bind_tools([task.tool])
    question = HumanMessage(task.question)
    first = model.invoke([question])
    results = [ToolMessage(task.tool_answer, tool_call_id=call["id"]) for call in first.tool_calls]
    return {"calls": _calls(first), "text": model.invoke([question, first, *results]).content}


def structured(task: Any) -> Any:
    return _model(task).with_structured_output(Person).invoke(task.question).model_dump()


def stream_structured(task: Any) -> Any:
    *_, last = _model(task).with_structured_output(Person).stream(task.question)
    return last.model_dump()


def structured_tool(task: Any) -> Any:
    model = _model(task).with_structured_output(Person, method="function_calling")
    return model.invoke(task.question).model_dump()


def schema(task: Any) -> Any:
    return _model(task).with_structured_output({"title": "value", **task.schema}, strict=True).invoke(task.question)


def json_object(task: Any) -> Any:
    return _model(task).with_structured_output(None, method="json_mode").invoke(task.question)


def _responses(task: Any) -> ChatOpenAI:
    return _model(task, use_responses_api=True)


def responses(task: Any) -> str:
    return _responses(task).invoke(task.question).text


async def async_responses(task: Any) -> str:
    return (await _responses(task).ainvoke(task.question)).text


def responses_pieces(task: Any) -> list[str]:
    return [chunk.text for chunk in _responses(task).stream(task.question) if chunk.text]


def responses_messages(task: Any) -> str:
    messages = [SystemMessage(task.system), HumanMessage("Hello"), AIMessage("Hello."), HumanMessage(task.question)]
    return _responses(task).invoke(messages).text


def responses_tools(task: Any) -> dict[str, Any]:
    return {"calls": _calls(_responses(task).bind_tools([task.tool]).invoke(task.question))}


def responses_forced_tool(task: Any) -> dict[str, Any]:
    return {"calls": _calls(_responses(task).bind_tools([task.tool], tool_choice="any").invoke(task.question))}


def responses_stream_call(task: Any) -> dict[str, Any]:
    return {"calls": _calls(_sum(_responses(task).bind_tools([task.tool]).stream(task.question)))}


def responses_loop(task: Any) -> dict[str, Any]:
    model = _responses(task).bind_tools([task.tool])
    question = HumanMessage(task.question)
    first = model.invoke([question])
    results = [ToolMessage(task.tool_answer, tool_call_id=call["id"]) for call in first.tool_calls]
    return {"calls": _calls(first), "text": model.invoke([question, first, *results]).text}


def responses_structured(task: Any) -> Any:
    return _responses(task).with_structured_output(Person).invoke(task.question).model_dump()


def embeddings(task: Any) -> int:
    return len(OpenAIEmbeddings(**_options(task), check_embedding_ctx_length=False).embed_query(task.question))
