"""Renderer: chat messages to a prompt, by the chat template that comes with the model.

Knows which template to take and what a request may set in it; how a template is run is chat_template.py's affair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from ...engine.api import InvalidRequest
from .chat_template import TIME_LIMIT_S, ChatTemplate, TemplateEnvironment
from .tokenizer import INLINE_CHARS, Tokenizer

_MARK = "\ue000end of the final message\ue001"  # private-use characters: no message holds them

# Names that the server or jinja itself provides; a request's chat_template_kwargs may not replace them.
# fmt: off
_PROVIDED = frozenset({
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize",
    "raise_exception", "strftime_now", "namespace", "dict", "range", "cycler", "joiner", "lipsum", "bos_token",
    "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "additional_special_tokens",
})
# fmt: on


class TemplateProblem(Exception):
    """The chat template itself cannot be used (found at start-up): no such file, or no template."""


class Renderer:
    """Messages -> text -> token ids, with one model's template, compiled once."""

    def __init__(
        self, tokenizer: Tokenizer, chat_template: str | None = None, *, time_limit_s: float = TIME_LIMIT_S
    ) -> None:
        """
        chat_template: a file, or the template itself; None takes the model's own.
        Raises TemplateProblem when a template does not compile. A model without any gets a Renderer that refuses.
        """
        self.tokenizer = tokenizer
        sources = tokenizer.chat_templates if chat_template is None else {"default": _read_template(chat_template)}
        environment = TemplateEnvironment(time_limit_s)
        self._templates: dict[str, ChatTemplate] = {}
        for name, source in sources.items():
            try:
                self._templates[name] = ChatTemplate(environment, source)
            except jinja2.TemplateSyntaxError as error:
                where = "chat template" if name == "default" else f"chat template {name!r}"
                raise TemplateProblem(f"{where}, line {error.lineno}: {error.message}") from None

    @property
    def reserved(self) -> frozenset[str]:
        """Names that a request cannot give."""
        return _PROVIDED | self.tokenizer.special_tokens.keys()

    @property
    def has_template(self) -> bool:
        return bool(self._templates)

    def problem(self) -> str | None:
        """What the template says against the simplest conversation there is; None if it renders. For start-up."""
        if not self._templates:
            return None
        try:
            self.render([{"role": "user", "content": "Hello"}])
        except InvalidRequest as error:
            return str(error)
        return None

    def template_variables(self, *, with_tools: bool = False) -> frozenset[str]:
        """What a request may set through chat_template_kwargs with effect: the names that the template reads."""
        return self._template(with_tools).variables - self.reserved if self._templates else frozenset()

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

        continue_final_message: the prompt ends within the last message, for the model to go on with it.
        Raises InvalidRequest: no template, a message that the template refuses, or a limit that was passed.
        """
        template = self._template(bool(tools))
        shaped = [template.shape(message) for message in messages]
        if continue_final_message:
            if add_generation_prompt:
                raise InvalidRequest(
                    "continue_final_message needs add_generation_prompt: false", param="continue_final_message"
                )
            shaped[-1] = _mark_end(shaped[-1])
        variables = {
            **self.tokenizer.special_tokens,
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
                "the chat template does not show the final message, so it cannot be continued",
                param="continue_final_message",
            )
        return text[:end]

    async def tokens(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int | None = None,
        add_special_tokens: bool = False,
        **render_arguments: Any,
    ) -> list[int]:
        """`render`, then encode; off the event loop when the messages are long.

        max_tokens: texts that can never fit into so many are refused before they are encoded.
        add_special_tokens: off, because templates write BOS themselves.
        """

        def work() -> list[int]:
            text = self.render(messages, **render_arguments)
            if max_tokens is not None:
                self.tokenizer.check_length(text, max_tokens, param="messages")
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

        if _chars_left([messages, *render_arguments.values()], INLINE_CHARS) >= 0:
            return work()
        return await self.tokenizer.run(work)

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
    """A file if there is one of this name, else the template itself if it looks like one."""
    looks_like_template = "{{" in value or "{%" in value
    try:
        if not looks_like_template or Path(value).is_file():
            return Path(value).read_text(encoding="utf-8")
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


def _chars_left(value: Any, room: int) -> int:
    """`room` less the size of a JSON value's strings and items; negative as soon as it is known not to fit."""
    if isinstance(value, str):
        return room - len(value)
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    if isinstance(value, (list, tuple)):
        for item in value:
            room = _chars_left(item, room)
            if room < 0:
                return room
    return room - 1
