"""Turns what somebody gave - words, a script, a flat file - into the draft of a manifest."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..diagnostics import Diagnostic, Label
from ..errors import ConfigError
from ..origin import Layer
from ..schema.deployment import API_VERSION
from ..source.flat import read_key
from ..source.node import Node
from ..source.yaml import lines_of, parse
from ..source_text import SourceText, Span
from .dockerfile import is_dockerfile, launches_of_dockerfile
from .documents import launches_in
from .draft import Draft
from .launch import Launch, launch_of, launches_of
from .ollama import instructions_of
from .program_names import Engine
from .sglang import TABLE as _SGLANG
from .shell import commands_of, read_script
from .shell_words import UnreadableShell
from .sorting import draft_of
from .systemd_unit import is_unit, launches_of_unit
from .words import as_written, literal

_SEPARATOR = re.compile(r"^---(?=\s|$)([^\n]*)", re.MULTILINE)
_VLLM_KEY = "VLLM_API_KEY"
_SGLANG_KEYS = {"model-path", "context-length", "mem-fraction-static", "tp-size", "max-running-requests"}


def import_words(words: Sequence[str], engine: Engine | None = None, environ: Mapping[str, str] | None = None) -> Draft:
    """A command line that a shell has already read. ConfigError if it starts no server that we know.

    environ: variables that the server would find, besides the command's own.
    """
    encoded = [literal(word.replace("\0", "")) for word in words]
    launch = launch_of(encoded)
    if launch is None and engine is not None:
        launch = Launch(engine, encoded)
    if launch is None:
        raise _nothing(" ".join(words), "command line")
    return draft_of(_with_key(launch, environ))


def import_script(
    text: str,
    name: str = "command line",
    engine: Engine | None = None,
    environ: Mapping[str, str] | None = None,
) -> Draft:
    """A command line as one text, a script, a unit of systemd, a Dockerfile or a Modelfile. ConfigError if it starts
    no server; of several the first is read.

    environ: as in `import_words`.
    """
    text = text.replace("\0", "")  # as a shell does
    if engine == "ollama" or "modelfile" in Path(name).name.lower():
        return draft_of(Launch("ollama", instructions_of(text)))
    try:
        if is_unit(text):
            launches = launches_of_unit(text)
        elif is_dockerfile(text):
            launches = launches_of_dockerfile(text)
        else:
            launches = launches_of(text, in_documents=False) or _in_documents(text)
        if not launches and engine is not None:
            launches = [Launch(engine, [word for words in commands_of(text) for word in words])]
    except UnreadableShell as error:
        raise _unreadable(text, name, error) from None
    if not launches:
        raise _nothing(text, name)
    return draft_of(_with_key(_first(launches), environ))


def _in_documents(text: str) -> list[Launch]:
    """Starts in the files that a script writes, or in the objects that it passes to kubectl, as here-documents."""
    found: list[Launch] = []
    for content in read_script(text).documents:
        with contextlib.suppress(ConfigError, UnreadableShell):
            if is_unit(content):
                found += launches_of_unit(content)
            elif is_dockerfile(content):
                found += launches_of_dockerfile(as_written(content))
            elif started := launches_of(content):
                found += started
            else:
                source = SourceText(Layer.FILE, "here-document", lines_of(as_written(content)))
                found += [root for one in _documents(as_written(content), source) for root in launches_in(one)]
    return found


def _first(launches: Sequence[Launch]) -> Launch:
    first, *others = launches
    first.others += [other.shown for other in others]
    if first.others:
        first.notes.append(f"{len(first.others) + 1} servers are started there; this is the first of them.")
    return first


def _with_key(launch: Launch, environ: Mapping[str, str] | None) -> Launch:
    """vLLM reads its key from VLLM_API_KEY if the command line has none."""
    has_flag = any(word.replace("_", "-").partition("=")[0] == "--api-key" for word in launch.words)
    is_set = bool((environ or {}).get(_VLLM_KEY)) and _VLLM_KEY not in launch.env
    if launch.engine == "vllm" and is_set and not has_flag and not launch.in_container:
        launch.env[_VLLM_KEY] = f"${{{_VLLM_KEY}}}"
        launch.notes.append(f"{_VLLM_KEY} is set in the environment of the import; vLLM takes it as its key.")
    return launch


def import_yaml(content: str, name: str, engine: Engine | None = None) -> Draft:
    """A flat YAML file of options, or documents whose commands start a server: compose, Kubernetes, SkyPilot.

    ConfigError if it cannot be read, or is something else.
    """
    source = SourceText(Layer.FILE, name, lines_of(content), Path(name).parent)
    roots = _documents(content.replace("\0", ""), source)
    try:
        launches = [launch for root in roots for launch in launches_in(root)]
    except UnreadableShell as error:
        raise _unreadable(content, name, error) from None
    if launches:
        first = _first(launches)
        first.notes.insert(0, f"Its file was {Path(name).name}.")
        return draft_of(first)
    if len(roots) != 1 or not isinstance(roots[0].value, dict):
        raise _no_options(source, "write option names with their values, or give a command line")
    tree = roots[0].value
    is_manifest = isinstance(getattr(tree.get("model"), "value", None), dict)
    if is_manifest or getattr(tree.get("apiVersion"), "value", None) == API_VERSION:
        raise _no_options(source, "this is a manifest of this program already")
    keys = {key.replace("_", "-") for key in tree}
    if "apiVersion" in keys or "services" in keys:
        raise _no_options(source, "no command in it starts a server that is known")
    engine = engine or ("sglang" if keys & _SGLANG_KEYS else "vllm")
    if not any(read_key(key) or (engine == "sglang" and f"--{key}" in _SGLANG) for key in keys):
        raise _no_options(source, "none of its keys is an option, and no command in it starts a server that is known")
    words = [word for key, node in tree.items() for word in _flat_words(key, node, engine)]
    return draft_of(Launch(engine, words, notes=[f"Its file of options was {Path(name).name}."]))


def _documents(content: str, source: SourceText) -> list[Node]:
    """The roots of all documents. Each is parsed after as many empty lines as are above it, for the right places."""
    found: list[Diagnostic] = []
    roots: list[Node] = []
    starts = [0, *(match.start() for match in _SEPARATOR.finditer(content)), len(content)]
    for start, end in itertools.pairwise(starts):
        above = "\n" * content.count("\n", 0, start)
        root = parse(above + _SEPARATOR.sub("\\1", content[start:end], count=1), source, found)
        if root is not None:
            roots.append(root)
    if found:
        raise ConfigError(found)
    return roots


def _flat_words(key: str, node: Node, engine: Engine) -> list[str]:
    """A key and its value as the other engine itself reads them: as words of its command line."""
    flag = f"--{key}"
    if node.is_null or node.text == "None":
        return []
    if isinstance(node.value, bool):
        known = read_key(key)
        if node.value:
            return [flag]
        is_switch = engine in ("vllm", "stoker") and known is not None and known.option.kind == "flag"
        return [f"--no-{key}"] if is_switch and not key.startswith("no-") else []
    if isinstance(node.value, dict):
        return [f"{flag}={_json(node)}"]
    if isinstance(node.value, list):
        return [
            flag,
            *(_json(item) if isinstance(item.value, dict) else literal(item.text or "") for item in node.value),
        ]
    return [f"{flag}={literal(node.text or '')}"]


def _json(node: Node) -> str:
    return literal(json.dumps(node.plain(), ensure_ascii=False))


def _no_options(source: SourceText, said: str) -> ConfigError:
    label = Label(Span(source, 1, 1, 1, len(source.lines[0]) + 1 if source.lines else 1), said)
    return ConfigError([Diagnostic(code="C125", message="the file holds no options", labels=(label,))])


def _text(text: str, name: str) -> SourceText:
    is_file = name != "command line"
    return SourceText(Layer.FILE if is_file else Layer.COMMAND_LINE, name, text.split("\n"))


def _nothing(text: str, name: str) -> ConfigError:
    first = text.strip().split("\n")[0].split(" ")[0][:60]
    source = _text(first, name)
    label = Label(Span(source, 1, 1, 1, len(first) + 1), "vLLM, SGLang, TGI and llama.cpp's server are known")
    fixes = (
        "give the line as it starts the server: vllm serve MODEL ...",
        "or say whose options they are: --from vllm",
    )
    return ConfigError([Diagnostic(code="C125", message="nothing here starts a server", labels=(label,), fixes=fixes)])


def _unreadable(text: str, name: str, error: UnreadableShell) -> ConfigError:
    source = _text(text, name)
    source.hide(Span(source, error.line, 1, error.line, len(source.lines[error.line - 1]) + 1))  # may hold a key
    label = Label(Span(source, error.line, 1, error.line, 1), "put the whole line into single quotes, or into a file")
    return ConfigError([Diagnostic(code="C125", message=str(error), labels=(label,))])


def summary_of(draft: Draft) -> dict[str, Any]:
    """Counts for the talk around the answer."""
    kinds = [left.kind for left in draft.left]
    return {
        "options": len(draft.values) + len(draft.secrets),
        "lost": sum(kind != "needless" for kind in kinds),
        "needless": kinds.count("needless"),
    }
