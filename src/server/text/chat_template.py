"""Chat templates: the form of messages they expect, and their execution.

A template is a program from a model folder. It runs in jinja's immutable sandbox, with limits on time and size, on
plain JSON values only. Environment and helpers are those of transformers, for which templates are written.

The limits are checked between operations: a single operation can exceed them. isolation.py ends that too.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import jinja2
import jinja2.compiler
import jinja2.exceptions
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox

from ...engine.api import InvalidRequest
from ..isolated.isolation import CannotCompile
from ..protocol.json import has_surrogate, is_too_deep

ContentFormat = Literal["auto", "string", "openai"]
MAX_RENDERED_CHARS = 64 << 20  # twice the default limit of a request body
MAX_BITS = 1 << 16
# Names of a message's reasoning: those of clients, and of templates, which read one of them.
_REASONING = ("reasoning", "reasoning_content", "thinking")
_MARK = "\ue000end of the final message\ue001"  # private-use characters: not used in messages


class LimitExceeded(InvalidRequest):
    """The template took too long, or too much memory."""

    def __init__(self, limit: str) -> None:
        super().__init__(f"the chat template exceeded a limit: {limit}", param="messages")
        self.limit = limit


class ChatTemplate:
    """One compiled template, and the form of messages it expects."""

    def __init__(self, environment: TemplateEnvironment, source: str, content_format: ContentFormat = "auto") -> None:
        """
        content_format: pass content as one text (string), as typed parts (openai), or as the template reads it (auto).
        Raises CannotCompile.
        """
        try:
            tree = environment.parse(source)
            self.variables = frozenset(jinja2.meta.find_undeclared_variables(tree))
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise CannotCompile(error.message or "a syntax error", error.lineno) from None
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
            # limits of Python's compiler for blocks, parentheses and numbers
            raise CannotCompile("it is nested too deeply, or too large, to be compiled") from None
        self._has_developer_role = "developer" in source
        self._reasoning_names = [name for name in _REASONING if re.search(rf"\.{name}\b|['\"]{name}['\"]", source)]
        self._takes_arguments_as_text = _writes_arguments(tree)
        if content_format == "auto":
            self._takes_parts = _loops_over_content(tree)
            self._takes_strings = not self._takes_parts or _asks_whether_string(tree)
        else:
            self._takes_parts = content_format == "openai"
            self._takes_strings = not self._takes_parts
        self._environment = environment

    def _shape(self, message: Mapping[str, Any], place: str) -> dict[str, Any]:
        """The message in this template's form: without null fields, content as text or parts, arguments as objects.

        place: where the request has it, such as `messages[0]`. Raises InvalidRequest for arguments that are not JSON.
        """
        shaped = {key: value for key, value in message.items() if value is not None}
        if shaped.get("role") == "developer" and not self._has_developer_role:
            shaped["role"] = "system"  # OpenAI's newer name of the system role
        reasoning = next((given for name in _REASONING if (given := shaped.pop(name, None))), None)
        if reasoning is not None:
            shaped |= dict.fromkeys(self._reasoning_names, reasoning)
        content = shaped.get("content")
        if isinstance(content, list) and not self._takes_parts:
            shaped["content"] = "\n".join(part["text"] for part in content)
        elif isinstance(content, str) and not self._takes_strings:
            shaped["content"] = [{"type": "text", "text": content}]
        if shaped.get("tool_calls"):
            shaped["tool_calls"] = [
                _with_arguments(call, f"{place}.tool_calls[{index}].function", as_text=self._takes_arguments_as_text)
                for index, call in enumerate(shaped["tool_calls"])
            ]
        return shaped

    def render(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any], *, continues: bool = False
    ) -> str:
        """The prompt for these messages.

        continues: it ends within the last message, so that the model continues it.
        Raises InvalidRequest for messages that the template refuses, LimitExceeded for too much time or memory.
        """
        shaped = [self._shape(message, f"messages[{index}]") for index, message in enumerate(messages)]
        if not continues:
            return self._generate({**variables, "messages": shaped})
        shaped[-1] = _mark_end(shaped[-1])
        text = self._generate({**variables, "messages": shaped})
        end = text.rfind(_MARK)
        if end < 0:
            raise InvalidRequest(
                "the chat template does not write the final message, so it cannot be continued",
                param="continue_final_message",
            )
        return text[:end]

    def _generate(self, variables: Mapping[str, Any]) -> str:
        chunks: list[str] = []
        size = 0
        self._environment.start_clock()
        try:
            for chunk in self._template.generate(variables):
                size += len(chunk)
                if size > self._environment.max_chars:
                    raise _LimitExceeded(f"more than {self._environment.max_chars} characters")
                self._environment.check_clock()
                chunks.append(chunk)
            self._environment.check_clock()  # an operation after the last chunk can be the one that took long
            text = "".join(chunks)
        except _LimitExceeded as error:
            raise LimitExceeded(str(error)) from None
        except MemoryError:
            raise LimitExceeded("more memory than it may use") from None
        except jinja2.TemplateError as error:
            raise InvalidRequest(
                f"the chat template refused the messages: {_first_line(error)}", param="messages"
            ) from None
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
            # A bug of the template, or messages it does not expect. The text may contain class names: not shown.
            raise InvalidRequest(
                f"the chat template cannot render these messages ({type(error).__name__})", param="messages"
            ) from None
        if has_surrogate(text):
            raise InvalidRequest(
                "the chat template cannot render these messages (half of a surrogate pair)", param="messages"
            )
        return text


class _LimitExceeded(Exception):
    """Within a rendering. Not an InvalidRequest, which is a ValueError: some filters ignore those."""


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}`: marks the assistant's text, for training. Accepted without effect."""

    tags = {"generation"}  # noqa: RUF012 (declared so by jinja)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(jinja2.utils.Namespace):
    """`namespace()` without names that begin with an underscore, which lead to interpreter internals."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace cannot have an attribute {name!r}")
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"  # with its attributes, which can be namespaces, the size can be exponential


class _CodeGenerator(jinja2.compiler.CodeGenerator):
    """Adds a time check to each comparison and to each iteration of a loop; `~` joins its operands with
    `TemplateEnvironment.concat`."""

    def visit_Compare(self, node: jinja2.nodes.Compare, frame: jinja2.compiler.Frame) -> None:
        self.write("(environment.check_clock() or ")
        super().visit_Compare(node, frame)
        self.write(")")

    def visit_For(self, node: jinja2.nodes.For, frame: jinja2.compiler.Frame) -> None:
        check = jinja2.nodes.EnvironmentAttribute("check_clock", lineno=node.lineno)
        call = jinja2.nodes.Call(check, [], [], None, None, lineno=node.lineno)
        node.body.insert(0, jinja2.nodes.ExprStmt(call, lineno=node.lineno))
        super().visit_For(node, frame)

    def visit_Concat(self, node: jinja2.nodes.Concat, frame: jinja2.compiler.Frame) -> None:
        self.write("environment.concat((")
        for operand in node.nodes:
            self.write("str(")
            self.visit(operand, frame)
            self.write("), ")
        self.write("))")


class TemplateEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """transformers' environment, with limits. The time is checked at each call, attribute, item, filter, test and
    comparison, and in each iteration of a loop."""

    code_generator_class = _CodeGenerator
    intercepted_binops = frozenset({"*", "**", "+", "-", "%"})  # operators that make large values from small ones

    def __init__(
        self,
        time_limit_s: float,
        clock: Callable[[], float] = time.monotonic,
        max_chars: int = MAX_RENDERED_CHARS,
    ) -> None:
        """max_chars: of each value, and of the prompt."""
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols])
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["namespace"] = _Namespace
        del self.globals["lipsum"]  # writes any number of paragraphs without a time check
        self._time_limit_s = time_limit_s
        self._clock = clock
        self.max_chars = max_chars
        self._limit = threading.local()  # rendering runs on several threads

    def start_clock(self) -> None:
        self._limit.deadline = self._clock() + self._time_limit_s

    def check_clock(self) -> None:
        if self._clock() > getattr(self._limit, "deadline", float("inf")):
            raise _LimitExceeded(f"more than {self._time_limit_s:g} s")

    def call(self, context: jinja2.runtime.Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.check_clock()
        return super().call(context, function, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.check_clock()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.check_clock()
        return super().getitem(obj, argument)

    def call_filter(self, *args: Any, **kwargs: Any) -> Any:
        self.check_clock()
        return super().call_filter(*args, **kwargs)

    def call_test(self, *args: Any, **kwargs: Any) -> Any:
        self.check_clock()
        return super().call_test(*args, **kwargs)

    def concat(self, pieces: Iterable[str]) -> str:
        """Joins the pieces of a block, of a macro or of `~`. Checks the size: these can double a text repeatedly."""
        self.check_clock()
        pieces = list(pieces)
        if sum(map(len, pieces)) > self.max_chars:
            raise _LimitExceeded(f"more than {self.max_chars} characters")
        return "".join(pieces)

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        self.check_clock()
        if operator == "**" or (operator == "%" and isinstance(left, str)):
            # Exponents and format widths can make gigabytes in one operation; no published template uses them.
            raise jinja2.exceptions.SecurityError(f"the operator {operator!r} is not available here")
        sizes = [len(side) if isinstance(side, (str, list, tuple)) else side for side in (left, right)]
        if operator == "*" and not all(isinstance(side, (int, float)) for side in (left, right)):
            numbers = [size for size in sizes if isinstance(size, int)]
            if len(numbers) == 2 and numbers[0] * numbers[1] > self.max_chars:
                raise _LimitExceeded(f"more than {self.max_chars} characters")
        value = super().call_binop(context, operator, left, right)
        if isinstance(value, (str, list, tuple)) and len(value) > self.max_chars:
            raise _LimitExceeded(f"more than {self.max_chars} characters")
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise _LimitExceeded(f"a number of more than {MAX_BITS} bits")
        return value


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike jinja's filter it does not escape HTML, which models were not trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _is_content(node: jinja2.nodes.Node) -> bool:
    if isinstance(node, jinja2.nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, jinja2.nodes.Getitem):
        return _is_constant(node.arg, "content")
    return isinstance(node, jinja2.nodes.Name) and node.name == "content"


def _is_constant(node: jinja2.nodes.Node, value: str) -> bool:
    return isinstance(node, jinja2.nodes.Const) and node.value == value


def _loops_over_content(tree: jinja2.nodes.Template) -> bool:
    """Does the template expect typed parts: `{% for part in message.content %}`?"""
    return any(_is_content(loop.iter) for loop in tree.find_all(jinja2.nodes.For))


def _asks_whether_string(tree: jinja2.nodes.Template) -> bool:
    return any(test.name == "string" and _is_content(test.node) for test in tree.find_all(jinja2.nodes.Test))


def _writes_arguments(tree: jinja2.nodes.Template) -> bool:
    """Does the template write the arguments of calls as they are: `{{ call.arguments }}`, or joined with other text?

    Most convert an object (`call.arguments | tojson`). Those that ask which of both they get are given objects.
    """
    if any(_is_arguments(test.node) for test in tree.find_all(jinja2.nodes.Test)):
        return False
    joins = (jinja2.nodes.Output, jinja2.nodes.Add, jinja2.nodes.Concat)
    return any(_is_arguments(child) for node in tree.find_all(joins) for child in node.iter_child_nodes())


def _is_arguments(node: jinja2.nodes.Node) -> bool:
    if isinstance(node, jinja2.nodes.Getattr):
        return node.attr == "arguments"
    return isinstance(node, jinja2.nodes.Getitem) and _is_constant(node.arg, "arguments")


def _with_arguments(call: Mapping[str, Any], place: str, *, as_text: bool) -> dict[str, Any]:
    """A tool call as templates read it: the arguments are JSON text in OpenAI's API, an object in most templates."""
    function = call.get("function") or {}
    if not isinstance(function, Mapping):
        raise InvalidRequest(f"`{place}` must be an object", param=place)
    arguments = function.get("arguments")
    if as_text:
        if arguments is not None and not isinstance(arguments, str):
            function = {**function, "arguments": json.dumps(arguments, ensure_ascii=False)}
    elif isinstance(arguments, str):
        function = {**function, "arguments": _parsed(arguments, f"{place}.arguments") if arguments.strip() else {}}
    return {**call, "function": function}


def _parsed(text: str, place: str) -> Any:
    """Accepts what models write, such as NaN and duplicate keys; refuses what cannot be rendered and encoded.

    Arguments that are not JSON remain a text: a model wrote them, and its client sends them in every later request.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        problem = "are nested too deeply"
    except json.JSONDecodeError:
        return text
    except ValueError:
        problem = "have a number with thousands of digits"
    else:
        if is_too_deep(value):
            problem = "are nested too deeply"
        elif "\\u" in text and has_surrogate(json.dumps(value, ensure_ascii=False)):
            problem = "contain half of a surrogate pair"
        else:
            return value
    raise InvalidRequest(f"`{place}` {problem}", param=place)


def _mark_end(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, list) and content:
        last = {**content[-1], "text": content[-1]["text"] + _MARK}
        return {**message, "content": [*content[:-1], last]}
    return {**message, "content": (content or "") + _MARK}


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
