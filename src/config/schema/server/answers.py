"""Section `server`: chat templates, tool calls, and the form of answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ..section import Section, about
from ..types import Flag, Text, parse_one_or_more

NormaliseRules = Annotated[
    tuple[Literal["anthropic-billing", "total-tokens", "cache-control"], ...], BeforeValidator(parse_one_or_more)
]


class AnswerOptions(Section):
    """How requests are read, and what answers contain."""

    chat_template: Text | None = Field(
        None,
        description=(
            "Jinja template that converts chat messages to a prompt: a file, or the template text. Unset, the "
            "tokenizer's template is used; for a few known models without one, a template of this package (model "
            "facts). With a wrong template the model answers badly, without an error."
        ),
        examples=["./templates/chat.jinja"],
        json_schema_extra=about(kind="template"),
    )

    default_chat_template_kwargs: dict[str, Any] = Field(
        {},
        description=(
            "Variables for the chat template of every request, such as `enable_thinking: false`. A request's "
            "`chat_template_kwargs` and `reasoning_effort` replace those of the same name. A name that the template "
            "does not use is reported at the start."
        ),
        examples=[{"enable_thinking": False}],
    )

    chat_template_content_format: Literal["auto", "string", "openai"] = Field(
        "auto",
        description=(
            "How the content of messages is passed to the chat template: `string` as one text, parts joined by line "
            "breaks; `openai` as a list of typed parts. `auto` finds out from the template which of the two it "
            "handles, and is wrong if a template assigns the content to another variable before it loops over the "
            "parts."
        ),
        examples=["openai"],
    )

    trust_request_chat_template: Flag = Field(
        False,
        description=(
            "Let a request contain its own `chat_template`; off, such a request is answered 400. The template runs in "
            "a sandbox, in a process of its own that is ended after two seconds of processor time or at 1 GiB of "
            "memory. It is a program of the client, and two at a time can use the processor: only for trusted clients."
        ),
        json_schema_extra=about(reload="hot"),
    )

    parse_special_tokens_in_content: Flag = Field(
        False,
        description=(
            "Whether the text of a control token, such as `<|im_end|>`, in messages, tool results, documents and tools "
            "becomes that token, as in other engines. Otherwise it is text, so that what a user or a tool wrote cannot "
            "begin a message of the system, end the thinking or make a call. Raw prompts always have their tokens."
        ),
    )

    second_system_message: Literal["auto", "keep", "first", "error"] = Field(
        "auto",
        description=(
            "What happens to a system message after the first message: `keep` passes it to the chat template where it "
            "is, `first` appends its text to the first system message, `error` answers 400. `auto` is `first` with a "
            "chat template that raises an error at such messages or leaves them out, otherwise `keep`. Moving the text "
            "changes the beginning of the prompt, which is then computed again."
        ),
        examples=["first"],
    )

    agents_normalise: NormaliseRules = Field(
        ("anthropic-billing", "total-tokens", "cache-control"),
        description=(
            "What is removed from messages because coding agents change it with every request, so that no prompt "
            "begins as the one before: `anthropic-billing` the line x-anthropic-billing-header of system messages, "
            "`total-tokens` their counter <total_tokens>, `cache-control` the markers of that name. The model does not "
            "see what is removed; a metric counts it. `[]` removes nothing."
        ),
        examples=[["anthropic-billing"], ["cache-control"]],
        json_schema_extra=about(notation="commas"),
    )

    response_role: Text = Field(
        "assistant",
        description=(
            "Role name of generated messages; a message that continues the client's last message keeps its role. "
            "Clients expect `assistant`; use another name for a model that was trained with it."
        ),
        examples=["assistant"],
        json_schema_extra=about(reload="hot"),
    )

    reasoning_field: Literal["both", "reasoning", "reasoning_content", "inline", "none"] = Field(
        "both",
        description=(
            "Where chat answers have the model's reasoning: in the field `reasoning`, as newer clients read it, in "
            "`reasoning_content`, as older ones do, or in both; `inline` leaves it in the content, between the model's "
            "own markers, `none` removes it. A request's `include_reasoning` and `separate_reasoning` have precedence."
        ),
        examples=["reasoning_content"],
        json_schema_extra=about(reload="hot"),
    )

    model_aliases: dict[str, str] = Field(
        {},
        description=(
            "Further model names that requests may use, each with the served name that it means. A name may be a "
            "pattern: `claude-*` serves the names that a coding agent has built in. /v1/models does not list them."
        ),
        examples=[{"claude-*": "my-model"}],
    )

    tool_call_parser: Text = Field(
        "auto",
        description=(
            "Format in which the model writes tool calls, which answers then contain as objects. `auto` finds it by "
            "the chat template, and accepts a format only if it reads the calls that the template itself writes; "
            "`none` leaves calls in the text. Other values are the names of tool call parsers in vLLM and SGLang, or "
            "of a plugin, and are used even if the template writes otherwise, with a warning."
        ),
        examples=["none", "hermes", "qwen3_coder"],
    )

    tool_parser_plugin: Annotated[str | None, BeforeValidator(lambda value: None if value == "" else value)] = Field(
        None,
        description=(
            "File with a further format: a declaration in YAML, or Python with one class that has the methods `feed` "
            "and `finish`. It is used unless `tool_call_parser` names another one. A Python file runs with the rights "
            "of the server, and with it no grammar constrains calls."
        ),
        examples=["./formats/mine.yaml"],
        json_schema_extra=about(kind="path"),
    )

    exclude_tools_when_tool_choice_none: Flag = Field(
        False,
        description=(
            "Leave tool definitions out of the prompt of requests with `tool_choice: none`. Saves their tokens; the "
            "prompt then begins differently from that of the same chat with tools, and shares no prefix with it."
        ),
        json_schema_extra=about(reload="hot"),
    )

    return_tokens_as_token_ids: Flag = Field(
        False,
        description=(
            "Show tokens in log-probabilities as `token_id:N` instead of their text. Distinguishes tokens that are not "
            "valid text on their own; it is harder to read. A request may ask for either."
        ),
        json_schema_extra=about(reload="hot"),
    )

    strict_requests: Flag = Field(
        False,
        description=(
            "Answer 400 to unknown request fields. Off, they are accepted, counted in a metric and logged once as a "
            "warning, because clients send vendor-specific fields."
        ),
        json_schema_extra=about(reload="hot"),
    )

    enable_request_id_headers: Flag = Field(
        False,
        description=(
            "Add an X-Request-Id header to every answer, not only to errors: the client's own if it sent one, else "
            "a new one. Connects client logs with server logs at a small cost per request."
        ),
        json_schema_extra=about(reload="hot"),
    )

    enable_prompt_tokens_details: Flag = Field(
        False,
        description=(
            "Add `prompt_tokens_details.cached_tokens` to usage: the number of prompt tokens found in the prefix "
            "cache; also what the Responses and Messages APIs count as read from the cache and written to it. It "
            "reveals to clients whether the same prefix was sent before."
        ),
        json_schema_extra=about(reload="hot"),
    )

    per_request_spec_decode_metrics: Literal["none", "summary", "detailed"] = Field(
        "none",
        description=(
            "Add `metrics.speculative_decoding` to the answers of chat, completions and responses that have one "
            "sequence: how many tokens were drafted and accepted, in how many steps. In streams it is in the chunk "
            "with usage. `detailed` also has the numbers of each step. Without `speculative.method` all are 0. They "
            "reveal to clients how predictable an answer was."
        ),
        examples=["summary"],
        json_schema_extra=about(reload="hot"),
    )

    enable_force_include_usage: Flag = Field(
        False,
        description=(
            "Add usage so far to every chunk of every stream, and a last chunk with usage, even if the client did not "
            "ask for it with `stream_options`. Accounting in a proxy then works for all clients; strict clients may "
            "not expect the additional chunk."
        ),
        json_schema_extra=about(reload="hot"),
    )
