"""Mutations: small changes to a kernel's syntax tree, put in place of the kernel while a test runs.

A site is found by kind of node and position among the nodes of its kind in one function, never by its text, so that
comments, layout and names can change. How many such nodes there are is part of the site: where that number changes, the
mutation fails until somebody has looked at it. List the sites of a module:

    python -m tests.kernels.mutation decode_attention _decode
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

PACKAGE = "stoker.engine.kernels.gpu"
_OPERATORS = {
    "+": ast.Add, "-": ast.Sub, "*": ast.Mult, "/": ast.Div, "//": ast.FloorDiv, "%": ast.Mod, "&": ast.BitAnd,
    "|": ast.BitOr, "^": ast.BitXor, ">>": ast.RShift, "<<": ast.LShift, "<": ast.Lt, "<=": ast.LtE, ">": ast.Gt,
    ">=": ast.GtE, "==": ast.Eq, "!=": ast.NotEq,
}  # fmt: skip
_SYMBOLS = {operator: symbol for symbol, operator in _OPERATORS.items()}

Change = Callable[[Any], ast.AST]


def kind_of(node: ast.AST) -> str | None:
    """`<`, `+`, `+=`, `-x`, `tl.where()`, `15`, `name`, `tuple`; None for nodes that are not mutated."""
    match node:
        case ast.Compare(ops=[operator]):
            return _SYMBOLS.get(type(operator))
        case ast.BinOp(op=operator):
            return _SYMBOLS.get(type(operator))
        case ast.AugAssign(op=operator):
            return f"{_SYMBOLS[type(operator)]}="
        case ast.UnaryOp(op=ast.USub()):
            return "-x"
        case ast.Call(func=function):
            return f"{ast.unparse(function)}()"
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int() | float() as value):
            return repr(value)
        case ast.Name(id=name, ctx=ast.Load()):
            return name
        case ast.Tuple(ctx=ast.Load()):
            return "tuple"
    return None


@dataclass(frozen=True)
class Mutation:
    module: str
    function: str
    kind: str
    position: int  # among the nodes of the kind in the function, in the order of the source
    count: int  # how many there are
    change: Change

    def __str__(self) -> str:
        name = getattr(self.change, "__name__", "?")
        return f"{self.module}.{self.function}: {self.kind} {self.position} of {self.count} {name}"

    def tree(self) -> ast.Module:
        """The mutated function. Fails if the site is not there any more."""
        module = _parsed(_function(self.module, self.function))
        found = [node for node in _in_order(module.body[0]) if kind_of(node) == self.kind]
        if len(found) != self.count:
            pytest.fail(
                f"{self}: there are {len(found)} such nodes now. Find the one that is meant and what it should become "
                f"(python -m tests.kernels.mutation {self.module} {self.function}), and correct this mutation."
            )
        target = found[self.position]
        before = ast.dump(module)
        mutated: ast.Module = ast.fix_missing_locations(_Replace(target, self.change(target)).visit(module))
        assert ast.dump(mutated) != before, f"{self} changes nothing"
        return mutated

    def apply(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replaces the function in place, for every module that has imported it."""
        function = _function(self.module, self.function)
        original = _python(function)
        file = folder / f"{self.module}.py"
        file.write_text(ast.unparse(self.tree()))  # Triton reads the source of what it interprets
        namespace: dict[str, Any] = {}
        exec(compile(file.read_text(), str(file), "exec"), original.__globals__, namespace)  # noqa: S102
        mutated = namespace[self.function]
        if function is original:
            monkeypatch.setattr(function, "__code__", mutated.__code__)
            return
        interpreted = type(function)(mutated, **function.kwargs)
        monkeypatch.setattr(function, "fn", interpreted.fn)
        monkeypatch.setattr(function, "rewriter", interpreted.rewriter)


class _Replace(ast.NodeTransformer):
    def __init__(self, target: ast.AST, replacement: ast.AST) -> None:
        self._target, self._replacement = target, replacement

    def visit(self, node: ast.AST) -> Any:
        if node is self._target:
            return self._replacement
        if isinstance(node, ast.Expr) and node.value is self._target and isinstance(self._replacement, ast.Pass):
            return self._replacement
        return self.generic_visit(node)


def _function(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)


def _python(function: Any) -> FunctionType:
    """What a kernel is made of; a plain function itself."""
    found = function if isinstance(function, FunctionType) else function.fn
    assert isinstance(found, FunctionType)
    return found


def _parsed(function: Any) -> ast.Module:
    module = ast.parse(textwrap.dedent(inspect.getsource(_python(function))))
    definition = module.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    definition.returns = None
    for argument in (*definition.args.args, *definition.args.kwonlyargs):
        if not (argument.annotation and "constexpr" in ast.unparse(argument.annotation)):
            argument.annotation = None
    return module


def _in_order(definition: ast.stmt) -> Iterator[Any]:
    """Nodes of the body as the source has them; of nodes that begin together the longer one first."""
    assert isinstance(definition, ast.FunctionDef)
    nodes = [node for statement in definition.body for node in ast.walk(statement) if hasattr(node, "lineno")]
    return iter(sorted(nodes, key=lambda node: (node.lineno, node.col_offset, -node.end_lineno, -node.end_col_offset)))


def _named(name: str, change: Change) -> Change:
    change.__name__ = name
    return change


def becomes(symbol: str) -> Change:
    """Another operator."""

    def change(node: Any) -> ast.AST:
        operator = _OPERATORS[symbol.removesuffix("=") if isinstance(node, ast.AugAssign) else symbol]()
        if isinstance(node, ast.Compare):
            return ast.Compare(node.left, [operator], node.comparators)
        if isinstance(node, ast.AugAssign):
            return ast.AugAssign(node.target, operator, node.value)
        return ast.BinOp(node.left, operator, node.right)

    return _named(f"becomes {symbol}", change)


def value(new: object) -> Change:
    """Another number or another name."""

    def change(_: Any) -> ast.AST:
        return ast.Name(new, ast.Load()) if isinstance(new, str) else ast.Constant(new)

    return _named(f"becomes {new}", change)


def argument(index: int) -> Change:
    """The call's argument instead of the call."""
    return _named(f"becomes its argument {index}", lambda node: node.args[index])


def swapped(first: int, second: int) -> Change:
    """Two arguments of a call in each other's place."""

    def change(node: Any) -> ast.AST:
        arguments = list(node.args)
        arguments[first], arguments[second] = arguments[second], arguments[first]
        return ast.Call(node.func, arguments, node.keywords)

    return _named(f"with arguments {first} and {second} swapped", change)


def without_keyword(name: str) -> Change:
    return _named(
        f"without {name}", lambda node: ast.Call(node.func, node.args, [k for k in node.keywords if k.arg != name])
    )


def without_item(index: int) -> Change:
    return _named(
        f"without item {index}", lambda node: ast.Tuple([*node.elts[:index], *node.elts[index + 1 :]], ast.Load())
    )


def expression(source: str) -> Change:
    """Another expression, of names that the function has."""
    return _named(f"becomes {source}", lambda _: ast.parse(source, mode="eval").body)


left = _named("becomes its left side", lambda node: node.left)
right = _named("becomes its right side", lambda node: node.right)
operand = _named("becomes its operand", lambda node: node.operand)
removed = _named("is removed", lambda _: ast.Pass())


def _list_sites(module: str, only: list[str]) -> None:
    loaded = importlib.import_module(f"{PACKAGE}.{module}")
    for name, function in vars(loaded).items():
        is_own = getattr(function, "__module__", None) == loaded.__name__ or hasattr(function, "fn")
        if not callable(function) or not is_own or isinstance(function, type) or (only and name not in only):
            continue
        if _python(function).__module__ != loaded.__name__:
            continue
        positions: dict[str, int] = {}
        parents = _parsed(function)
        print(f"{module}.{name}")
        for node in _in_order(parents.body[0]):
            if (kind := kind_of(node)) is not None:
                positions[kind] = positions.get(kind, -1) + 1
                print(f"  {kind:24} {positions[kind]:3}  line {node.lineno:3}  {ast.unparse(node)[:90]}")
        print("  counts:", {kind: last + 1 for kind, last in positions.items()})


if __name__ == "__main__":
    _list_sites(sys.argv[1], sys.argv[2:])
