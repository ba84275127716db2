"""/v1/messages, in Anthropic's protocol: the request bodies, what of them is a chat request, and the error object."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

from pydantic import Field, field_validator

from .chat import MAX_MESSAGES, MAX_TOOLS_BYTES, ChatRequest, Dialogue, chat_request
from .errors import ApiError, FieldError, bad_request
from .fields import MAX_STOP_CHARS, MAX_STOP_STRINGS, MAX_TOKENS, MAX_TOOLS, CommonFields, TemplateKwargs
from .history import History
from .json import dump
from .message_blocks import Tools, messages_of, read_tools, system_of
from .names import Names
from .unserved import Route
from .wire import Integer, Wire

_SHARED = tuple(name for name in CommonFields.model_fields if name not in ("stream", "stop"))


class Thinking(Wire):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Integer | None = Field(None, ge=1, le=MAX_TOKENS)
    display: Literal["summarized", "omitted"] | None = None


class OutputConfig(Wire):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: dict[str, Any] | None = None


class CountTokensRequest(Dialogue, CommonFields):
    """What is counted: all fields that make the prompt."""

    route = Route.MESSAGES
    messages: list[dict[str, Any]] = Field(
        min_length=1,
        max_length=MAX_MESSAGES,
        description="blocks of text, thinking, tool_use and tool_result; those of Anthropic's own tools are left out "
        "and named in the header `X-Stoker-Skipped-Tools`; a last message of the assistant is continued",
    )
    system: str | list[Any] | None = Field(None, description="a text or blocks of text")
    tools: list[dict[str, Any]] | None = Field(
        None,
        max_length=MAX_TOOLS,
        description="with `input_schema`; those of other types are skipped, and named in the header "
        "`X-Stoker-Skipped-Tools`",
    )
    tool_choice: dict[str, Any] | None = Field(
        None, description="auto, any, tool or none; with `disable_parallel_tool_use`"
    )
    thinking: Thinking | None = Field(
        None, description="for chat templates that can switch it: enabled, also with `budget_tokens`; adaptive; "
        "disabled, which is the default"
    )  # fmt: skip
    output_config: OutputConfig | None = Field(None, description="`effort`, and `format` with a JSON schema")
    metadata: dict[str, Any] | None = Field(None, description="`user_id` names the session")
    chat_template_kwargs: TemplateKwargs = None

    @field_validator("messages")
    @classmethod
    def _known_messages(cls, value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        messages_of(value)
        return value

    @field_validator("system", mode="plain", json_schema_input_type=str | list[dict[str, Any]] | None)
    @classmethod
    def _known_system(cls, value: Any) -> Any:
        if value is not None:
            system_of(value)
        return value

    @field_validator("tools")
    @classmethod
    def _known_tools(cls, value: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        read_tools(value or ())
        return value

    @cached_property
    def known_tools(self) -> Tools:
        return read_tools(self.tools or ())

    @cached_property
    def history(self) -> History:
        return messages_of(self.messages)

    @property
    def skipped(self) -> list[str]:
        return [*self.known_tools.skipped, *self.history.skipped]

    @property
    def names(self) -> Names:
        places = [f"messages{place}" for place in self.history.places]
        tools = [(f"tools{place}", f"tools{place}.input_schema") for place in self.known_tools.places]
        if system_of(self.system or ""):
            places = ["system", *places]
        return Names(_NAMES, "messages", places, tools)

    def refuse_unsupported(self) -> None:
        super().refuse_unsupported()
        self.conversation().refuse_unsupported()

    def essentials(self) -> dict[str, Any]:
        """Leave out the messages, whose text only the chat template reads, except the beginning of the answer."""
        kept = super().essentials()
        last = self.messages[-1]
        kept["messages"] = [last if last["role"] == "assistant" else {"role": "user", "content": ""}]
        kept.pop("system", None)
        if self.metadata is not None:
            kept["metadata"] = {name: value for name, value in self.metadata.items() if name == "user_id"}
        if self.tools and len(dump(self.tools)) > MAX_TOOLS_BYTES:
            message = f"`tools` must have at most {MAX_TOOLS_BYTES} bytes"
            raise bad_request(message, code="json_too_large", param="tools")
        return kept

    def conversation(self) -> ChatRequest:
        fields: dict[str, Any] = {name: getattr(self, name) for name in _SHARED}
        thinking, output = self.thinking, self.output_config
        choice = self.tool_choice or {}
        messages = [*system_of(self.system or ""), *self.history.messages]
        last = messages[-1]
        begins_answer = last["role"] == "assistant" and bool(last["content"]) and "tool_calls" not in last
        fields |= {
            "messages": messages,
            "continue_final_message": begins_answer,
            "add_generation_prompt": not begins_answer,
            "tools": self.known_tools.functions or None,
            "tool_choice": _choice(self.tool_choice),
            "parallel_tool_calls": False if choice.get("disable_parallel_tool_use") is True else None,
            "enable_thinking": None if thinking and thinking.type == "adaptive" else bool(
                thinking and thinking.type != "disabled"
            ),
            "thinking_token_budget": thinking.budget_tokens if thinking and thinking.type == "enabled" else None,
            "include_reasoning": False if thinking and thinking.display == "omitted" else None,
            "reasoning_effort": output.effort if output else None,
            "response_format": _response_format(output.format) if output and output.format else None,
            "chat_template_kwargs": self.chat_template_kwargs,
            "metadata": self.metadata,
            **self._generation_fields(),
        }  # fmt: skip
        return chat_request(fields)

    def _generation_fields(self) -> dict[str, Any]:
        return {}


_NAMES = {
    "response_format.json_schema": "output_config.format",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "max_completion_tokens": "max_tokens",
    "enable_thinking": "thinking",
    "thinking_token_budget": "thinking.budget_tokens",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "continue_final_message": "messages",
    "stop": "stop_sequences",
}


class MessagesRequest(CountTokensRequest):
    max_tokens: Integer = Field(
        ge=0, le=MAX_TOKENS, description="maximum length of the answer; 0 computes the prompt, for the prefix cache"
    )
    stop_sequences: list[str] | None = Field(
        None, max_length=MAX_STOP_STRINGS, description="texts that end the answer, but not its thinking; also as `stop`"
    )

    @field_validator("stop_sequences")
    @classmethod
    def _short_stops(cls, value: list[str] | None) -> list[str] | None:
        for stop in value or ():
            if not 0 < len(stop) <= MAX_STOP_CHARS:
                raise FieldError(f"each must have 1 to {MAX_STOP_CHARS} characters")
        return value

    def _generation_fields(self) -> dict[str, Any]:
        stop = [*(self.stop_sequences or ()), *(self.stop or ())]
        return {"max_tokens": self.max_tokens or None, "stop": stop or None}

    def conversation(self) -> ChatRequest:
        chat = super().conversation()
        chat.max_tokens = self.max_tokens  # 0 too, which chat requests cannot have
        return chat


def _choice(choice: dict[str, Any] | None) -> Any:
    if choice is None:
        return None
    kind = choice.get("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if kind not in ("auto", "any", "none"):
        raise bad_request("`tool_choice` must have the type auto, any, tool or none", param="tool_choice.type")
    return "required" if kind == "any" else kind


def _response_format(form: dict[str, Any]) -> dict[str, Any]:
    if form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
        raise bad_request("must have the type json_schema, and a `schema`", param="output_config.format")
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": form["schema"]}}


_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_body(error: ApiError) -> dict[str, Any]:
    """Body of an error in Anthropic's form, for these routes; with the place and the code, as on all others."""
    kind = _ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    shown = {"type": kind, "message": error.message, "param": error.param, "code": error.code}
    return {"type": "error", "error": shown}


def is_path_of_messages(path: str) -> bool:
    return path == Route.MESSAGES or path.startswith(f"{Route.MESSAGES}/")
