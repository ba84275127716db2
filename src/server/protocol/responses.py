"""/v1/responses: the request body, and what of it is a chat request."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

from pydantic import Field, field_validator

from .chat import MAX_MESSAGES, MAX_SESSION_CHARS, MAX_TOOLS_BYTES, ChatRequest, Dialogue, chat_request
from .errors import FieldError, bad_request, unsupported
from .fields import MAX_TOKENS, MAX_TOOLS, CommonFields, NumLogprobs, TemplateKwargs
from .history import History
from .json import dump
from .names import Names
from .response_items import messages_of
from .response_tools import ResponseTools, flat_name, read_tools
from .unserved import Route
from .wire import Integer, Wire

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
_MAX_TOOL_ENTRIES = 2 * MAX_TOOLS  # with those that are skipped
_SHARED = tuple(name for name in CommonFields.model_fields if name != "stream")


class ReasoningOptions(Wire):
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None  # the older name
    context: Literal["auto", "current_turn", "all_turns"] | None = None  # the chat template decides
    mode: Literal["standard"] | None = None

    @property
    def has_summary(self) -> bool:
        return (self.summary or self.generate_summary) is not None


class TextOptions(Wire):
    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None  # a wish that no chat template reads


class ResponsesRequest(Dialogue, CommonFields):
    route = Route.RESPONSES
    input: str | list[Any] = Field(
        [], max_length=MAX_MESSAGES * 4, description="a text, or items: messages, reasoning, calls and their outputs"
    )
    instructions: str | None = Field(None, description="a system message before the input")
    tools: list[dict[str, Any]] | None = Field(
        None,
        max_length=_MAX_TOOL_ENTRIES,
        description="`function`, `custom` (also with a grammar) and `namespace`; others are skipped, and named in the "
        "header `X-Stoker-Skipped-Tools`",
    )
    tool_choice: str | dict[str, Any] | None = Field(
        None, description="`auto`, `none`, `required`, a function, a custom tool, or `allowed_tools`"
    )
    parallel_tool_calls: bool | None = Field(None, description="false: the answer has at most one call")
    max_output_tokens: Integer | None = Field(
        None, ge=1, le=MAX_TOKENS, description="maximum length of the answer, with its reasoning"
    )
    max_tool_calls: Integer | None = Field(
        None, ge=1, le=2**31 - 1, description="maximum number of calls that the server itself carries out"
    )
    text: TextOptions | None = Field(
        None, description="`format`: text, json_object or json_schema; `verbosity` has no effect"
    )
    reasoning: ReasoningOptions | None = Field(
        None, description="`effort`, for chat templates that read it; `summary`: the reasoning is sent as summary, too"
    )
    include: list[str] | None = Field(
        None, max_length=32, description=f"`{LOGPROBS}`, `{ENCRYPTED}`; others name items that this server never sends"
    )
    top_logprobs: NumLogprobs | None = Field(None, description="number of most likely tokens at each position")
    truncation: Literal["auto", "disabled"] | None = Field(
        None, description="auto: a prompt that is too long loses its beginning"
    )
    metadata: dict[str, str] | None = Field(None, max_length=16, description="returned with the response")
    stream_options: dict[str, Any] | None = Field(None, description="only `include_obfuscation`, without effect")
    store: bool | None = Field(None, description="keeps the response; needs `server.responses_store`")
    previous_response_id: str | None = Field(
        None, min_length=1, max_length=256, description="continues a stored response"
    )
    background: bool | None = Field(None, description="answers at once, and goes on without the client; needs `store`")
    prompt_cache_key: str | None = Field(None, max_length=MAX_SESSION_CHARS, description="names the session")
    user: str | None = Field(None, description="a label; the model does not see it")
    safety_identifier: str | None = Field(None, description="a label; the model does not see it")
    chat_template_kwargs: TemplateKwargs = None

    @field_validator("input", mode="plain", json_schema_input_type=str | list[dict[str, Any]])
    @classmethod
    def _known_items(cls, value: Any) -> Any:
        """Check the value here: a pydantic union would report one error for each member."""
        if not isinstance(value, str | list):
            raise FieldError("must be a text or a list of items", code="invalid_type")
        if len(value) > MAX_MESSAGES * 4 and isinstance(value, list):
            raise FieldError(f"must have at most {MAX_MESSAGES * 4} items", code="array_above_max_length")
        if isinstance(value, list):
            messages_of(value)
        return value

    @field_validator("tools")
    @classmethod
    def _known_tools(cls, value: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        read_tools(value or ())
        return value

    @cached_property
    def known_tools(self) -> ResponseTools:
        return read_tools(self.tools or ())

    def refuse_unsupported(self) -> None:
        super().refuse_unsupported()
        for name in self.stream_options or {}:
            if name != "include_obfuscation":
                raise unsupported(f"stream_options.{name[:100]}")
        if self.background and self.store is False:
            raise bad_request("`background` needs `store`", param="background")
        self.response_format  # noqa: B018 (raises ApiError)
        chat = self.conversation()
        if "mcp" in self.known_tools.skipped:
            chat.tool_choice = None  # checked when it is known which tools the servers have
        chat.refuse_unsupported()

    @cached_property
    def history(self) -> History:
        return messages_of(self.input if isinstance(self.input, list) else [_user(self.input)])

    @property
    def skipped(self) -> list[str]:
        return [*self.known_tools.skipped, *self.history.skipped]

    @property
    def names(self) -> Names:
        places = [f"input{place}" for place in self.history.places] if isinstance(self.input, list) else ["input"]
        first = ["instructions"] if self.instructions is not None else []
        tools = [(f"tools{tool}", f"tools{parameters}") for tool, parameters in self.known_tools.places]
        return Names(_NAMES, "input", [*first, *places], tools)

    @property
    def unknown_fields(self) -> list[str]:
        nested = {"reasoning": self.reasoning, "text": self.text}
        names = [f"{name}.{each}" for name, part in nested.items() if part for each in part.unknown_fields]
        return super().unknown_fields + [name for name in names if name not in self._unserved]

    @property
    def has_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ()) or bool(self.top_logprobs)

    @property
    def response_format(self) -> dict[str, Any] | None:
        """`text.format` in the form of chat requests."""
        form = self.text.format if self.text else None
        if form is None or form.get("type") == "text":
            return None
        if form.get("type") == "json_object":
            return {"type": "json_object"}
        if form.get("type") == "json_schema":
            return {"type": "json_schema", "json_schema": {name: form[name] for name in form if name != "type"}}
        raise bad_request("must have the type `text`, `json_object` or `json_schema`", param="text.format")

    def essentials(self) -> dict[str, Any]:
        """Leave out the input, whose text only the chat template reads."""
        kept = super().essentials()
        kept.pop("input", None)
        if self.tools and len(dump(self.tools)) > MAX_TOOLS_BYTES:
            message = f"`tools` must have at most {MAX_TOOLS_BYTES} bytes"
            raise bad_request(message, code="json_too_large", param="tools")
        return kept

    def conversation(self) -> ChatRequest:
        messages = [*self.history.messages]
        if self.instructions is not None:
            messages.insert(0, {"role": "system", "content": self.instructions})
        fields: dict[str, Any] = {name: getattr(self, name) for name in _SHARED}
        fields |= {
            "messages": messages or [_user("")],  # a probe: coding agents send it to see whether the server answers
            "tools": self.known_tools.functions or None,
            "tool_choice": _flat_choice(self.tool_choice),
            "parallel_tool_calls": self.parallel_tool_calls,
            "max_completion_tokens": self.max_output_tokens,
            "response_format": self.response_format,
            "reasoning_effort": self.reasoning.effort if self.reasoning else None,
            "chat_template_kwargs": self.chat_template_kwargs,
            "logprobs": self.has_logprobs or None,
            "top_logprobs": self.top_logprobs if self.has_logprobs else None,
            "truncate_prompt_tokens": -1 if self.truncation == "auto" else None,
            "prompt_cache_key": self.prompt_cache_key,
            "metadata": self.metadata,
        }
        request = chat_request(fields)
        without_grammar = self.known_tools.without_grammar
        for tool in request.tools or ():
            if parameters := without_grammar.get(tool.function.name):
                tool.function.show(parameters)
        return request


_NAMES = {
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "truncate_prompt_tokens": "truncation",
    "logprobs": "include",
}


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _flat_choice(choice: Any) -> Any:
    """The choice with the names of functions, including functions of namespaces."""
    if not isinstance(choice, dict):
        return choice
    if isinstance(choice.get("tools"), list):
        return {**choice, "tools": [_flat_choice(tool) for tool in choice["tools"]]}
    if isinstance(choice.get("name"), str) and isinstance(choice.get("namespace"), str):
        return {**choice, "name": flat_name(choice["name"], choice["namespace"])}
    return choice
