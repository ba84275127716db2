"""Renderer: chat messages to a prompt, by the chat template that comes with the model.

A template is a program out of a model folder: it runs in jinja's immutable sandbox, within a time and a size, on plain
JSON values only. Environment and helpers are those of transformers, for which templates are written.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox

from ...engine.api import InvalidRequest
from .tokenizer import INLINE_CHARS, Tokenizer

TIME_LIMIT_S = 2.0
MAX_RENDERED_CHARS = 64 << 20  # twice the default limit of a request body
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
        environment = _Environment(time_limit_s)
        self._templates: dict[str, _Template] = {}
        for name, source in sources.items():
            try:
                self._templates[name] = _Template(environment, source)
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

        if _num_chars(messages) + _num_chars(render_arguments.get("tools") or ()) <= INLINE_CHARS:
            return work()
        return await self.tokenizer.run(work)

    def _template(self, with_tools: bool) -> _Template:
        if not self._templates:
            raise InvalidRequest(
                "this model has no chat template: set `server.chat_template`, or send prompts to /v1/completions",
                param="messages",
                code="no_chat_template",
            )
        if with_tools and "tool_use" in self._templates:
            return self._templates["tool_use"]
        return self._templates.get("default") or next(iter(self._templates.values()))


class _Template:
    """One compiled template and what it expects of messages."""

    def __init__(self, environment: _Environment, source: str) -> None:
        tree = environment.parse(source)
        self.variables = frozenset(jinja2.meta.find_undeclared_variables(tree))
        self._wants_parts = _loops_over_content(tree)
        self._knows_developer = "developer" in source
        self._takes_strings = not self._wants_parts or _asks_whether_string(tree)
        self._environment = environment
        self._template = environment.from_string(source)

    def shape(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The message as this template reads it: no null fields, content as text or as parts, arguments as objects."""
        shaped = {key: value for key, value in message.items() if value is not None}
        if shaped.get("role") == "developer" and not self._knows_developer:
            shaped["role"] = "system"  # OpenAI's newer name for it
        content = shaped.get("content")
        if isinstance(content, list) and not self._wants_parts:
            shaped["content"] = "\n".join(part["text"] for part in content)
        elif isinstance(content, str) and not self._takes_strings:
            shaped["content"] = [{"type": "text", "text": content}]
        if shaped.get("tool_calls"):
            shaped["tool_calls"] = [_with_parsed_arguments(call) for call in shaped["tool_calls"]]
        return shaped

    def render(self, variables: Mapping[str, Any]) -> str:
        chunks: list[str] = []
        size = 0
        self._environment.start_clock()
        try:
            for chunk in self._template.generate(variables):
                size += len(chunk)
                if size > MAX_RENDERED_CHARS:
                    raise _LimitPassed(f"more than {MAX_RENDERED_CHARS} characters")
                self._environment.check_clock()
                chunks.append(chunk)
        except _LimitPassed as error:
            raise InvalidRequest(f"the chat template took too much: {error}", param="messages") from None
        except jinja2.TemplateError as error:
            raise InvalidRequest(
                f"the chat template refused the messages: {_first_line(error)}", param="messages"
            ) from None
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
            # A fault of the template or of messages it did not expect: its text may hold class names, so not shown.
            raise InvalidRequest(
                f"the chat template cannot render these messages ({type(error).__name__})", param="messages"
            ) from None
        return "".join(chunks)


class _LimitPassed(Exception):
    pass


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}`: marks what the assistant wrote, for training. Here it only has to be understood."""

    tags = {"generation"}  # noqa: RUF012 (jinja's own declaration is of this kind)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(jinja2.utils.Namespace):
    """`namespace()` without names that begin with an underscore: no way to interpreter internals."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace holds no attribute {name!r}")
        super().__setitem__(name, value)


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """transformers' environment, with limits: each call, attribute and item that a template touches looks at the clock.

    A loop cannot go on without them: `range` is bounded by the sandbox, so the longest blind stretch is 100 000 empty
    rounds, some milliseconds.
    """

    intercepted_binops = frozenset({"*", "**", "+", "%"})  # those that make large values out of small ones

    def __init__(self, time_limit_s: float) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols])
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["namespace"] = _Namespace
        self._time_limit_s = time_limit_s
        self._limit = threading.local()  # renders run on several threads

    def start_clock(self) -> None:
        self._limit.deadline = time.monotonic() + self._time_limit_s

    def check_clock(self) -> None:
        if time.monotonic() > getattr(self._limit, "deadline", float("inf")):
            raise _LimitPassed(f"more than {self._time_limit_s:g} s")

    def call(self, context: jinja2.runtime.Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.check_clock()
        return super().call(context, function, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.check_clock()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.check_clock()
        return super().getitem(obj, argument)

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        self.check_clock()
        if operator == "**" or (operator == "%" and isinstance(left, str)):
            # Exponents and format widths make gigabytes in one operation; no published template needs either.
            raise jinja2.exceptions.SecurityError(f"the operator {operator!r} is not available here")
        sizes = [len(side) if isinstance(side, (str, list, tuple)) else side for side in (left, right)]
        if operator == "*" and not all(isinstance(side, (int, float)) for side in (left, right)):
            numbers = [size for size in sizes if isinstance(size, int)]
            if len(numbers) == 2 and numbers[0] * numbers[1] > MAX_RENDERED_CHARS:
                raise _LimitPassed(f"more than {MAX_RENDERED_CHARS} characters")
        value = super().call_binop(context, operator, left, right)
        if isinstance(value, (str, list, tuple)) and len(value) > MAX_RENDERED_CHARS:
            raise _LimitPassed(f"more than {MAX_RENDERED_CHARS} characters")
        return value


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja's own filter escapes HTML, which models were not trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


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


def _is_content(node: jinja2.nodes.Node) -> bool:
    if isinstance(node, jinja2.nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, jinja2.nodes.Getitem):
        return isinstance(node.arg, jinja2.nodes.Const) and node.arg.value == "content"
    return isinstance(node, jinja2.nodes.Name) and node.name == "content"


def _loops_over_content(tree: jinja2.nodes.Template) -> bool:
    """Does the template expect typed parts: `{% for part in message.content %}`?"""
    return any(_is_content(loop.iter) for loop in tree.find_all(jinja2.nodes.For))


def _asks_whether_string(tree: jinja2.nodes.Template) -> bool:
    return any(test.name == "string" and _is_content(test.node) for test in tree.find_all(jinja2.nodes.Test))


def _with_parsed_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    """A tool call as templates read it. OpenAI's wire has the arguments as JSON text; templates want the object."""
    function = dict(call.get("function") or {})
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            function["arguments"] = json.loads(arguments) if arguments.strip() else {}
        except ValueError:
            raise InvalidRequest("a tool call's `arguments` are not JSON", param="messages") from None
    return {**call, "function": function}


def _mark_end(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, list) and content:
        last = {**content[-1], "text": content[-1]["text"] + _MARK}
        return {**message, "content": [*content[:-1], last]}
    return {**message, "content": (content or "") + _MARK}


def _num_chars(value: Any) -> int:
    """Size of a JSON value's strings, to decide where to work on it."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(key) + _num_chars(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return sum(map(_num_chars, value))
    return 1


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
