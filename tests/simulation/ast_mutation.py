"""Mutations of a function's syntax tree: one operator, constant or statement is changed, the function compiled again.

A place is named by what is changed and by its position among those of its kind in the function, so comments, formatting
and the names of variables do not matter. A mutation that finds no such place raises NoSuchPlace.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

Edit = Callable[[ast.AST], ast.AST | None]  # the changed node; None: not a place for this change


class NoSuchPlace(LookupError):
    """The function has no place where the mutation applies."""


def swap(old: type[ast.AST], new: type[ast.AST]) -> Edit:
    """An operator of a comparison, of arithmetic, or `and` for `or`."""

    def edit(node: ast.AST) -> ast.AST | None:
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) is old:
            return ast.Compare(node.left, [new()], node.comparators)  # type: ignore[list-item]
        if isinstance(node, ast.BinOp) and type(node.op) is old:
            return ast.BinOp(node.left, new(), node.right)  # type: ignore[arg-type]
        if isinstance(node, ast.AugAssign) and type(node.op) is old:
            return ast.AugAssign(node.target, new(), node.value)  # type: ignore[arg-type]
        if isinstance(node, ast.BoolOp) and type(node.op) is old:
            return ast.BoolOp(new(), node.values)  # type: ignore[arg-type]
        return None

    return edit


def constant(old: int, new: int) -> Edit:
    def edit(node: ast.AST) -> ast.AST | None:
        is_place = isinstance(node, ast.Constant) and type(node.value) is int and node.value == old
        return ast.Constant(new) if is_place else None

    return edit


def dropped_call(name: str) -> Edit:
    """A statement that calls a function or method of this name."""

    def edit(node: ast.AST) -> ast.AST | None:
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            return None
        called = node.value.func
        is_place = name == (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None))
        return ast.Pass() if is_place else None

    return edit


def dropped_update(node: ast.AST) -> ast.AST | None:
    """An augmented assignment, such as `count += 1`."""
    return ast.Pass() if isinstance(node, ast.AugAssign) else None


def dropped_condition(node: ast.AST) -> ast.AST | None:
    """An `if` without an `else`, whose body then never runs."""
    is_place = isinstance(node, ast.If) and not node.orelse
    return ast.If(ast.Constant(False), node.body, []) if is_place else None  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Mutation:
    """The `place`-th place, counted from 0 in the order of the source, at which `edit` applies to `owner.name`."""

    owner: type
    name: str
    edit: Edit
    place: int = 0

    def function(self) -> FunctionType:
        """The mutated function. Raises NoSuchPlace."""
        raw = inspect.getattr_static(self.owner, self.name)
        right = raw.fget if isinstance(raw, property) else raw
        assert isinstance(right, FunctionType), f"{self.owner.__name__}.{self.name} is not a function"
        tree = ast.parse(textwrap.dedent(inspect.getsource(right)))
        definition = tree.body[0]
        assert isinstance(definition, ast.FunctionDef)
        definition.decorator_list = []
        places = [node for node in in_order(definition) if self.edit(node) is not None]
        if self.place >= len(places):
            raise NoSuchPlace(f"{self.owner.__name__}.{self.name} has {len(places)} such places")
        tree = ast.fix_missing_locations(_Replace(places[self.place], self.edit).visit(tree))
        namespace: dict[str, Any] = {}
        exec(compile(tree, inspect.getfile(right), "exec"), right.__globals__, namespace)  # noqa: S102
        mutated: FunctionType = namespace[self.name]
        return mutated

    def attribute(self) -> object:
        """What takes the place of `owner.name`."""
        is_property = isinstance(inspect.getattr_static(self.owner, self.name), property)
        return property(self.function()) if is_property else self.function()


def in_order(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes, in the order of the source; ast.walk goes level by level."""
    yield node
    for child in ast.iter_child_nodes(node):
        yield from in_order(child)


class _Replace(ast.NodeTransformer):
    def __init__(self, place: ast.AST, edit: Edit) -> None:
        self._place = place
        self._edit = edit

    def visit(self, node: ast.AST) -> Any:
        if node is self._place:
            return self._edit(node)
        return self.generic_visit(node)


EDITS: dict[str, Edit] = {
    "< is <=": swap(ast.Lt, ast.LtE),
    "<= is <": swap(ast.LtE, ast.Lt),
    "> is >=": swap(ast.Gt, ast.GtE),
    ">= is >": swap(ast.GtE, ast.Gt),
    "== is !=": swap(ast.Eq, ast.NotEq),
    "!= is ==": swap(ast.NotEq, ast.Eq),
    "is not is is": swap(ast.IsNot, ast.Is),
    "is is is not": swap(ast.Is, ast.IsNot),
    "+ is -": swap(ast.Add, ast.Sub),
    "- is +": swap(ast.Sub, ast.Add),
    "& is |": swap(ast.BitAnd, ast.BitOr),
    "% is //": swap(ast.Mod, ast.FloorDiv),
    "and is or": swap(ast.And, ast.Or),
    "or is and": swap(ast.Or, ast.And),
    "0 is 1": constant(0, 1),
    "1 is 0": constant(1, 0),
    "-1 is 0": constant(-1, 0),
    "no update": dropped_update,
    "no call": lambda node: ast.Pass() if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None,
    "if never": dropped_condition,
}


def every_mutation(owner: type) -> Iterator[tuple[str, Mutation]]:
    """Each mutation of each method of a class, with a name."""
    for name, raw in vars(owner).items():
        function = raw.fget if isinstance(raw, property) else raw
        if not isinstance(function, FunctionType) or name.startswith("__"):
            continue
        for kind, edit in EDITS.items():
            for place in itertools.count():
                mutation = Mutation(owner, name, edit, place)
                try:
                    mutation.function()
                except NoSuchPlace:
                    break
                yield f"{owner.__name__}.{name}: {kind}, place {place}", mutation
