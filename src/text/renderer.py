"""Renderer: chat messages to a prompt, with the model's chat template.

Chooses the template, and limits what a request may set in it. chat_template.py runs templates, template.py decides in
which process: messages can be written to be the worst case of an honest template, and a template of a model's folder
can wait for certain messages before it shows that it is not honest.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..config.checkpoint.chat_templates import TemplateSource
from ..engine.api import InvalidRequest
from ..isolated.isolation import LOW_PRIORITY, TIME_LIMIT_S, IsolatedProcesses
from .chat_template import CannotCompile, ContentFormat, LimitExceeded
from .json_text import has_surrogate
from .switches import MUST_BE_SWITCH, wrong_switch
from .template import Rendering, Template
from .template_jobs import TEMPLATE_JOBS
from .tokenizer import Tokenizer
from .user_text import ControlTokens, UserText

# Names provided by the server or by jinja; a request's chat_template_kwargs may not replace them.
# fmt: off
_PROVIDED = frozenset({
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize",
    "raise_exception", "strftime_now", "namespace", "dict", "range", "cycler", "joiner", "bos_token",
    "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "additional_special_tokens",
})
# fmt: on


# A template that splits a text at this token, or asks whether it has it.
_LOOKED_FOR = r"""(?:split|startswith|endswith|replace|find)\(\s*['"]{0}|['"]{0}['"]\s+(?:not\s+)?in\b"""


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
        reads_control_tokens: bool = False,
    ) -> None:
        """
        chat_template: None is the model's template.
        content_format: the form in which templates get the content of messages.
        default_kwargs: variables of every rendering; `template_kwargs` replaces variables of the same name.
        processes: they render; by default the renderer has its own.
        reads_control_tokens: also in the texts of users (`server.parse_special_tokens_in_content`).
        Raises TemplateProblem if a template does not compile, if the server itself sets a name of `default_kwargs`, or
        if a value of these is a text where a template needs true or false.
        Without any template, rendering raises InvalidRequest.
        """
        self.tokenizer = tokenizer
        self._default_kwargs = dict(default_kwargs or {})
        if taken := sorted(self._default_kwargs.keys() & self.reserved):
            raise TemplateProblem(f"`server.default_chat_template_kwargs` cannot set `{taken[0]}`: the server sets it")
        if wrong_switch(self._default_kwargs) is not None:
            raise TemplateProblem(f"`server.default_chat_template_kwargs`: {MUST_BE_SWITCH}")
        self._content_format = content_format
        self._control = ControlTokens(()) if reads_control_tokens else tokenizer.control_tokens
        self.sources = tokenizer.chat_templates if chat_template is None else {"default": chat_template}
        self._processes = processes or IsolatedProcesses(TEMPLATE_JOBS, time_limit_s=time_limit_s)
        # Templates of requests have separate processes: they cannot delay the requests of other clients.
        self._processes_of_requests = IsolatedProcesses(
            self._processes.jobs, time_limit_s=time_limit_s, niceness=LOW_PRIORITY
        )
        self._of_answers: dict[str, ControlTokens] = {}  # by name of the template
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
        renderer._of_answers = {}
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

    def loses_second_system(self) -> bool:
        """Whether the template raises an error at a system message after the first message, or leaves it out, and only
        that one.
        """
        if not self._templates:
            return False
        first, second = ({"role": "system", "content": text} for text in ("dragonfly", "butterfly"))
        user = {"role": "user", "content": "b"}
        chat = [first, user, {"role": "assistant", "content": "c"}]
        try:
            before = self.render([*chat, user])
        except InvalidRequest:
            return False
        try:
            text = self.render([*chat, second, user])
        except InvalidRequest:
            return True
        return first["content"] in before and second["content"] not in text

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
        """The prompt as text. `rendering` describes messages and options."""
        template, rendering = self.rendering(messages, **options)
        return template.render(rendering)

    def render_golden(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> str:
        """Render a golden conversation for formats/detect.py."""
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
        """The template that renders these messages, and its input. Messages, tools and kwargs are plain JSON values.

        continue_final_message: the prompt ends within the last message, so that the model continues it.
        where: further fields of Rendering.
        Raises InvalidRequest if there is no template.
        """
        template = self.template(bool(tools))
        if continue_final_message and add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message needs add_generation_prompt: false", param="continue_final_message"
            )
        answers = self._control_of_answers(bool(tools))
        where |= {"control": self._control.texts, "answers": answers.texts}
        given: dict[str, Any] = {
            **(template_kwargs or {}),
            "tools": list(tools) if tools else None,
            "documents": list(documents) if documents else None,
        }
        if not where.get("long_body"):  # else it is marked where it is read, together with these
            user_text = UserText(self._control, answers, messages, **given)
            messages, given, where["mark"] = user_text.messages, user_text.given, user_text.mark
        variables = {
            **self.tokenizer.special_tokens,
            **self._default_kwargs,
            **given,
            "add_generation_prompt": add_generation_prompt,
        }
        return template, Rendering(messages, variables, continue_final_message, **where)

    def _control_of_answers(self, with_tools: bool) -> ControlTokens:
        """Control tokens, except those that the template looks for in answers, such as the end of the thinking."""
        name = self._name(with_tools)
        if name not in self._of_answers:
            source = self.sources[name].text
            self._of_answers[name] = self._control.without(
                text for text in self._control.texts if re.search(_LOOKED_FOR.format(re.escape(text)), source)
            )
        return self._of_answers[name]

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
        """Name of the template that is used."""
        if with_tools and "tool_use" in self._templates:
            return "tool_use"
        return "default" if "default" in self._templates else next(iter(self._templates))
