"""A container that a command starts: `docker run [options] IMAGE [words]`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from .program_names import CONTAINERS, SUPPLIES
from .words import as_written, redacted

_SWITCHES = {"--rm", "--init", "--privileged", "--detach", "--interactive", "--tty", "--read-only", "--publish-all"}
_SWITCHES |= {"--no-healthcheck", "--oom-kill-disable", "--quiet"}
_SHORT_SWITCHES = re.compile(r"-[ditPq]+")
_ATTACHED = re.compile(r"(-[epvw])=?(.+)", re.DOTALL)  # a value without a space before it: -eNAME=1


@dataclass(frozen=True, slots=True)
class ContainerRun:
    """Options with their values, in order; the image; and the words after it."""

    options: list[tuple[str, str]]
    image: str
    command: list[str]

    @property
    def env(self) -> dict[str, str]:
        """Variables of the container. `-e NAME` passes that of the host, and is `${NAME}` here."""
        pairs = (value.partition("=") for name, value in self.options if name in ("-e", "--env"))
        return {key: content if equals else f"${{{key}}}" for key, equals, content in pairs}

    @property
    def entry(self) -> list[str]:
        return [value for name, value in self.options if name == "--entrypoint"]

    @property
    def variable_files(self) -> list[str]:
        return [as_written(value) for name, value in self.options if name == "--env-file"]

    @property
    def doubts(self) -> list[str]:
        """Options that may set variables without saying which."""
        return [
            redacted((name, value) if value else (name,))
            for name, value in self.options
            if SUPPLIES.search(name) and name != "--env-file"
        ]

    @property
    def notes(self) -> list[str]:
        """What a manifest has no place for."""
        notes: list[str] = []
        around: list[str] = []
        for name, value in self.options:
            if name in ("-v", "--volume", "--mount"):
                notes.append(f"Paths are those of the container: `{as_written(value)}` was mounted.")
            elif name in ("-p", "--publish"):
                notes.append(f"The container's ports were published as `{as_written(value)}`.")
            elif name not in ("-e", "--env", "--entrypoint", "--env-file"):
                around += [name, value] if value else [name]
        if around:
            notes.append(f"Options of the container are not part of a manifest: `{redacted(around)}`.")
        return notes


def container_run(words: Sequence[str], index: int) -> ContainerRun | None:
    """The container that the command at `index` starts; None if it starts none."""
    if PurePath(words[index]).name not in CONTAINERS or "run" not in words[index + 1 : index + 3]:
        return None
    at = words.index("run", index) + 1
    options: list[tuple[str, str]] = []
    while at < len(words) and words[at].startswith("-"):
        name, equals, value = words[at].partition("=")
        if attached := _ATTACHED.fullmatch(words[at]):
            name, equals, value = attached[1], "=", attached[2]
        if not equals and name not in _SWITCHES and not _SHORT_SWITCHES.fullmatch(name):
            at += 1
            value = words[at] if at < len(words) else ""
        options.append((name, value))
        at += 1
    return ContainerRun(options, words[at], list(words[at + 1 :])) if at < len(words) else None
