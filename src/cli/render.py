"""`engine render`: what a supervisor needs to run a deployment, written from its one file."""

from __future__ import annotations

import os
import re
from pathlib import Path

from .. import __version__
from ..config.diagnostics import show
from ..config.errors import EXIT_WRONG_COMMAND_LINE, ConfigError
from ..config.render.compose import compose
from ..config.render.k8s import HOME, HOST, Wanted, kubernetes
from ..config.render.luggage import Luggage, pack
from ..config.render.systemd import home, systemd
from .console import say, tell

FORMS = ("k8s", "compose", "systemd")
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?")


def run(
    form: str,
    file: str,
    *,
    image: str | None = None,
    name: str | None = None,
    namespace: str | None = None,
    replicas: int = 1,
    program: str | None = None,
) -> int:
    """Print it. Returns the exit code: that of a wrong configuration if the deployment cannot run there as it is."""
    name = _name(Path(file).stem) if name is None else name
    if problem := _problem(form, file, name, namespace, replicas, image, program):
        tell(f"error: {problem}\n  = more: engine render --help")
        return EXIT_WRONG_COMMAND_LINE
    wanted = Wanted(name, image or f"stoker:{__version__}", namespace, replicas)
    is_container = form != "systemd"
    place, host = (HOME, HOST) if is_container else (home(name), None)
    try:
        luggage = pack(Path(file), place, os.environ, host=host)
        text = _rendered(form, luggage, wanted, program)
    except ConfigError as error:
        tell(show(error.diagnostics))
        if is_container and any(finding.code == "R201" for finding in error.diagnostics):
            tell(f"note: in a container the server listens on {HOST}, whatever `server.host` says")
        return error.exit_code
    say(text.rstrip("\n"))
    for finding in luggage.report.findings:
        tell(finding.as_text())
    if luggage.report.model_missing:
        tell(f"{luggage.report.model_missing} is not on this machine, so no memory is stated")
    return 0


def _rendered(form: str, luggage: Luggage, wanted: Wanted, program: str | None) -> str:
    if form == "k8s":
        return kubernetes(luggage, wanted)
    if form == "compose":
        return compose(luggage, wanted)
    return systemd(luggage, wanted, program) if program else systemd(luggage, wanted)


def _name(stem: str) -> str:
    """A file's name as one that Kubernetes, compose and systemd all take."""
    name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:52].rstrip("-")
    return name if _NAME.fullmatch(name) else f"engine-{name}".rstrip("-")


def _problem(
    form: str,
    file: str,
    name: str,
    namespace: str | None,
    replicas: int,
    image: str | None,
    program: str | None,
) -> str:
    if form not in FORMS:
        return f"nothing to render as `{form}`; there are {', '.join(FORMS)}"
    if file == "-":
        return "render carries the file along, so it has to be one: standard input is none"
    for flag, value in (("--name", name), ("--namespace", namespace)):
        if value is not None and not _NAME.fullmatch(value):
            return f"{flag} {value}: small letters, digits and hyphens, a letter first, at most 52"
    if replicas < 1:
        return f"--replicas {replicas}: at least 1"
    if form == "systemd" and (image is not None or namespace is not None or replicas > 1):
        return "--image, --namespace and --replicas mean nothing to systemd"
    if form == "compose" and namespace is not None:
        return "--namespace means nothing to compose"
    if program is not None and (form != "systemd" or not program.startswith("/")):
        return "--program is an absolute path, for systemd only"
    return ""
