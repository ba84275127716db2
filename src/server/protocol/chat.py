"""/v1/chat/completions: the request body, and the objects of its responses."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator

from .errors import FieldError, bad_request, from_validation, unsupported
from .fields import MAX_TOKENS, MAX_TOOLS, MaxTokens, NumLogprobs, SamplingFields, TemplateKwargs
from .json import dump
from .names import Names
from .response_tools import INPUT
from .tool_choice import ToolChoice, read_choice
from .unserved import TEXT_ONLY, Route
from .wire import Integer, Wire

MAX_MESSAGES = 4096
MAX_PARTS = 1024
MAX_SESSION_CHARS = 1024
MAX_TEMPLATE_CHARS = 1 << 16
MAX_TOOLS_BYTES = 1 << 20  # as JSON: the grammar of calls is made from them
TOOL_NAME = r"^[A-Za-z0-9_.-]{1,128}$"

ReasoningFormat = Literal["none", "auto", "deepseek", "deepseek-legacy"]

# Types of content parts that are text, and the key of the text.
_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}


class Message(Wire):
    role: str = Field(min_length=1, max_length=64)  # whether there is such a role is up to the chat template
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[dict[str, Any]] | None = Field(None, max_length=MAX_TOOLS, fail_fast=True)
    reasoning: str | None = None
    reasoning_content: str | None = None  # the same, for clients of other servers

    @model_validator(mode="before")
    @classmethod
    def _calls_as_functions(cls, value: Any) -> Any:
        """Older and other forms of calls, of histories, in the only form that chat templates know."""
        if not isinstance(value, dict):
            return value
        older = value.get("function_call")
        if isinstance(older, dict) and not value.get("tool_calls"):
            rest = {name: field for name, field in value.items() if name != "function_call"}
            return {**rest, "tool_calls": [{"id": _older_id(older), "type": "function", "function": older}]}
        if value.get("role") == "function":
            return {**value, "role": "tool", "tool_call_id": _older_id(value)}
        if isinstance(calls := value.get("tool_calls"), list) and any(map(_is_custom, calls)):
            return {**value, "tool_calls": [_as_function(call) if _is_custom(call) else call for call in calls]}
        return value

    @property
    def text(self) -> str:
        """The content as one text."""
        if isinstance(self.content, list):
            return "\n".join(part["text"] for part in self.content)
        return self.content or ""

    @field_validator("content", mode="before")
    @classmethod
    def _text_only(cls, value: Any) -> Any:
        return value if value is None else _text_parts(value)


def _text_parts(value: Any) -> str | list[dict[str, Any]]:
    """A content that is text only. Raises FieldError."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise FieldError("must be a string or a list of parts", code="invalid_type")
    if len(value) > MAX_PARTS:
        raise FieldError(f"must have at most {MAX_PARTS} parts", code="array_above_max_length")
    return [_text_part(part, index) for index, part in enumerate(value)]


def _older_id(function: dict[str, Any]) -> str:
    """The id of a call that had none: results named the function."""
    return f"call_{function.get('name')}"


def _is_custom(call: Any) -> bool:
    return isinstance(call, dict) and isinstance(call.get("custom"), dict) and "function" not in call


def _as_function(call: dict[str, Any]) -> dict[str, Any]:
    """A call of a custom tool, whose input is one text."""
    custom = call["custom"]
    arguments = json.dumps({INPUT: custom.get("input")}, ensure_ascii=False)
    return {"id": call.get("id"), "type": "function", "function": {"name": custom.get("name"), "arguments": arguments}}


def _text_part(part: Any, index: int) -> dict[str, Any]:
    place = f"[{index}]"
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        raise FieldError("a part must be a string or an object", code="invalid_type", place=place)
    kind = part.get("type", "text")
    key = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if key is None:
        detail = f"parts of type {str(kind)[:40]!r} are not supported: {TEXT_ONLY}"
        raise FieldError(detail, code="unsupported_parameter", place=f"{place}.type")
    if not isinstance(part.get(key), str):
        raise FieldError(f"`{key}` must be a string", code="invalid_type", place=f"{place}.{key}")
    return {"type": "text", "text": part[key]}


class Function(Wire):
    name: Annotated[str, Field(pattern=TOOL_NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None  # the arguments obey `parameters`
    _shown_parameters: dict[str, Any] | None = PrivateAttr(None)  # in the prompt, if these are others

    def show(self, parameters: dict[str, Any]) -> None:
        """The prompt has these parameters; the arguments obey the tool's own."""
        self._shown_parameters = parameters

    def plain(self) -> dict[str, Any]:
        """The tool as JSON, for the prompt."""
        found = self.model_dump(exclude_none=True)
        return found if self._shown_parameters is None else {**found, "parameters": self._shown_parameters}


class Tool(Wire):
    type: Literal["function"]
    function: Function

    @field_validator("type", mode="before")
    @classmethod
    def _known_type(cls, value: Any) -> Any:
        if isinstance(value, str) and value != "function":
            detail = f"{value[:40]!r} is not supported here, only 'function'; /v1/responses has custom tools, too"
            raise FieldError(detail, code="unsupported_parameter")
        return value


class Prediction(Wire):
    """Text that the answer is expected to be, for the most part."""

    type: Literal["content"]
    content: str | list[dict[str, Any]]

    @field_validator("content", mode="before")
    @classmethod
    def _text_only(cls, value: Any) -> Any:
        return _text_parts(value)

    @property
    def text(self) -> str:
        """The content as one text. Its parts follow one another, as they would in the answer."""
        return self.content if isinstance(self.content, str) else "".join(part["text"] for part in self.content)


class Dialogue(Wire):
    """A body whose prompt is rendered from messages, in any dialect of the API."""

    @abstractmethod
    def conversation(self) -> Conversation:
        """The same in the form that chat templates get."""

    @property
    def names(self) -> Names | None:
        """Names of the fields in this dialect; None if it has the names of chat requests."""
        return None

    @property
    def skipped(self) -> list[str]:
        """Types of tools, and of entries in the history, that are left out."""
        return []


class Conversation(Dialogue):
    """Fields that a prompt is rendered from."""

    messages: list[Message] | None = Field(
        None, min_length=1, max_length=MAX_MESSAGES, description="any role that the chat template knows; text only"
    )
    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS, description="functions, for the chat template")
    documents: list[dict[str, Any]] | None = Field(
        None, max_length=1024, description="for chat templates that read them; else 400"
    )
    reasoning_effort: str | None = Field(
        None, min_length=1, max_length=64, description="for chat templates that read it, or that can switch thinking "
        "off (`none`) and on (all others); else 400"
    )  # fmt: skip
    enable_thinking: bool | None = Field(
        None, description="switches thinking in chat templates that can do so; else 400"
    )
    thinking: bool | dict[str, Any] | None = Field(
        None, description='as `enable_thinking`; also `{"type": "enabled"}` and `{"type": "disabled"}`'
    )
    add_generation_prompt: bool = Field(True, description="false: the model continues the last message")
    continue_final_message: bool = Field(False, description="the prompt ends within the last message")
    chat_template: str | None = Field(
        None, min_length=1, max_length=MAX_TEMPLATE_CHARS, description="needs `server.trust_request_chat_template`"
    )
    chat_template_kwargs: TemplateKwargs = None

    def conversation(self) -> Conversation:
        return self

    @field_validator("tools")
    @classmethod
    def _one_for_each_name(cls, value: list[Tool] | None) -> list[Tool] | None:
        first: dict[str, Tool] = {}
        for index, tool in enumerate(value or ()):
            name = tool.function.name
            if first.setdefault(name, tool) != tool:
                message = f"an earlier tool has the same name, {name!r}, and is another one"
                raise FieldError(message, place=f"[{index}].function.name")
        return value

    @field_validator("thinking", mode="before")
    @classmethod
    def _known_thinking(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("type") not in ("enabled", "disabled"):
            raise FieldError('must be a boolean, {"type": "enabled"} or {"type": "disabled"}')
        if value is not None and not isinstance(value, bool | dict):
            raise FieldError("must be a boolean or an object", code="invalid_type")
        return value

    @property
    def wants_thinking(self) -> bool | None:
        """What `enable_thinking` and `thinking` ask for; None if the request has neither."""
        if self.enable_thinking is not None:
            return self.enable_thinking
        return self.thinking.get("type") == "enabled" if isinstance(self.thinking, dict) else self.thinking

    def plain_messages(self) -> list[dict[str, Any]]:
        """The messages as JSON values, with unknown fields: templates read some of them."""
        return [message.model_dump(exclude_none=True) for message in self.messages or ()]

    def plain_tools(self) -> list[dict[str, Any]] | None:
        """The tools as JSON values, with unknown fields."""
        if not self.tools:
            return None
        return [{**tool.model_dump(exclude_none=True), "function": tool.function.plain()} for tool in self.tools]

    def essentials(self) -> dict[str, Any]:
        """Keep only the role of the last message, and names of variables. Raises ApiError for too large tools."""
        kept = super().essentials()
        if self.messages:
            last = self.messages[-1]
            kept["messages"] = [{"role": last.role, **({"content": last.text} if self.continue_final_message else {})}]
        if self.tools:
            kept["tools"] = self.plain_tools()
            check_tools_size(kept["tools"])
        if self.documents:
            kept["documents"] = [{}] * len(self.documents)
        if self.chat_template_kwargs:
            kept["chat_template_kwargs"] = dict.fromkeys(self.chat_template_kwargs)
        return kept


def check_tools_size(tools: Any) -> None:
    """Raises ApiError. Short bodies need no check: they are below the limit."""
    if len(dump(tools)) > MAX_TOOLS_BYTES:
        raise bad_request(f"`tools` must have at most {MAX_TOOLS_BYTES} bytes", code="json_too_large", param="tools")


def with_earlier(earlier: Sequence[dict[str, Any]], messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with messages of earlier requests, after the system messages at the beginning."""
    if not earlier:
        return messages
    first = next((index for index, message in enumerate(messages) if message["role"] not in _SYSTEM), len(messages))
    return [*messages[:first], *earlier, *messages[first:]]


_SYSTEM = ("system", "developer")


class ChatRequest(Conversation, SamplingFields):
    route = Route.CHAT
    messages: list[Message] = Field(
        min_length=1, max_length=MAX_MESSAGES, description="any role that the chat template knows; text only"
    )
    max_completion_tokens: MaxTokens | None = Field(None, description="as `max_tokens`, before which it has precedence")
    echo: bool | None = Field(None, description="the answer begins with the last message, if that has its role")
    logprobs: bool | None = Field(None, description="log-probabilities of the tokens")
    top_logprobs: NumLogprobs | None = Field(
        None, description="with `logprobs`: this number of best ones, too; -1: all"
    )
    prompt_cache_key: str | None = Field(
        None, max_length=MAX_SESSION_CHARS, description="names the session, as the header `X-Session-Id` does"
    )
    metadata: dict[str, Any] | None = Field(None, description="`user_id` names the session; all else is a label")
    tool_choice: str | dict[str, Any] | None = Field(
        None, description="`auto`, `none`, `required`, a function, or `allowed_tools`"
    )
    parallel_tool_calls: bool | None = Field(None, description="false: the answer has at most one call")
    include_reasoning: bool | None = Field(None, description="false: the answer has no reasoning, nor its tokens")
    separate_reasoning: bool | None = Field(None, description="false: reasoning is part of the content, as generated")
    reasoning_format: ReasoningFormat | None = Field(
        None, description="`none` is `separate_reasoning: false`; all others are true"
    )
    stream_reasoning: bool | None = Field(None, description="false: reasoning is one chunk, when it is complete")
    thinking_token_budget: Integer | None = Field(
        None, ge=0, le=MAX_TOKENS, description="tokens of reasoning, after which its end is forced"
    )
    thinking_budget_tokens: Integer | None = Field(
        None, ge=-1, le=MAX_TOKENS, description="as `thinking_token_budget`; -1 is no limit"
    )
    prediction: Prediction | None = Field(
        None, description="text that the answer is expected to be; the answer does not depend on it, only its time does"
    )
    modalities: list[str] | None = Field(None, max_length=8, description='only `["text"]`')
    add_special_tokens: bool = Field(False, description="the tokenizer adds special tokens to those of the template")

    @field_validator("max_tokens", "max_completion_tokens")
    @classmethod
    def _some_tokens(cls, value: int | None) -> int | None:
        if value == 0:
            raise FieldError("must be at least 1, or -1 for no limit", code="integer_below_min_value")
        return value

    def essentials(self) -> dict[str, Any]:
        kept = super().essentials()
        if self.echo:
            kept["messages"][-1]["content"] = self.messages[-1].text
        kept.pop("modalities", None)
        if self.metadata is not None:
            kept["metadata"] = {name: value for name, value in self.metadata.items() if name == "user_id"}
        return kept

    def refuse_unsupported(self) -> None:
        super().refuse_unsupported()
        if not self.use_beam_search and self.best_of not in (None, self.n or 1):
            raise unsupported("best_of", " without `use_beam_search`: only /v1/completions samples several answers")
        self.choice  # noqa: B018 (raises ApiError)
        if self.modalities and self.modalities != ["text"]:
            raise unsupported("modalities", ': only `["text"]` is')
        if self.top_logprobs and not self.logprobs:
            raise unsupported("top_logprobs", " without `logprobs: true`")

    @property
    def choice(self) -> ToolChoice:
        """Choice of the tools that the answer calls. Raises ApiError."""
        return read_choice(self.tool_choice, [tool.function.name for tool in self.tools or ()])

    @property
    def has_separate_reasoning(self) -> bool | None:
        """Whether reasoning is separate in the answer; None if the request leaves it to the deployment."""
        if self.separate_reasoning is not None:
            return self.separate_reasoning
        return None if self.reasoning_format is None else self.reasoning_format != "none"

    @property
    def thinking_budget(self) -> int | None:
        given = self.thinking_token_budget
        if given is None and self.thinking_budget_tokens != -1:
            given = self.thinking_budget_tokens
        return given


def chat_request(fields: Mapping[str, Any]) -> ChatRequest:
    """A request of another dialect. Raises ApiError for what that dialect allows and this one does not."""
    try:
        return ChatRequest.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        raise from_validation(error) from None


def completion(
    response_id: str, created: int, model: str, choices: list[dict[str, Any]], usage: dict[str, Any]
) -> dict[str, Any]:
    """Body of a completion, with null for what the request did not ask for: clients read fields without a check."""
    return {
        "id": response_id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": None,
        "usage": usage,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
    }
