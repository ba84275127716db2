"""Which server a command starts, with which options, in which environment: wrappers and containers peeled off."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal

from .shell import UnreadableShell, assignment, commands_of

Engine = Literal["vllm", "sglang", "llama.cpp", "tgi", "ollama", "stoker"]

_MODULES: dict[str, Engine] = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
    "sglang.launch_server": "sglang",
    "sglang.srt.server": "sglang",
}
_IMAGES: tuple[tuple[re.Pattern[str], Engine], ...] = (
    (re.compile(r"sglang"), "sglang"),
    (re.compile(r"llama[-.]?cpp|llama-server"), "llama.cpp"),
    (re.compile(r"text-generation-inference|tgi"), "tgi"),
    (re.compile(r"vllm"), "vllm"),
)
_SUBCOMMANDS: dict[tuple[str, str], Engine] = {
    ("vllm", "serve"): "vllm",
    ("sglang", "serve"): "sglang",
    ("engine", "serve"): "stoker",
    ("stoker", "serve"): "stoker",
}
_CONTAINERS = ("docker", "podman", "nerdctl")
_SWITCHES = {"--rm", "--init", "--privileged", "--detach", "--interactive", "--tty", "--read-only", "--publish-all"}
_SWITCHES |= {"--no-healthcheck", "--oom-kill-disable", "--quiet"}
_SHORT_SWITCHES = re.compile(r"-[ditPq]+")


@dataclass(slots=True)
class Launch:
    """A server's start. `notes` are what the command says around it: wrappers, ports, volumes."""

    engine: Engine
    words: list[str]
    env: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    in_container: bool = False


def launches_of(text: str) -> list[Launch]:
    """Every server that a script starts. UnreadableShell for an open quote."""
    found: list[Launch] = []
    exported: dict[str, str] = {}
    for words in commands_of(text):
        pairs = [assignment(word) for word in words]
        if all(pairs):
            exported |= dict(pair for pair in pairs if pair is not None)
        elif launch := launch_of(words):
            launch.env = exported | launch.env
            found.append(launch)
    return found


def launch_of(words: Sequence[str]) -> Launch | None:
    """The server that one command starts; None if it starts none that we know."""
    env: dict[str, str] = {}
    for index, word in enumerate(words):
        if launch := _container(words, index) or _program(words, index) or _shell(words, index):
            launch.env = env | launch.env
            around = [other for other in words[:index] if assignment(other) is None and other != "env"]
            if around:
                launch.notes.insert(0, f"It ran under `{' '.join(around)}`, which is not part of a manifest.")
            return launch
        if pair := assignment(word):
            env[pair[0]] = pair[1]
    return None


def _program(words: Sequence[str], index: int) -> Launch | None:
    name = PurePath(words[index]).name.removesuffix(".exe")
    rest = list(words[index + 1 :])
    if rest and (engine := _SUBCOMMANDS.get((name, rest[0]))):
        return Launch(engine, rest[1:])
    if name == "llama-server" or words[index] in ("./server", "./build/bin/server"):
        return Launch("llama.cpp", rest)
    if name == "text-generation-launcher":
        return Launch("tgi", rest)
    if words[index].endswith("vllm/entrypoints/openai/api_server.py"):
        return Launch("vllm", rest)
    if re.fullmatch(r"(python|pypy)[\d.]*", name) and "-m" in rest[:4]:
        at = rest.index("-m")
        if at + 1 < len(rest) and (engine := _MODULES.get(rest[at + 1])):
            return Launch(engine, rest[at + 2 :])
        if rest[at + 1 : at + 3] in (["stoker", "serve"],):
            return Launch("stoker", rest[at + 3 :])
    return None


def _shell(words: Sequence[str], index: int) -> Launch | None:
    """`bash -c "..."`: the server that the text starts."""
    if PurePath(words[index]).name not in ("sh", "bash", "zsh", "dash"):
        return None
    options = words[index + 1 :]
    for at, option in enumerate(options[:-1]):
        if re.fullmatch(r"-[a-z]*c", option):
            try:
                found = launches_of(options[at + 1].replace("$$", "$"))
            except UnreadableShell:
                return None
            return found[0] if found else None
    return None


def _container(words: Sequence[str], index: int) -> Launch | None:
    """`docker run [options] IMAGE [words]`."""
    if PurePath(words[index]).name not in _CONTAINERS or "run" not in words[index + 1 : index + 3]:
        return None
    at = words.index("run", index) + 1
    options: list[tuple[str, str]] = []
    while at < len(words) and words[at].startswith("-"):
        name, equals, value = words[at].partition("=")
        if not equals and name not in _SWITCHES and not _SHORT_SWITCHES.fullmatch(name):
            at += 1
            value = words[at] if at < len(words) else ""
        options.append((name, value))
        at += 1
    if at >= len(words):
        return None
    image, rest = words[at], list(words[at + 1 :])
    engine = next((engine for pattern, engine in _IMAGES if pattern.search(image)), None)
    entry = [value for name, value in options if name == "--entrypoint"]
    launch = launch_of([*entry, *rest]) or (Launch(engine, rest[rest[:1] == ["serve"] :]) if engine else None)
    if launch is None:
        return None
    launch.in_container = True
    launch.notes = [f"It ran in a container of `{image}`.", *launch.notes]
    _read_container(options, launch)
    return launch


def _read_container(options: Sequence[tuple[str, str]], launch: Launch) -> None:
    around: list[str] = []
    for name, value in options:
        if name in ("-e", "--env"):
            key, equals, content = value.partition("=")
            launch.env.setdefault(key, content if equals else f"${{{key}}}")
        elif name in ("-v", "--volume", "--mount"):
            launch.notes.append(f"Paths are those of the container: `{value}` was mounted.")
        elif name in ("-p", "--publish"):
            launch.notes.append(f"The container's ports were published as `{value}`.")
        elif name != "--entrypoint":
            around.append(f"{name} {value}".strip())
    if around:
        launch.notes.append(f"Options of the container are not part of a manifest: `{' '.join(around)}`.")
