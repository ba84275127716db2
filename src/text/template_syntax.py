"""What the syntax tree of a chat template shows about the messages that it expects."""

from __future__ import annotations

import jinja2.nodes


def _is_content(node: jinja2.nodes.Node) -> bool:
    if isinstance(node, jinja2.nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, jinja2.nodes.Getitem):
        return _is_constant(node.arg, "content")
    return isinstance(node, jinja2.nodes.Name) and node.name == "content"


def _is_constant(node: jinja2.nodes.Node, value: str) -> bool:
    return isinstance(node, jinja2.nodes.Const) and node.value == value


def loops_over_content(tree: jinja2.nodes.Template) -> bool:
    """Whether the template expects typed parts: `{% for part in message.content %}`."""
    return any(_is_content(loop.iter) for loop in tree.find_all(jinja2.nodes.For))


def asks_whether_string(tree: jinja2.nodes.Template) -> bool:
    """Whether the template asks if the content of a message is a text: `{% if message.content is string %}`."""
    return any(test.name == "string" and _is_content(test.node) for test in tree.find_all(jinja2.nodes.Test))


def writes_arguments(tree: jinja2.nodes.Template) -> bool:
    """Whether the template writes the arguments of calls as they are: `{{ call.arguments }}`, or joined with other
    text.

    Most templates convert an object (`call.arguments | tojson`). Templates that ask which of both they get are given
    objects.
    """
    if any(_is_arguments(test.node) for test in tree.find_all(jinja2.nodes.Test)):
        return False
    joins = (jinja2.nodes.Output, jinja2.nodes.Add, jinja2.nodes.Concat)
    return any(_is_arguments(child) for node in tree.find_all(joins) for child in node.iter_child_nodes())


def _is_arguments(node: jinja2.nodes.Node) -> bool:
    if isinstance(node, jinja2.nodes.Getattr):
        return node.attr == "arguments"
    return isinstance(node, jinja2.nodes.Getitem) and _is_constant(node.arg, "arguments")


def compared_texts(tree: jinja2.nodes.Template) -> list[str]:
    """The texts that the template compares with values, or has a case for in a table."""
    cases = (jinja2.nodes.Compare, jinja2.nodes.Test, jinja2.nodes.Filter, jinja2.nodes.Dict)
    constants = (constant.value for node in tree.find_all(cases) for constant in node.find_all(jinja2.nodes.Const))
    return [value for value in constants if isinstance(value, str)]
