"""Renderer: chat messages to a prompt, with the model's chat template.

Chooses the template, and limits what a request may set in it. chat_template.py runs templates, template.py decides in
which process: messages can be written to be the worst case of an honest template, and a template of a model's folder
can wait for certain messages before it shows that it is not honest.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from ...config.checkpoint.chat_templates import TemplateSource
from ...engine.api import InvalidRequest
from ..isolated.isolation import LOW_PRIORITY, TIME_LIMIT_S, CannotCompile, IsolatedProcesses
from ..protocol.json import has_surrogate
from .chat_template import ContentFormat, LimitExceeded
from .template import Rendering, Template
from .tokenizer import Tokenizer

# Names provided by the server or by jinja; a request's chat_template_kwargs may not replace them.
# fmt: off
_PROVIDED = frozenset({
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize",
    "raise_exception", "strftime_now", "namespace", "dict", "range", "cycler", "joiner", "bos_token",
    "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "additional_special_tokens",
})
# fmt: on


class TemplateProblem(Exception):
    """The chat template cannot be used: no such file, or not a template. Raised at the start."""


class Renderer:
    """Messages to text to token ids, with the template of one model, compiled once."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: TemplateSource | None = None,
        *,
        content_format: ContentFormat = "auto",
        default_kwargs: Mapping[str, Any] | None = None,
        time_limit_s: float = TIME_LIMIT_S,
        processes: IsolatedProcesses | None = None,
    ) -> None:
        """
        chat_template: None is the model's template.
        content_format: the form in which templates get the content of messages.
        default_kwargs: variables of every rendering; `template_kwargs` replaces those of the same name.
        processes: that render; by default of its own.
        Raises TemplateProblem if a template does not compile, or if the server itself sets a name of `default_kwargs`.
        Without any template, rendering raises InvalidRequest.
        """
        self.tokenizer = tokenizer
        self._default_kwargs = dict(default_kwargs or {})
        if taken := sorted(self._default_kwargs.keys() & self.reserved):
            raise TemplateProblem(f"`server.default_chat_template_kwargs` cannot set `{taken[0]}`: the server sets it")
        self._content_format = content_format
        self.sources = tokenizer.chat_templates if chat_template is None else {"default": chat_template}
        self._processes = processes or IsolatedProcesses(time_limit_s=time_limit_s)
        # Templates of requests have processes of their own: they cannot delay the requests of other clients.
        self._processes_of_requests = IsolatedProcesses(time_limit_s=time_limit_s, niceness=LOW_PRIORITY)
        self._templates: dict[str, Template] = {}
        for name, source in self.sources.items():
            where = f"chat template {source.origin}" + ("" if name == "default" else f" ({name!r})")
            if has_surrogate(source.text):
                raise TemplateProblem(f"{where}: it is not text: it contains half of a surrogate pair")
            try:
                template = Template.compile(self._processes, source.text, content_format)
            except CannotCompile as error:
                raise TemplateProblem(error.message(where)) from None
            except LimitExceeded as error:
                raise TemplateProblem(f"{where}: compiling it exceeded a limit: {error.limit}") from None
            template.allow_local()
            self._templates[name] = template

    async def with_template(self, source: str) -> Renderer:
        """A renderer with the template of a request: always the template itself, never a file name.

        Raises InvalidRequest if it does not compile.
        """
        processes = self._processes_of_requests
        try:
            template = await Template.compile_async(processes, source, self._content_format)
        except CannotCompile as error:
            raise InvalidRequest(error.message("the chat template"), param="chat_template") from None
        except LimitExceeded as error:
            raise InvalidRequest(str(error), param="chat_template") from None
        renderer = copy.copy(self)
        renderer.sources = {"default": TemplateSource(source, "chat_template")}
        renderer._templates = {"default": template}
        renderer._processes = processes
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
            return f"{self.sources[self._name(with_tools=False)].origin}: {error}"
        return None

    def refuses_second_system(self) -> bool:
        """Whether the template raises an error at a system message after the first message, and only at that."""
        if not self._templates or "raise_exception" not in self.sources[self._name(with_tools=False)].text:
            return False
        system, user = {"role": "system", "content": "a"}, {"role": "user", "content": "b"}
        chat = [system, user, {"role": "assistant", "content": "c"}]
        try:
            self.render([*chat, user])
        except InvalidRequest:
            return False
        try:
            self.render([*chat, system, user])
        except InvalidRequest:
            return True
        return False

    def template_variables(self, *, with_tools: bool = False) -> frozenset[str]:
        """Names of chat_template_kwargs that have an effect: those that the template reads."""
        return self.template(with_tools).variables - self.reserved if self._templates else frozenset()

    def unused_defaults(self) -> list[str]:
        """Names of default variables that no template reads."""
        read = frozenset[str]().union(*(template.variables for template in self._templates.values()))
        return sorted(self._default_kwargs.keys() - read)

    def reads(self, variable: str, *, with_tools: bool = False) -> bool:
        """Whether the template's output can depend on this variable."""
        return bool(self._templates) and variable in self.template(with_tools).variables

    def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """The prompt as text. Messages and options are those of `rendering`."""
        template, rendering = self.rendering(messages, **options)
        return template.render(rendering)

    def render_golden(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> str:
        """As formats/detect.py asks for it."""
        return self.render(messages, tools=tools, add_generation_prompt=add_generation_prompt)

    def rendering(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        **where: Any,
    ) -> tuple[Template, Rendering]:
        """Which template renders these messages, and what it gets. Messages, tools and kwargs are plain JSON values.

        continue_final_message: the prompt ends within the last message, so that the model continues it.
        where: further fields of Rendering.
        Raises InvalidRequest if there is no template.
        """
        template = self.template(bool(tools))
        if continue_final_message and add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message needs add_generation_prompt: false", param="continue_final_message"
            )
        variables = {
            **self.tokenizer.special_tokens,
            **self._default_kwargs,
            **(template_kwargs or {}),
            "tools": list(tools) if tools else None,
            "documents": list(documents) if documents else None,
            "add_generation_prompt": add_generation_prompt,
        }
        return template, Rendering(messages, variables, continue_final_message, **where)

    def template(self, with_tools: bool) -> Template:
        """The one that renders such messages. Raises InvalidRequest if there is none."""
        if not self._templates:
            raise InvalidRequest(
                "this model has no chat template: set `server.chat_template`, or send prompts to /v1/completions",
                param="messages",
                code="no_chat_template",
            )
        return self._templates[self._name(with_tools)]

    def _name(self, with_tools: bool) -> str:
        """Of the template that is used."""
        if with_tools and "tool_use" in self._templates:
            return "tool_use"
        return "default" if "default" in self._templates else next(iter(self._templates))
