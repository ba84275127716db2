"""/v1/chat/completions: the request body, and the objects of its responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from .errors import FieldError, bad_request, unsupported
from .fields import MAX_TOKENS, MAX_TOOLS, SamplingFields, Wire

MAX_MESSAGES = 4096
MAX_PARTS = 1024
MAX_TEMPLATE_CHARS = 1 << 16

# APIs differ in the name of an assistant's reasoning. Chat templates read `reasoning_content`.
Role = Literal["system", "developer", "user", "assistant", "tool"]


class Message(Wire):
    role: Role
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[dict[str, Any]] | None = Field(None, max_length=MAX_TOOLS, fail_fast=True)

    @field_validator("content", mode="before")
    @classmethod
    def _text_only(cls, value: Any) -> Any:
        if not isinstance(value, list):
            if value is not None and not isinstance(value, str):
                raise FieldError("must be a string or a list of parts", code="invalid_type")
            return value
        if len(value) > MAX_PARTS:
            raise FieldError(f"must have at most {MAX_PARTS} parts", code="array_above_max_length")
        return [_text_part(part, index) for index, part in enumerate(value)]


def _text_part(part: Any, index: int) -> dict[str, Any]:
    place = f"[{index}]"
    if not isinstance(part, dict):
        raise FieldError("a part must be an object", code="invalid_type", place=place)
    kind = part.get("type", "text")
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return {"type": "text", "text": part["refusal"]}
    if kind != "text":
        detail = f"parts of type {str(kind)[:40]!r} are not supported: this model accepts text"
        raise FieldError(detail, code="unsupported_parameter", place=f"{place}.type")
    if not isinstance(part.get("text"), str):
        raise FieldError("`text` must be a string", code="invalid_type", place=f"{place}.text")
    return {"type": "text", "text": part["text"]}


class Function(Wire):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Wire):
    type: Literal["function"]
    function: Function


class Conversation(Wire):
    """Fields that a prompt is rendered from."""

    messages: list[Message] | None = Field(None, min_length=1, max_length=MAX_MESSAGES)
    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = Field(None, min_length=1, max_length=MAX_TEMPLATE_CHARS)
    chat_template_kwargs: dict[str, Any] | None = Field(None, max_length=64)

    def plain_messages(self) -> list[dict[str, Any]]:
        """The messages as JSON values, with unknown fields: templates read some of them."""
        return [message.model_dump(exclude_none=True) for message in self.messages or ()]

    def plain_tools(self) -> list[dict[str, Any]] | None:
        return [tool.model_dump(exclude_none=True) for tool in self.tools] if self.tools else None


class ChatRequest(Conversation, SamplingFields):
    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=2**31 - 1)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = Field(None, max_length=8)
    reasoning_effort: str | None = Field(None, max_length=64)
    documents: list[dict[str, Any]] | None = Field(None, max_length=1024)
    add_special_tokens: bool = False

    def refuse_unsupported(self) -> None:
        super().refuse_unsupported()
        if self.tool_choice not in (None, "none", "auto"):
            function = self.tool_choice.get("function") if isinstance(self.tool_choice, dict) else None
            name = function.get("name") if isinstance(function, dict) else None
            if name is not None and name not in [tool.function.name for tool in self.tools or ()]:
                raise bad_request("`tool_choice` names a function that is not in `tools`", param="tool_choice")
            raise unsupported("tool_choice", ": only `none` and `auto` are, and the model's text is returned unchanged")
        if self.parallel_tool_calls is False:
            raise unsupported("parallel_tool_calls", " as false")
        if self.response_format is not None and self.response_format.get("type") != "text":
            raise unsupported("response_format", ': only `{"type": "text"}` is')
        if self.modalities is not None and self.modalities != ["text"]:
            raise unsupported("modalities", ': only `["text"]` is')
        if self.top_logprobs and not self.logprobs:
            raise unsupported("top_logprobs", " without `logprobs: true`")


def completion(
    response_id: str, created: int, model: str, choices: list[dict[str, Any]], usage: dict[str, Any]
) -> dict[str, Any]:
    return {
        "id": response_id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": choices,
        "usage": usage,
    }
