"""`engine render`: files with which a supervisor runs a deployment, written from its manifest."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from .. import __version__
from ..config.diagnostics import show
from ..config.errors import ConfigError
from ..config.exit_codes import EXIT_WRONG_COMMAND_LINE
from ..config.render.bundle import Bundle, pack
from ..config.render.compose import compose
from ..config.render.k8s import HOME, HOST, Wanted, kubernetes
from ..config.render.systemd import home, systemd
from .console import print_message, print_result

Form = Literal["k8s", "compose", "systemd"]
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?")


def run(
    form: Form,
    file: str,
    *,
    image: str | None = None,
    name: str | None = None,
    namespace: str | None = None,
    replicas: int = 1,
    program: str | None = None,
) -> int:
    """Print the files. Returns the exit code: that of an invalid configuration if the deployment cannot run there."""
    name = _name(Path(file).stem) if name is None else name
    if problem := _problem(form, file, name, namespace, replicas, image, program):
        print_message(f"error: {problem}\n  = more: engine render --help")
        return EXIT_WRONG_COMMAND_LINE
    is_container = form != "systemd"
    place, host = (HOME, HOST) if is_container else (home(name), None)
    try:
        bundle = pack(Path(file), place, os.environ, host=host)
        wanted = Wanted(name, image or _image(bundle), namespace, replicas)
        text = _rendered(form, bundle, wanted, program)
    except ConfigError as error:
        print_message(show(error.diagnostics))
        if is_container and any(finding.code == "R201" for finding in error.diagnostics):
            print_message(f"note: in a container the server listens on {HOST}, whatever `server.host` says")
        return error.exit_code
    print_result(text.rstrip("\n"))
    for finding in bundle.report.findings:
        print_message(finding.as_text())
    if bundle.report.model_missing:
        print_message(f"{bundle.report.model_missing} is not on this machine, so no memory request is written")
    return 0


def _rendered(form: Form, bundle: Bundle, wanted: Wanted, program: str | None) -> str:
    if form == "k8s":
        return kubernetes(bundle, wanted)
    if form == "compose":
        return compose(bundle, wanted)
    return systemd(bundle, wanted, program) if program else systemd(bundle, wanted)


def _image(bundle: Bundle) -> str:
    """As `make image` names it."""
    return f"stoker:{__version__}{'-cuda' * bundle.has_gpu}"


def _name(stem: str) -> str:
    """A file's name as a name that Kubernetes, compose and systemd all accept."""
    name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:52].rstrip("-")
    return name if _NAME.fullmatch(name) else f"engine-{name}".rstrip("-")


def _problem(
    form: Form,
    file: str,
    name: str,
    namespace: str | None,
    replicas: int,
    image: str | None,
    program: str | None,
) -> str:
    if file == "-":
        return "render needs a file: standard input cannot be included"
    for flag, value in (("--name", name), ("--namespace", namespace)):
        if value is not None and not _NAME.fullmatch(value):
            return f"{flag} {value}: use lower-case letters, digits and hyphens, a letter first, at most 52 characters"
    if replicas < 1:
        return f"--replicas {replicas}: at least 1"
    if form == "systemd" and (image is not None or namespace is not None or replicas > 1):
        return "--image, --namespace and --replicas have no effect with systemd"
    if form == "compose" and namespace is not None:
        return "--namespace has no effect with compose"
    if program is not None and (form != "systemd" or not program.startswith("/")):
        return "--program must be an absolute path, and is for systemd only"
    return ""
