"""The servers that YAML documents start: services of compose, containers of Kubernetes, and texts that are scripts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..source.node import Node, Tree
from .launch import Launch, in_image, launches_of
from .shell_words import UnreadableShell
from .words import literal, undecided

_COMPOSE = re.compile(r"\$\$|\$([A-Za-z_]\w*)|\$\{([A-Za-z_]\w*)(?:(:?[-?+])([^{}]*))?\}|\$\{[^}]*\}")
_KUBERNETES = re.compile(r"\$\$(?=\()|\$\(([\w.-]+)\)")
_KEY = re.compile(r"API_?KEY", re.IGNORECASE)
_READ = {"image", "command", "args", "entrypoint", "environment", "env", "envFrom", "env_file", "name", "envs"}


def launches_in(root: Node) -> list[Launch]:
    """Every server that a document starts, in its order."""
    services = _child(root, "services") or _bare_services(root)
    found: list[Launch] = []
    if services and isinstance(services, dict):
        for name, service in services.items():
            if isinstance(service.value, dict) and (launch := _service(name, service.value)):
                found.append(launch)
        return found
    found = [launch for container in _containers(root) if (launch := _container(container))]
    return found or list(_scripts(root, {}))


def _child(node: Node, key: str) -> object:
    return child.value if isinstance(node.value, dict) and (child := node.value.get(key)) else None


def _bare_services(root: Node) -> Tree:
    """Services of a file without `services`, as compose once had them, and as scripts append them."""
    return {
        name: child
        for name, child in (root.value.items() if isinstance(root.value, dict) else ())
        if isinstance(_child(child, "image"), str) and isinstance(_child(child, "command"), str)
    }


def _containers(node: Node) -> Iterator[Tree]:
    """Mappings with a command, its arguments, or an image and its variables, at any depth."""
    if isinstance(node.value, dict):
        has_words = any(isinstance(_child(node, name), list) for name in ("command", "args"))
        if has_words or (isinstance(_child(node, "image"), str) and "env" in node.value):
            yield node.value
            return
        for child in node.value.values():
            yield from _containers(child)
    elif isinstance(node.value, list):
        for child in node.value:
            if isinstance(child.value, dict | list):
                yield from _containers(child)


def _container(tree: Tree) -> Launch | None:
    """A container of a pod: `$(NAME)` in its words is a variable of its `env`."""
    env, notes, files = _pod_variables(tree)
    used: set[str] = set()

    def fill(match: re.Match[str]) -> str:
        if match[1] is None or match[1] not in env:
            return "$$" if match[1] is None else undecided(match[0])
        used.add(match[1])
        return env[match[1]]

    def words(name: str) -> list[str]:
        node = tree.get(name)
        items = node.value if node and isinstance(node.value, list) else []
        return [_replaced(_KUBERNETES, fill, item.text or "") for item in items]

    image = tree.get("image")
    command, args = words("command"), words("args")
    named = (image.text if image else "") or _runtime(tree)
    launch = in_image(literal(named or ""), command, args, env)
    if launch is None:
        return None
    launch.used |= used
    launch.files += files
    launch.notes += [*notes, *_other_keys("container", tree)]
    return launch


def _runtime(tree: Tree) -> str:
    """The runtime that KServe chooses for `modelFormat: {name: huggingface}`, which is vLLM."""
    node = tree.get("modelFormat")
    name = node.value.get("name") if node and isinstance(node.value, dict) else None
    return "vllm" if name is not None and name.text in ("huggingface", "vllm") else ""


def _pod_variables(tree: Tree) -> tuple[dict[str, str], list[str], list[str]]:
    """`env` and `envFrom`: variables, notes on variables from elsewhere, and where unknown ones come from."""
    env: dict[str, str] = {}
    notes: list[str] = []

    def known(match: re.Match[str]) -> str:
        return "$$" if match[1] is None else env.get(match[1], literal(match[0]))

    node = tree.get("env")
    if node and isinstance(node.value, dict):
        env = {name: literal(child.text or "") for name, child in node.value.items()}
    for item in node.value if node and isinstance(node.value, list) else []:
        if not isinstance(item.value, dict):
            name, equals, value = (item.text or "").partition("=")
            env[name] = literal(value) if equals else f"${{{name}}}"
            continue
        name = (item.value["name"].text or "") if "name" in item.value else ""
        if "valueFrom" in item.value:
            env[name] = f"${{{name}}}"
            notes.append(f"`{name}` came from {_path_of(item.value['valueFrom'])}: set it in the environment.")
        else:
            written = item.value.get("value")
            env[name] = _replaced(_KUBERNETES, known, (written.text or "") if written else "")
    node = tree.get("envFrom")
    files = [_path_of(item) for item in node.value] if node and isinstance(node.value, list) else []
    return env, notes, files


def _path_of(node: Node) -> str:
    """A reference as one line: `secretKeyRef name=x key=y`."""
    if isinstance(node.value, dict):
        parts = [
            f"{name} {_path_of(child)}" if isinstance(child.value, dict) else f"{name}={child.text}"
            for name, child in node.value.items()
        ]
        return " ".join(parts)
    return node.text or ""


def _service(name: str, tree: Tree) -> Launch | None:
    """A service of compose, with the variables that compose itself replaces."""
    env: dict[str, str] = {}
    node = tree.get("environment")
    if node and isinstance(node.value, dict):
        env = {
            key: _interpolated(child.text or "") if not child.is_empty else f"${{{key}}}"
            for key, child in node.value.items()
        }
    for item in node.value if node and isinstance(node.value, list) else []:
        key, equals, value = (item.text or "").partition("=")
        env[key] = _interpolated(value) if equals else f"${{{key}}}"
    image = tree.get("image")
    launch = in_image(
        _interpolated(image.text or "") if image else "", _words(tree, "entrypoint"), _words(tree, "command"), env
    )
    if launch is None:
        return None
    files = tree.get("env_file")
    if files:
        items = files.value if isinstance(files.value, list) else [files]
        launch.files += [_path_of(item) for item in items]
    launch.notes += [f"Its service of compose was `{name}`.", *_other_keys("service", tree)]
    return launch


def _words(tree: Tree, name: str) -> list[str]:
    """A list of words, or a text that compose splits at spaces as a shell would."""
    node = tree.get(name)
    if node is None or node.is_null:
        return []
    if isinstance(node.value, list):
        return [_interpolated(item.text or "") for item in node.value]
    try:
        return [_interpolated(word) for word in shlex.split(node.text or "")]
    except ValueError:
        raise UnreadableShell("a quote is not closed", node.span.line) from None


def _interpolated(text: str) -> str:
    """Compose's own forms in the syntax of a manifest."""

    def replaced(match: re.Match[str]) -> str:
        name, operator = match[1] or match[2], match[3] or ""
        if match[0] == "$$":
            return "$$"
        if not name or operator.endswith("+") or (operator == "-" and match[4]):
            return undecided(match[0])
        kept = f":{operator[-1]}{match[4]}" if operator else ""
        return f"${{{name}{kept}}}"

    return _replaced(_COMPOSE, replaced, text)


def _replaced(pattern: re.Pattern[str], replace: Callable[[re.Match[str]], str], text: str) -> str:
    """The text in the form of a manifest, with what the pattern finds replaced."""
    done, at = "", 0
    for match in pattern.finditer(text):
        done += literal(text[at : match.start()]) + replace(match)
        at = match.end()
    return done + literal(text[at:])


def _other_keys(kind: str, tree: Tree) -> list[str]:
    others = [f"`{key}`" for key in tree if key not in _READ]
    return [f"Keys of the {kind} that are not part of a manifest: {', '.join(others)}."] if others else []


def _scripts(node: Node, env: Mapping[str, str]) -> Iterator[Launch]:
    """Texts at any depth that start a server: `run` of SkyPilot, `commands` of dstack, files of a ConfigMap."""
    if isinstance(node.value, dict):
        own = dict(env)
        for name in ("envs", "env", "secrets"):
            child = node.value.get(name)
            if child and isinstance(child.value, dict):
                own |= {key: literal(one.text) if one.text else f"${{{key}}}" for key, one in child.value.items()}
            for item in child.value if child and isinstance(child.value, list) else []:
                key, equals, value = (item.text or "").partition("=")
                own[key] = literal(value) if equals else f"${{{key}}}"
        for key, child in node.value.items():
            if isinstance(child.value, list) and all(item.text is not None for item in child.value):
                found = _of_text("\n".join(item.text or "" for item in child.value), own)
            else:
                found = _of_text(child.text or "", own) if child.text else list(_scripts(child, own))
            for launch in found:
                others = {name: one for name, one in node.value.items() if name != key}
                launch.notes += _other_keys("document", others)
                launch.doubts += [name for name, one in others.items() if name not in _READ and _mentions_key(one)]
                yield launch
    elif isinstance(node.value, list):
        for child in node.value:
            yield from _scripts(child, env)


def _mentions_key(node: Node) -> bool:
    """Whether variables with a key of the API may be set somewhere in it, as in the cluster of a RayJob."""
    if isinstance(node.value, dict):
        return any(name == "envFrom" or _KEY.search(name) or _mentions_key(one) for name, one in node.value.items())
    if isinstance(node.value, list):
        return any(_mentions_key(one) for one in node.value)
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
