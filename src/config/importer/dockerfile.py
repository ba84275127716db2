"""The server that an image starts, from its Dockerfile: ENV, ARG, ENTRYPOINT and CMD of the last stage."""

from __future__ import annotations

import json
import re

from .launch import Launch, in_image
from .shell import assignment, read_script
from .words import literal

_INSTRUCTION = re.compile(r"^[ \t]*([A-Za-z]+)[ \t]+((?:[^\n\\]|\\[^\n]|\\\n(?:[ \t]*#.*\n)*)*)", re.MULTILINE)
_CONTINUED = re.compile(r"\\\n(?:[ \t]*#.*\n)*")
_STARTS = re.compile(r"^[ \t]*(CMD|ENTRYPOINT)[ \t]", re.MULTILINE)
_FROM = re.compile(r"^[ \t]*FROM[ \t]+\S", re.MULTILINE)


def is_dockerfile(text: str) -> bool:
    return bool(_STARTS.search(text) and _FROM.search(text))


def launches_of_dockerfile(text: str) -> list[Launch]:
    """The server that its last stage starts. UnreadableShell for an open quote."""
    image, env = "", dict[str, str]()
    entry: list[str] = []
    command: list[str] = []
    others: dict[str, None] = {}
    for match in _INSTRUCTION.finditer(text.replace("\r\n", "\n")):
        name, value = match[1].upper(), _CONTINUED.sub(" ", match[2]).strip()
        if name == "FROM":
            stage = [word for word in value.split() if not word.startswith("--")]
            image, entry, command = stage[0] if stage else "", [], []
        elif name in ("ENV", "ARG"):
            env |= _variables(value, env)
        elif name == "ENTRYPOINT":
            entry, command = _words(value), []
        elif name == "CMD":
            command = _words(value)
        else:
            others[name] = None
    launch = in_image(literal(image), entry, command, env)
    if launch is None:
        return []
    if others:
        launch.notes.append(f"Other instructions of the Dockerfile are not part of a manifest: {', '.join(others)}.")
    return [launch]


def _variables(value: str, env: dict[str, str]) -> dict[str, str]:
    """`NAME=value ...`, the older `NAME value`, and `NAME` of ARG, which is given from outside."""
    first, _, rest = value.partition(" ")
    if "=" not in first:
        return {first: _filled(rest.strip(), env)[0]} if rest.strip() else {}
    return dict(pair for word in _filled(value, env) if (pair := assignment(word)))


def _filled(value: str, env: dict[str, str]) -> list[str]:
    """Words with the variables that are set so far. The leading word keeps assignments from being taken as such."""
    return [word for command in read_script(f"env {value}", env).commands for word in command.words[1:]] or [""]


def _words(value: str) -> list[str]:
    """The form of a JSON list, or a line that a shell reads."""
    try:
        listed = json.loads(value)
    except ValueError:
        listed = None
    if isinstance(listed, list):
        return [literal(str(word)) for word in listed]
    return ["/bin/sh", "-c", literal(value)]
