"""From what somebody gave - words, a script, a flat file - to the draft of a manifest."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..diagnostics import Diagnostic, Label
from ..errors import ConfigError
from ..origin import Layer
from ..source.flat import read_key
from ..source.node import Node
from ..source.yaml import lines_of, parse
from ..source_text import SourceText, Span
from .draft import Draft, draft_of
from .launch import Engine, Launch, launch_of, launches_of
from .ollama import instructions_of
from .shell import UnreadableShell, commands_of, literal

_VLLM_KEY = "VLLM_API_KEY"
_SGLANG_KEYS = {"model-path", "context-length", "mem-fraction-static", "tp-size", "max-running-requests"}


def import_words(words: Sequence[str], engine: Engine | None = None, environ: Mapping[str, str] | None = None) -> Draft:
    """A command line that a shell has already read. ConfigError if it starts no server that we know.

    environ: variables that the server would find, besides those that the command sets.
    """
    encoded = [literal(word) for word in words]
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
    """A command line as one text, a script (the first server it starts), or a Modelfile. ConfigError if there is none.

    environ: as in `import_words`.
    """
    if engine == "ollama" or "modelfile" in Path(name).name.lower():
        return draft_of(Launch("ollama", instructions_of(text)))
    try:
        launches = launches_of(text)
        if not launches and engine is not None:
            launches = [Launch(engine, [word for words in commands_of(text) for word in words])]
    except UnreadableShell as error:
        raise _unreadable(text, name, error) from None
    if not launches:
        raise _nothing(text, name)
    first, *others = launches
    if others:
        first.notes.append(f"The script starts {len(launches)} servers; this is the first of them.")
    return draft_of(_with_key(first, environ))


def _with_key(launch: Launch, environ: Mapping[str, str] | None) -> Launch:
    """vLLM reads its key from VLLM_API_KEY if the command line has none."""
    has_flag = any(word.replace("_", "-").partition("=")[0] == "--api-key" for word in launch.words)
    is_set = bool((environ or {}).get(_VLLM_KEY)) and _VLLM_KEY not in launch.env
    if launch.engine == "vllm" and is_set and not has_flag and not launch.in_container:
        launch.env[_VLLM_KEY] = f"${{{_VLLM_KEY}}}"
        launch.notes.append(f"{_VLLM_KEY} is set in the environment of the import; vLLM takes it as its key.")
    return launch


def import_flat(content: str, name: str, engine: Engine | None = None) -> Draft:
    """A flat YAML file of options. ConfigError if it cannot be read, or is something else."""
    source = SourceText(Layer.FILE, name, lines_of(content), Path(name).parent)
    found: list[Diagnostic] = []
    root = parse(content, source, found)
    if found:
        raise ConfigError(found)
    if root is None or not isinstance(root.value, dict):
        raise _no_options(source, "write option names with their values, or give a command line")
    keys = {key.replace("_", "-") for key in root.value}
    if "apiVersion" in keys or isinstance(getattr(root.value.get("model"), "value", None), dict):
        raise _no_options(source, "this is a manifest already, or an object of Kubernetes: give its command line")
    if "services" in keys:
        raise _no_options(source, "this is a compose file: give the command line of its service")
    engine = engine or ("sglang" if keys & _SGLANG_KEYS else "vllm")
    words = [word for key, node in root.value.items() for word in _flat_words(key, node, engine)]
    return draft_of(Launch(engine, words, notes=[f"Its file of options was {Path(name).name}."]))


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
    label = Label(Span(source, 1, 1, 1, len(first) + 1), "known are vLLM, SGLang, TGI and llama.cpp's server")
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
