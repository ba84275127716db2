"""The servers that YAML documents start: services of compose, containers of Kubernetes, and texts that are scripts.

A document of one kind is not read as another: services come first, then containers, then texts at any depth.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ..source.node import Node, Tree
from .compose import service
from .document_nodes import assignments, child_of, is_read, items_of, other_keys
from .kubernetes import container, containers
from .launch import Launch, launches_of
from .shell_words import UnreadableShell
from .words import literal

_KEY = re.compile(r"API_?KEY", re.IGNORECASE)


def launches_in(root: Node) -> list[Launch]:
    """Every server that a document starts, in its order."""
    services = child_of(root, "services") or _bare_services(root)
    if services and isinstance(services, dict):
        trees = {name: node.value for name, node in services.items() if isinstance(node.value, dict)}
        found = [service(name, tree) for name, tree in trees.items()]
        return [launch for launch in found if launch is not None]
    in_containers = [launch for tree in containers(root) if (launch := container(tree)) is not None]
    return in_containers or list(_scripts(root, {}))


def _bare_services(root: Node) -> Tree:
    """Services of a file without `services`, as compose once had them, and as scripts append them."""
    children = root.value if isinstance(root.value, dict) else {}
    return {
        name: child
        for name, child in children.items()
        if isinstance(child_of(child, "image"), str) and isinstance(child_of(child, "command"), str)
    }


def _scripts(node: Node, env: Mapping[str, str]) -> Iterator[Launch]:
    """Texts at any depth that start a server: `run` of SkyPilot, `commands` of dstack, files of a ConfigMap."""
    if isinstance(node.value, list):
        for child in node.value:
            yield from _scripts(child, env)
    if not isinstance(node.value, dict):
        return
    own_env = {**env, **_variables(node.value)}
    for key, child in node.value.items():
        others = {name: other for name, other in node.value.items() if name != key}
        for launch in _launches_of_value(child, own_env):
            launch.notes += other_keys("document", others)
            launch.doubts += [name for name, other in others.items() if not is_read(name) and _mentions_key(other)]
            yield launch


def _launches_of_value(node: Node, env: Mapping[str, str]) -> Sequence[Launch]:
    """Servers that a text starts, or a list of its lines; or any text within."""
    if isinstance(node.value, list) and all(item.text is not None for item in node.value):
        return _of_text("\n".join(item.text or "" for item in node.value), env)
    return _of_text(node.text, env) if node.text else list(_scripts(node, env))


def _variables(tree: Tree) -> dict[str, str]:
    env: dict[str, str] = {}
    for name in ("envs", "env", "secrets"):
        node = tree.get(name)
        if node and isinstance(node.value, dict):
            env |= {key: literal(child.text) if child.text else f"${{{key}}}" for key, child in node.value.items()}
        env.update(assignments(items_of(node), literal))
    return env


def _mentions_key(node: Node) -> bool:
    """Whether variables with a key of the API may be set somewhere in it, as in the cluster of a RayJob."""
    if isinstance(node.value, dict):
        return any(name == "envFrom" or _KEY.search(name) or _mentions_key(child) for name, child in node.value.items())
    if isinstance(node.value, list):
        return any(_mentions_key(child) for child in node.value)
    return bool(_KEY.search(node.text or ""))


def _of_text(text: str, env: Mapping[str, str]) -> Sequence[Launch]:
    if not text.strip() or " " not in text:
        return []
    try:
        found = launches_of(text, env)
    except UnreadableShell:
        return []
    for launch in found:
        launch.env = {**env, **launch.env}
    return found
