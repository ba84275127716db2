"""Harmless chat templates: no operation of them takes long, so that time checks between the operations suffice.

Only the syntax decides, for templates whose messages have a few kilobytes. In a harmless template

- values grow only by `+`, `-` and `~`, whose results TemplateEnvironment limits. There are no other operators that
  multiply, no lists and dicts but constant ones (a list that holds another twice, repeatedly, has exponential size),
  no filters that join, replace, format, sort or compare, no ranges, no macros and no recursion;
- each operation takes at most linear time: only methods of the list below, with short constants as arguments.

Most published templates are harmless. All others are rendered in another process, as are long messages.
"""

from __future__ import annotations

import jinja2.nodes as nodes

_STATEMENTS = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.For, nodes.Assign, nodes.AssignBlock, nodes.Break,
    nodes.Continue,
)  # fmt: skip
_EXPRESSIONS = (
    nodes.Name, nodes.NSRef, nodes.Const, nodes.CondExpr, nodes.And, nodes.Or, nodes.Not, nodes.Compare, nodes.Operand,
    nodes.Add, nodes.Sub, nodes.Mod, nodes.Neg, nodes.Concat, nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Keyword,
)  # fmt: skip
_FILTERS = frozenset({"trim", "length", "count", "string", "upper", "lower", "first", "last", "list"})
_TESTS = frozenset({
    "defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float",
    "boolean", "true", "false", "eq", "equalto", "==", "ne", "!=", "in", "odd", "even",
})  # fmt: skip
_FUNCTIONS = frozenset({"namespace", "raise_exception"})
_METHODS = frozenset({
    "get", "items", "keys", "values", "startswith", "endswith", "strip", "lstrip", "rstrip", "split", "rsplit",
    "upper", "lower", "title", "capitalize",
})  # fmt: skip
_MAX_CONSTANT_CHARS = 100  # of an argument: the time of strip and split is proportional to it
_MAX_INDENT = 8
MAX_HARMLESS_CHARS = 32 << 10  # of a template; also of each value, see template.py


def is_harmless(node: nodes.Node) -> bool:
    """Whether a template, or a part of one, is."""
    return _is_allowed(node) and all(map(is_harmless, node.iter_child_nodes()))


def _is_allowed(node: nodes.Node) -> bool:
    match node:
        case nodes.For():
            return not node.recursive
        case nodes.List() | nodes.Tuple() | nodes.Dict() | nodes.Pair():
            return all(isinstance(each, nodes.Const | nodes.Pair) for each in node.iter_child_nodes()) or (
                isinstance(node, nodes.Tuple) and node.ctx == "store"  # for name, value in ...
            )
        case nodes.Filter(name="tojson"):
            return not _positional(node) and all(_is_short(each.value, _MAX_INDENT) for each in node.kwargs)
        case nodes.Filter(name="default" | "d"):
            return not _is_spread(node)
        case nodes.Filter():
            return node.name in _FILTERS and not _positional(node) and not node.kwargs
        case nodes.Test():
            return node.name in _TESTS and not _is_spread(node)
        case nodes.Call(node=nodes.Name(name=name)) if name in _FUNCTIONS:
            return not _is_spread(node)
        case nodes.Call(node=nodes.Name(name="strftime_now")) | nodes.Call(node=nodes.Getattr()):
            function = node.node
            is_known = not isinstance(function, nodes.Getattr) or function.attr in _METHODS
            return is_known and not node.kwargs and not _is_spread(node) and all(map(_is_short, node.args))
        case _:
            return isinstance(node, _STATEMENTS + _EXPRESSIONS)


def _positional(node: nodes.Filter) -> bool:
    return bool(node.args) or _is_spread(node)


def _is_spread(node: nodes.Call | nodes.Filter | nodes.Test) -> bool:
    """f(*x) or f(**x)"""
    return node.dyn_args is not None or node.dyn_kwargs is not None


def _is_short(node: nodes.Node, largest: int = 1 << 16) -> bool:
    """A constant: a short text, or a number up to `largest`."""
    if not isinstance(node, nodes.Const):
        return False
    if isinstance(node.value, str):
        return len(node.value) <= _MAX_CONSTANT_CHARS
    return not isinstance(node.value, int) or node.value <= largest
