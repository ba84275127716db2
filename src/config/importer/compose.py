"""Services of compose: the words that a container runs, and the variables that compose itself replaces.

command: vllm serve $MODEL --port ${PORT:-8000}    -> `vllm` `serve` `${MODEL}` `--port` `${PORT:-8000}`
"""

from __future__ import annotations

import re
import shlex

from ..source.node import Tree
from .document_nodes import assignments, items_of, other_keys, path_of, replaced
from .launch import Launch, in_image
from .shell_words import UnreadableShell
from .words import undecided

_FORMS = re.compile(
    r"\$\$|\$(?P<plain>[A-Za-z_]\w*)"
    r"|\$\{(?P<braced>[A-Za-z_]\w*)(?:(?P<operator>:?[-?+])(?P<word>[^{}]*))?\}|\$\{[^}]*\}"
)


def service(name: str, tree: Tree) -> Launch | None:
    """The server that a service starts; None if it starts none."""
    image = tree.get("image")
    named = interpolated(image.text or "") if image else ""
    launch = in_image(named, _words(tree, "entrypoint"), _words(tree, "command"), _variables(tree))
    if launch is None:
        return None
    files = tree.get("env_file")
    if files:
        launch.files += [path_of(item) for item in (files.value if isinstance(files.value, list) else [files])]
    launch.notes += [f"Its service of compose was `{name}`.", *other_keys("service", tree)]
    return launch


def _variables(tree: Tree) -> dict[str, str]:
    node = tree.get("environment")
    env: dict[str, str] = {}
    if node and isinstance(node.value, dict):
        for key, child in node.value.items():
            env[key] = f"${{{key}}}" if child.is_empty else interpolated(child.text or "")
    env.update(assignments(items_of(node), interpolated))
    return env


def _words(tree: Tree, name: str) -> list[str]:
    """A list of words, or a text that compose splits at spaces as a shell would."""
    node = tree.get(name)
    if node is None or node.is_null:
        return []
    if isinstance(node.value, list):
        return [interpolated(item.text or "") for item in node.value]
    try:
        return [interpolated(word) for word in shlex.split(node.text or "")]
    except ValueError:
        raise UnreadableShell("a quote is not closed", node.span.line) from None


def interpolated(text: str) -> str:
    """Compose's own forms in the syntax of a manifest."""
    return replaced(_FORMS, _in_manifest, text)


def _in_manifest(form: re.Match[str]) -> str:
    name, operator = form["plain"] or form["braced"], form["operator"] or ""
    if form[0] == "$$":
        return "$$"
    if not name or operator.endswith("+") or (operator == "-" and form["word"]):
        return undecided(form[0])
    kept = f":{operator[-1]}{form['word']}" if operator else ""
    return f"${{{name}{kept}}}"
