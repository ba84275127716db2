"""Jinja's immutable sandbox with limits on time and size, in which chat templates run.

Environment and helpers equal transformers', for which templates are written. The limits are checked between operations:
a single operation can exceed them. isolation.py ends that too.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import jinja2
import jinja2.compiler
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox

MAX_RENDERED_CHARS = 64 << 20  # twice the default limit of a request body
MAX_BITS = 1 << 16


class RenderingStopped(Exception):
    """A rendering exceeded a limit. Not an InvalidRequest, which is a ValueError: some filters ignore those."""


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
            raise RenderingStopped(f"more than {self._time_limit_s:g} s")

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
            raise RenderingStopped(f"more than {self.max_chars} characters")
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
                raise RenderingStopped(f"more than {self.max_chars} characters")
        value = super().call_binop(context, operator, left, right)
        if isinstance(value, (str, list, tuple)) and len(value) > self.max_chars:
            raise RenderingStopped(f"more than {self.max_chars} characters")
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise RenderingStopped(f"a number of more than {MAX_BITS} bits")
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
