"""Renderer: chat messages to a prompt, with the model's chat template.

Chooses the template and where it is rendered, and limits what a request may set in it. chat_template.py runs templates,
template_process.py runs them in a process of their own.

A template of a request is never run in this process. The deployment's own is, once it has rendered a simple message in
the other process, for the short bodies of ordinary requests: what an honest template makes of a few kilobytes takes
milliseconds, and the other process would add to the latency. Long bodies go to the other process: a single filter over
megabytes holds the GIL for long, and messages can be written to be the worst case of a template.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from ...config.checkpoint.chat_templates import TemplateSource
from ...engine.api import InvalidRequest
from ..protocol.json import has_surrogate
from .chat_template import TIME_LIMIT_S, CannotCompile, ChatTemplate, ContentFormat, LimitExceeded, TemplateEnvironment
from .template_process import IsolatedTemplate, TemplateProcesses
from .tokenizer import Tokenizer, Truncation

T = TypeVar("T")

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


class Prompt(NamedTuple):
    text: str
    token_ids: list[int]


class _Template:
    """One template: in a process of its own, and in this one once it has rendered there.

    Rendering in this process is faster, but holds the event loop or the GIL as long as one operation takes. A template
    that exceeded a limit is never rendered here again.
    """

    def __init__(self, processes: TemplateProcesses, source: str, content_format: ContentFormat) -> None:
        """Raises CannotCompile or LimitExceeded."""
        self._isolated = IsolatedTemplate(processes, source, content_format)
        self._local: ChatTemplate | None = None
        self._source = (source, content_format)
        self.variables = self._isolated.variables
        self.problem: str | None = None  # the error of `try_out`

    def try_out(self, variables: Mapping[str, Any], environment: TemplateEnvironment) -> None:
        """Render one simple message; from then on the template may be rendered here, unless it exceeded a limit."""
        try:
            self._isolated.render([{"role": "user", "content": "Hello"}], variables)
        except InvalidRequest as error:
            self.problem = str(error)
            if isinstance(error, LimitExceeded):
                return
        self._local = ChatTemplate(environment, *self._source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        *,
        continues: bool,
        isolated: bool,
    ) -> str:
        if self._local is None or isolated:
            return self._isolated.render(messages, variables, continues=continues)
        try:
            return self._local.render(messages, variables, continues=continues)
        except LimitExceeded:
            self._local = None
            raise

    @property
    def is_local(self) -> bool:
        return self._local is not None


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
        processes: TemplateProcesses | None = None,
    ) -> None:
        """
        chat_template: None is the model's template.
        content_format: the form in which templates get the content of messages.
        default_kwargs: variables of every rendering; `template_kwargs` replaces those of the same name.
        processes: for isolated rendering; by default of its own.
        Raises TemplateProblem if a template does not compile, or if the server itself sets a name of `default_kwargs`.
        Without any template, rendering raises InvalidRequest.
        """
        self.tokenizer = tokenizer
        self._default_kwargs = dict(default_kwargs or {})
        if taken := sorted(self._default_kwargs.keys() & self.reserved):
            raise TemplateProblem(f"`server.default_chat_template_kwargs` cannot set `{taken[0]}`: the server sets it")
        self._content_format = content_format
        self.sources = tokenizer.chat_templates if chat_template is None else {"default": chat_template}
        self._processes = processes or TemplateProcesses(time_limit_s)
        # Templates of requests have processes of their own: they cannot delay the requests of other clients.
        self._processes_of_requests = TemplateProcesses(time_limit_s)
        environment = TemplateEnvironment(time_limit_s)
        self._templates: dict[str, _Template] = {}
        for name, source in self.sources.items():
            where = f"chat template {source.origin}" + ("" if name == "default" else f" ({name!r})")
            if has_surrogate(source.text):
                raise TemplateProblem(f"{where}: it is not text: it contains half of a surrogate pair")
            try:
                template = _Template(self._processes, source.text, content_format)
            except CannotCompile as error:
                raise TemplateProblem(error.message(where)) from None
            except LimitExceeded as error:
                raise TemplateProblem(f"{where}: compiling it exceeded a limit: {error.limit}") from None
            self._templates[name] = template
            template.try_out(self._variables(), environment)

    async def with_template(self, source: str) -> Renderer:
        """A renderer with the template of a request: always the template itself, never a file name.

        Raises InvalidRequest if it does not compile.
        """
        processes = self._processes_of_requests
        try:
            template = await processes.run(lambda: _Template(processes, source, self._content_format))
        except CannotCompile as error:
            raise InvalidRequest(error.message("the chat template"), param="chat_template") from None
        except LimitExceeded as error:
            raise InvalidRequest(str(error), param="chat_template") from None
        renderer = copy.copy(self)
        renderer.sources = {"default": TemplateSource(source, "chat_template")}
        renderer._templates = {"default": template}
        renderer._processes = processes
        return renderer

    async def run_isolated(self, work: Callable[[], T]) -> T:
        """Run `work`, which waits for an isolated rendering, in a thread for such work."""
        return await self._processes.run(work)

    def is_local(self, *, with_tools: bool) -> bool:
        """Whether the template may be rendered in this process."""
        return not self._templates or self._template(with_tools).is_local

    @property
    def reserved(self) -> frozenset[str]:
        """Names that a request cannot set."""
        return _PROVIDED | self.tokenizer.special_tokens.keys()

    @property
    def has_template(self) -> bool:
        return bool(self._templates)

    def problem(self) -> str | None:
        """The error of rendering one simple user message; None if it renders. For a warning at the start."""
        if not self._templates or (problem := self._template(with_tools=False).problem) is None:
            return None
        return f"{self.sources[self._name(with_tools=False)].origin}: {problem}"

    def template_variables(self, *, with_tools: bool = False) -> frozenset[str]:
        """Names of chat_template_kwargs that have an effect: those that the template reads."""
        return self._template(with_tools).variables - self.reserved if self._templates else frozenset()

    def unused_defaults(self) -> list[str]:
        """Names of default variables that no template reads."""
        read = frozenset[str]().union(*(template.variables for template in self._templates.values()))
        return sorted(self._default_kwargs.keys() - read)

    def reads(self, variable: str, *, with_tools: bool = False) -> bool:
        """Whether the template's output can depend on this variable."""
        return bool(self._templates) and variable in self._template(with_tools).variables

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        isolated: bool = False,
    ) -> str:
        """The prompt as text. Messages, tools and kwargs are plain JSON values.

        continue_final_message: the prompt ends within the last message, so that the model continues it.
        isolated: in a process of its own, as always for a template that must not be rendered here.
        Raises InvalidRequest: no template, messages that the template refuses, or a limit exceeded.
        """
        template = self._template(bool(tools))
        if continue_final_message and add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message needs add_generation_prompt: false", param="continue_final_message"
            )
        variables = self._variables(tools, documents, add_generation_prompt, template_kwargs)
        return template.render(messages, variables, continues=continue_final_message, isolated=isolated)

    def _variables(
        self,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        return {
            **self.tokenizer.special_tokens,
            **self._default_kwargs,
            **(template_kwargs or {}),
            "tools": list(tools) if tools else None,
            "documents": list(documents) if documents else None,
            "add_generation_prompt": add_generation_prompt,
        }

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int | None = None,
        cut: Truncation | None = None,
        add_special_tokens: bool = False,
        **render_arguments: Any,
    ) -> Prompt:
        """`render`, then encode.

        max_tokens: a text that cannot fit into this number of tokens is refused before it is encoded.
        cut: shortens a longer prompt instead.
        add_special_tokens: off by default, because templates write BOS.
        """
        text = self.render(messages, **render_arguments)
        if cut is not None:
            return Prompt(text, self.tokenizer.encode_cut(text, cut, add_special_tokens=add_special_tokens))
        if max_tokens is not None:
            self.tokenizer.check_length(text, max_tokens, param="messages")
        return Prompt(text, self.tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def _template(self, with_tools: bool) -> _Template:
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
