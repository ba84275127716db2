"""Containers of Kubernetes: `$(NAME)` in their words is a variable of their `env`.

args: ["--model", "$(MODEL)"]    env: [{name: MODEL, value: org/name}]    -> `--model` `org/name`
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..source.node import Node, Tree
from .document_nodes import assignments, child_of, items_of, other_keys, path_of, replaced
from .launch import Launch, in_image
from .words import literal, undecided

_FORMS = re.compile(r"\$\$(?=\()|\$\((?P<name>[\w.-]+)\)")


def containers(node: Node) -> Iterator[Tree]:
    """Mappings with a command, its arguments, or an image and its variables, at any depth."""
    if isinstance(node.value, dict):
        has_words = any(isinstance(child_of(node, name), list) for name in ("command", "args"))
        if has_words or (isinstance(child_of(node, "image"), str) and "env" in node.value):
            yield node.value
            return
        for child in node.value.values():
            yield from containers(child)
    elif isinstance(node.value, list):
        for child in node.value:
            if isinstance(child.value, dict | list):
                yield from containers(child)


def container(tree: Tree) -> Launch | None:
    """The server that a container starts; None if it starts none."""
    variables = _read_variables(tree)
    env = variables.env
    used: set[str] = set()

    def fill(form: re.Match[str]) -> str:
        name = form["name"]
        if name is None:
            return "$$"
        if name not in env:
            return undecided(form[0])
        used.add(name)
        return env[name]

    def words(key: str) -> list[str]:
        return [replaced(_FORMS, fill, item.text or "") for item in items_of(tree.get(key))]

    image = tree.get("image")
    command, args = words("command"), words("args")
    named = (image.text if image else "") or _runtime(tree)
    launch = in_image(literal(named or ""), command, args, env)
    if launch is None:
        return None
    launch.used |= used
    launch.files += [path_of(item) for item in items_of(tree.get("envFrom"))]
    launch.notes += [*variables.notes, *other_keys("container", tree)]
    return launch


def _runtime(tree: Tree) -> str:
    """The runtime that KServe chooses for `modelFormat: {name: huggingface}`, which is vLLM."""
    node = tree.get("modelFormat")
    name = node.value.get("name") if node and isinstance(node.value, dict) else None
    return "vllm" if name is not None and name.text in ("huggingface", "vllm") else ""


@dataclass(frozen=True, slots=True)
class _Variables:
    env: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # on variables whose values are elsewhere


def _read_variables(tree: Tree) -> _Variables:
    found = _Variables()
    node = tree.get("env")
    if node and isinstance(node.value, dict):
        found.env.update({name: literal(child.text or "") for name, child in node.value.items()})
    for item in items_of(node):
        if isinstance(item.value, dict):
            _read_variable(item.value, found)
        else:
            found.env.update(assignments([item], literal))
    return found


def _read_variable(entry: Tree, into: _Variables) -> None:
    """Read `{name: ..., value: ...}`, whose value may use the variables before it, or `{name: ..., valueFrom: ...}`."""
    name = (entry["name"].text or "") if "name" in entry else ""
    if "valueFrom" in entry:
        into.env[name] = f"${{{name}}}"
        into.notes.append(f"`{name}` came from {path_of(entry['valueFrom'])}: set it in the environment.")
        return

    def fill(form: re.Match[str]) -> str:
        return "$$" if form["name"] is None else into.env.get(form["name"], literal(form[0]))

    value = entry.get("value")
    into.env[name] = replaced(_FORMS, fill, (value.text or "") if value else "")
