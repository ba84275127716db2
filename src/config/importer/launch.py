"""Finds the server that a command starts, its options and its environment, within wrappers and containers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from .container_run import container_run
from .program_names import (
    CONTAINERS,
    IMAGES,
    KEEP_VARIABLES,
    MODULES,
    ONLY_NAME,
    ONLY_NAME_ANYWHERE,
    ONLY_NAME_IN_CONTAINERS,
    RUN_TEXTS,
    SUBCOMMANDS,
    SUPPLIES,
    Engine,
)
from .shell import KEYWORDS, assignment, read_script
from .shell_words import UnreadableShell
from .words import as_written, is_undecided, redacted, undecided

_LAUNCHERS: dict[str, Engine] = {"text-generation-launcher": "tgi", "text-embeddings-router": "tei"}
_ASKS = ({"--version"}, {"--help"}, {"-h"}, {"-v"}, {"-V"})  # nothing is served
_SILENT = {"env", "exec", "nohup", "sudo", "command", "&", *KEYWORDS}  # say nothing about the server
_NAMES_A_KEY = re.compile(r"API_?KEY", re.IGNORECASE)
_FOUND = re.compile(r"\0(?:\$\(|`)(?:command -v|which|type -[pP])\s+([^\s()`;|&]+)[^()`]*[)`]\0")
_VARIABLE = re.compile(r"(?:\$\{|\0\$\{?)(\w+)\}?\0?")
_CALLED = (
    (re.compile(r"LLAMA_?SERVER(_?(BIN|BINARY|EXE|PATH|CMD))?$", re.IGNORECASE), "llama-server"),
    (re.compile(r"^(?!.*PYTHON).*VLLM", re.IGNORECASE), "vllm"),
)
_BY_DEFAULT = re.compile(r"\$\{\w+:-(.+)\}", re.DOTALL)
_SETS_VARIABLE = ("-E", "-e", "--env", "--setenv")


@dataclass(slots=True)
class Launch:
    """A server's start.

    env: variables that the server finds.
    notes: what is around the command: wrappers, ports, volumes.
    files: where further variables come from, which are not read.
    used: variables of `env` that are filled in, so that they need no separate mention.
    doubts: what around the command may set variables too, without saying which.
    others: the other servers that the same text starts, as they may be shown.
    """

    engine: Engine
    words: list[str]
    env: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    in_container: bool = False
    files: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    doubts: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    @property
    def shown(self) -> str:
        return f"{self.engine}: {redacted(self.words)}"


def launches_of(text: str, env: Mapping[str, str] | None = None, *, in_documents: bool = True) -> list[Launch]:
    """Every server that a script starts. UnreadableShell for an open quote.

    env: variables that the script finds; unused ones are not part of the launches.
    in_documents: also look into its here-documents, if nothing else starts one.
    """
    found: list[Launch] = []
    script = read_script(text, env)
    launch: Launch | None = None
    for command in script.commands:
        if launch is not None and command.words and command.words[0].startswith("-"):
            _continue(launch, command.words)
            continue
        launch = launch_of(command.words)
        if launch is not None:
            launch.used |= command.used
            _take_exported(launch, command.exported)
            open_ones = {name for name, value in launch.env.items() if value == undecided(f"${name}")}
            launch.notes += [said for name, said in script.notes.items() if name in command.used | open_ones]
            launch.files += script.files
            launch.doubts += sorted(filter(_NAMES_A_KEY.search, script.private - command.used))
            found.append(launch)
    if not found and in_documents:
        for document in script.documents:
            found += _readable(document, env)
    return found


def _take_exported(launch: Launch, exported: Mapping[str, str]) -> None:
    """Variables of the script. A container finds only those that its command names: `-e NAME`."""
    if not launch.in_container:
        launch.env = {**exported, **launch.env}
        return
    passed = {name for name, value in launch.env.items() if value == f"${{{name}}}" and name in exported}
    launch.env |= {name: exported[name] for name in passed}
    if others := sorted(set(exported) - set(launch.env) - launch.used):
        shown = ", ".join(f"`{name}`" for name in others)
        launch.notes.append(f"Variables that the script sets, and the container does not find: {shown}.")
        launch.doubts += filter(_NAMES_A_KEY.search, others)


def _continue(launch: Launch, words: Sequence[str]) -> None:
    """Options at the beginning of a line: no command, but what its writer took for part of the one before."""
    if launch.words and not launch.words[-1].strip():
        launch.words.pop()  # a space after the backslash
    if words != ["--"]:
        launch.words += words
    said = "a shell takes it for another command: the line before has no backslash as its last character"
    launch.notes.append(f"`{redacted(words)}` begins a line of its own, and is read as part of the command; {said}.")


def _readable(text: str, env: Mapping[str, str] | None = None) -> list[Launch]:
    """The servers of a text that may not be a script at all."""
    try:
        return launches_of(text, env)
    except UnreadableShell:
        return []


def launch_of(words: Sequence[str], env: Mapping[str, str] | None = None) -> Launch | None:
    """The server that one command starts; None if it starts none that we know.

    env: variables of the process, for commands within it that a shell reads.
    """
    own: dict[str, str] = {}
    if _only_names(words):
        return None
    for index, word in enumerate(words):
        known = {**(env or {}), **own}
        if PurePath(word).name in ONLY_NAME_ANYWHERE:
            return None
        if launch := _container(words, index) or _program(words, index) or _shell(words, index, known):
            launch.env = own | launch.env
            _note_around(words[:index], own, launch)
            return launch
        before = words[index - 1] if index else ""
        is_of_option = before.startswith("-") and before not in _SETS_VARIABLE and "env" not in words[:index]
        name, _, value = word.partition("=")
        pair = assignment(value if name in _SETS_VARIABLE else word)
        if pair and not is_of_option:  # unlike systemd-run -p MemoryMax=9G
            own[pair[0]] = pair[1]
    runs = any(PurePath(word).name in RUN_TEXTS for word in words)
    for index, word in enumerate(words if runs else ()):
        if index and " " in word and (found := _readable(word.replace("$$", "$"), {**(env or {}), **own})):
            launch = found[0]
            launch.env = own | launch.env
            _note_around([*words[:index], *words[index + 1 :]], own, launch)
            return launch
    return None


def _only_names(words: Sequence[str]) -> bool:
    """Whether a command is about programs, and starts none: `chmod +x llama-server`, `docker logs vllm`."""
    rest = list(words)
    while rest and (rest[0] in _SILENT or assignment(rest[0]) or (rest[0].startswith("-") and len(rest) < len(words))):
        word = rest.pop(0)
        if word == "command" and rest[:1] in (["-v"], ["-V"]):
            return True
    if not rest:
        return False
    name = PurePath(rest[0]).name
    if name in (*CONTAINERS, "docker-compose", "podman-compose"):
        inner = [word for word in rest[1:] if word not in ("compose", "container") and not word.startswith("-")]
        return bool(inner) and inner[0] in ONLY_NAME_IN_CONTAINERS
    return name in ONLY_NAME or set(rest[1:]) in _ASKS or set(rest[2:]) in _ASKS


def _note_around(words: Sequence[str], env: Mapping[str, str], launch: Launch) -> None:
    """What a command runs under, and whether it may set variables that are not seen here."""
    around = [
        word
        for before, word in zip(("", *words), words, strict=False)
        if not ((pair := assignment(word)) and pair[0] in env) or before in _SETS_VARIABLE
    ]
    while around and around[0] in _SILENT and not (around[1:] and around[1].startswith("-")):
        around.pop(0)
    if not around:
        return
    shown = redacted(around)
    launch.notes.insert(0, f"It ran under `{shown}`, which is not part of a manifest.")
    is_known = PurePath(around[0]).name in KEEP_VARIABLES | _SILENT
    if not is_known or any(is_undecided(word) or SUPPLIES.search(word) for word in around):
        launch.doubts.append(shown)


def _path(word: str) -> str:
    """The path of a program; of `$(command -v NAME)`, `${VARIABLE:-path}` and `$VLLM_BIN` the most likely one."""
    if found := _FOUND.fullmatch(word) or _BY_DEFAULT.fullmatch(word):
        return found[1]
    if found := _VARIABLE.fullmatch(word):
        return next((name for pattern, name in _CALLED if pattern.search(found[1])), "python")
    return word


def _program(words: Sequence[str], index: int) -> Launch | None:
    name = PurePath(_path(words[index])).name.removesuffix(".exe")
    rest = list(words[index + 1 :])
    if rest[:2] == ["launch", "render"] and name == "vllm":
        return Launch("vllm", [*rest[2:], "--engine", "none"])
    if rest and (engine := SUBCOMMANDS.get((name, rest[0]))):
        return Launch(engine, rest[1:])
    if name == "llama-server" or words[index] in ("./server", "./build/bin/server"):
        return Launch("llama.cpp", rest)
    if name in _LAUNCHERS:
        return Launch(_LAUNCHERS[name], rest)
    if words[index].endswith("vllm/entrypoints/openai/api_server.py"):
        return Launch("vllm", rest)
    if re.fullmatch(r"(python|pypy)[\d.]*", name) and "-m" in rest[:6]:
        at = rest.index("-m")
        if at + 1 < len(rest) and (engine := MODULES.get(rest[at + 1])):
            return Launch(engine, rest[at + 2 :])
        module = (rest[at + 1].partition(".")[0], rest[at + 2]) if at + 2 < len(rest) else ("", "")
        if engine := SUBCOMMANDS.get(module):
            return Launch(engine, rest[at + 3 :])
    return None


def _shell(words: Sequence[str], index: int, env: Mapping[str, str]) -> Launch | None:
    """`bash -c "..."`: the server that the text starts."""
    if PurePath(words[index]).name not in ("sh", "bash", "zsh", "dash", "ash"):
        return None
    options = words[index + 1 :]
    for at, option in enumerate(options[:-1]):
        if re.fullmatch(r"-[a-z]*c", option):
            found = _readable(options[at + 1].replace("$$", "$"), env)
            if not found:
                return None
            found[0].others += [other.shown for other in found[1:]]
            return found[0]
    return None


def _container(words: Sequence[str], index: int) -> Launch | None:
    """The server in a container that the command starts."""
    run = container_run(words, index)
    launch = None if run is None else in_image(run.image, run.entry, run.command, run.env)
    if run is None or launch is None:
        return None
    launch.notes += run.notes
    launch.files += run.variable_files
    launch.doubts += run.doubts
    return launch


def in_image(image: str, entry: Sequence[str], rest: Sequence[str], env: Mapping[str, str]) -> Launch | None:
    """The server that a container starts: by its command, or by its image where that has only options."""
    engine = next((engine for pattern, engine in IMAGES if pattern.search(image.lower())), None)
    launch = launch_of([*entry, *rest], env)
    if launch is None and engine is not None and not entry:
        launch = Launch(engine, list(rest[rest[:1] in (["serve"], ["v2"]) :]))
    if launch is None:
        return None
    launch.in_container = True
    launch.env = {**env, **launch.env}
    launch.notes = [f"It ran in a container of `{as_written(image)}`.", *launch.notes] if image else launch.notes
    return launch
