"""Renderer: chat messages to a prompt, with the model's chat template.

Chooses the template, and limits what a request may set in it. chat_template.py runs templates.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from ...config.checkpoint.model_files import MAX_TEMPLATE_BYTES
from ...engine.api import InvalidRequest
from ...input_file import read_file
from .chat_template import TIME_LIMIT_S, ChatTemplate, ContentFormat, TemplateEnvironment
from .tokenizer import Tokenizer

_MARK = "\ue000end of the final message\ue001"  # private-use characters: not used in messages

# Names provided by the server or by jinja; a request's chat_template_kwargs may not replace them.
# fmt: off
_PROVIDED = frozenset({
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize",
    "raise_exception", "strftime_now", "namespace", "dict", "range", "cycler", "joiner", "bos_token",
    "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "additional_special_tokens",
})
# fmt: on


class TemplateProblem(Exception):
    """The chat template cannot be used: no such file, or a syntax error. Raised at the start."""


class Prompt(NamedTuple):
    text: str
    token_ids: list[int]


class Renderer:
    """Messages to text to token ids, with the template of one model, compiled once."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: str | None = None,
        *,
        content_format: ContentFormat = "auto",
        default_kwargs: Mapping[str, Any] | None = None,
        time_limit_s: float = TIME_LIMIT_S,
    ) -> None:
        """
        chat_template: a file, or the template itself; None is the model's template.
        content_format: the form in which templates get the content of messages.
        default_kwargs: variables of every rendering; `template_kwargs` replaces those of the same name.
        Raises TemplateProblem if a template does not compile, or if the server itself sets a name of `default_kwargs`.
        Without any template, rendering raises InvalidRequest.
        """
        self.tokenizer = tokenizer
        self._default_kwargs = dict(default_kwargs or {})
        if taken := sorted(self._default_kwargs.keys() & self.reserved):
            raise TemplateProblem(f"`server.default_chat_template_kwargs` cannot set `{taken[0]}`: the server sets it")
        self._content_format = content_format
        self.sources = tokenizer.chat_templates if chat_template is None else {"default": _read_template(chat_template)}
        self._environment = TemplateEnvironment(time_limit_s)
        self._templates: dict[str, ChatTemplate] = {}
        for name, source in self.sources.items():
            try:
                self._templates[name] = ChatTemplate(self._environment, source, content_format)
            except jinja2.TemplateSyntaxError as error:
                where = "chat template" if name == "default" else f"chat template {name!r}"
                raise TemplateProblem(f"{where}, line {error.lineno}: {error.message}") from None

    def with_template(self, source: str) -> Renderer:
        """A renderer with the template of a request: always the template itself, never a file name.

        Raises InvalidRequest if it does not compile.
        """
        try:
            template = ChatTemplate(self._environment, source, self._content_format)
        except jinja2.TemplateSyntaxError as error:
            raise InvalidRequest(
                f"the chat template, line {error.lineno}: {error.message}", param="chat_template"
            ) from None
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
            # limits of Python's compiler for blocks, parentheses and numbers
            raise InvalidRequest(
                "the chat template is nested too deeply to be compiled", param="chat_template"
            ) from None
        renderer = copy.copy(self)
        renderer.sources, renderer._templates = {"default": source}, {"default": template}
        return renderer

    @property
    def reserved(self) -> frozenset[str]:
        """Names that a request cannot set."""
        return _PROVIDED | self.tokenizer.special_tokens.keys()

    @property
    def has_template(self) -> bool:
        return bool(self._templates)

    def problem(self) -> str | None:
        """The error of rendering one simple user message; None if it renders. For a warning at the start."""
        if not self._templates:
            return None
        try:
            self.render([{"role": "user", "content": "Hello"}])
        except InvalidRequest as error:
            return str(error)
        return None

    def template_variables(self, *, with_tools: bool = False) -> frozenset[str]:
        """Names of chat_template_kwargs that have an effect: those that the template reads."""
        return self._template(with_tools).variables - self.reserved if self._templates else frozenset()

    def unused_defaults(self) -> list[str]:
        """Names of default variables that no template reads."""
        read = frozenset[str]().union(*(template.variables for template in self._templates.values()))
        return sorted(self._default_kwargs.keys() - read)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt as text. Messages, tools and kwargs are plain JSON values.

        continue_final_message: the prompt ends within the last message, so that the model continues it.
        Raises InvalidRequest: no template, messages that the template refuses, or a limit exceeded.
        """
        template = self._template(bool(tools))
        shaped = [template.shape(message, f"messages[{index}]") for index, message in enumerate(messages)]
        if continue_final_message:
            if add_generation_prompt:
                raise InvalidRequest(
                    "continue_final_message needs add_generation_prompt: false", param="continue_final_message"
                )
            shaped[-1] = _mark_end(shaped[-1])
        variables = {
            **self.tokenizer.special_tokens,
            **self._default_kwargs,
            **(template_kwargs or {}),
            "messages": shaped,
            "tools": list(tools) if tools else None,
            "documents": list(documents) if documents else None,
            "add_generation_prompt": add_generation_prompt,
        }
        text = template.render(variables)
        if not continue_final_message:
            return text
        end = text.rfind(_MARK)
        if end < 0:
            raise InvalidRequest(
                "the chat template does not write the final message, so it cannot be continued",
                param="continue_final_message",
            )
        return text[:end]

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int | None = None,
        add_special_tokens: bool = False,
        **render_arguments: Any,
    ) -> Prompt:
        """`render`, then encode.

        max_tokens: a text that cannot fit into this number of tokens is refused before it is encoded.
        add_special_tokens: off by default, because templates write BOS.
        """
        text = self.render(messages, **render_arguments)
        if max_tokens is not None:
            self.tokenizer.check_length(text, max_tokens, param="messages")
        return Prompt(text, self.tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def _template(self, with_tools: bool) -> ChatTemplate:
        if not self._templates:
            raise InvalidRequest(
                "this model has no chat template: set `server.chat_template`, or send prompts to /v1/completions",
                param="messages",
                code="no_chat_template",
            )
        if with_tools and "tool_use" in self._templates:
            return self._templates["tool_use"]
        return self._templates.get("default") or next(iter(self._templates.values()))


def _read_template(value: str) -> str:
    """Read the file of this name if there is one; else `value` is the template, if it looks like one."""
    looks_like_template = "{{" in value or "{%" in value
    try:
        if not looks_like_template or Path(value).is_file():
            return read_file(value, MAX_TEMPLATE_BYTES).decode()
    except (OSError, ValueError) as error:
        if not looks_like_template:
            cause = error.strerror if isinstance(error, OSError) else "not a text file"
            raise TemplateProblem(f"chat template {value}: {cause}") from None
    return value


def _mark_end(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, list) and content:
        last = {**content[-1], "text": content[-1]["text"] + _MARK}
        return {**message, "content": [*content[:-1], last]}
    return {**message, "content": (content or "") + _MARK}
