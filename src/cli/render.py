"""`engine render`: files with which a supervisor runs a deployment, written from its manifest."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Literal

from .. import __version__
from ..config.diagnostics import show
from ..config.errors import ConfigError
from ..config.exit_codes import EXIT_WRONG_COMMAND_LINE
from ..config.render.bundle import Bundle, pack
from ..config.render.compose import compose
from ..config.render.k8s import kubernetes, options_of_first_node
from ..config.render.kserve import kserve
from ..config.render.pod import HOME, HOST
from ..config.render.systemd import home, systemd
from ..config.render.wanted import Pool, Wanted
from .console import print_message, print_result

Form = Literal["k8s", "kserve", "compose", "systemd"]
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?")
_FORMS_OF: dict[str, tuple[Form, ...]] = {  # where a flag has an effect
    "--image": ("k8s", "kserve", "compose"),
    "--namespace": ("k8s", "kserve"),
    "--replicas": ("k8s", "kserve", "compose"),
    "--nodes": ("k8s",),
    "--inference-pool": ("k8s",),
    "--gateway": ("k8s",),
    "--endpoint-picker": ("k8s",),
    "--model-uri": ("kserve",),
    "--program": ("systemd",),
}


def run(
    form: Form,
    file: str,
    *,
    image: str | None = None,
    name: str | None = None,
    namespace: str | None = None,
    replicas: int | None = None,
    nodes: int | None = None,
    inference_pool: bool = False,
    gateway: str | None = None,
    endpoint_picker: str | None = None,
    model_uri: str | None = None,
    program: str | None = None,
) -> int:
    """Print the files. Returns the exit code: that of an invalid configuration if the deployment cannot run there."""
    name = _name(Path(file).stem) if name is None else name
    flags = {
        "--image": image,
        "--name": name,
        "--namespace": namespace,
        "--replicas": replicas,
        "--nodes": nodes,
        "--inference-pool": inference_pool or None,
        "--gateway": gateway,
        "--endpoint-picker": endpoint_picker,
        "--model-uri": model_uri,
        "--program": program,
    }
    if problem := _problem(form, file, {flag: value for flag, value in flags.items() if value is not None}):
        print_message(f"error: {problem}\n  = more: engine render --help")
        return EXIT_WRONG_COMMAND_LINE
    is_container = form != "systemd"
    place, settings = (HOME, {"server.host": HOST}) if is_container else (home(name), {})
    pool = Pool(gateway or "inference-gateway", endpoint_picker or f"{name}-epp") if inference_pool else None
    try:
        bundle = pack(Path(file), place, os.environ, settings=settings)
        if form == "k8s" and (more := options_of_first_node(bundle, nodes)):
            bundle = pack(Path(file), place, os.environ, settings={**settings, **more})
        wanted = Wanted(name, image or _image(bundle), namespace, replicas or 1, nodes or 1, pool, model_uri)
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
    if form == "kserve":
        return kserve(bundle, wanted)
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


def _problem(form: Form, file: str, flags: dict[str, Any]) -> str:
    """What is wrong with the command line. `flags` are those that were given, and the name."""
    if file == "-":
        return "render needs a file: standard input cannot be included"
    for flag in ("--name", "--namespace", "--gateway", "--endpoint-picker"):
        if flag in flags and not _NAME.fullmatch(flags[flag]):
            rule = "use lower-case letters, digits and hyphens, a letter first, at most 52 characters"
            return f"{flag} {flags[flag]}: {rule}"
    for flag in ("--replicas", "--nodes"):
        if flags.get(flag, 1) < 1:
            return f"{flag} {flags[flag]}: at least 1"
    if flags.get("--replicas", 1) > 1 and flags.get("--nodes", 1) > 1:
        return "--nodes and --replicas exclude each other: each node has one pod"
    for flag in flags:
        if form not in _FORMS_OF.get(flag, (form,)):
            return f"{flag} has no effect with {form}"
    if "--inference-pool" not in flags and (alone := {"--gateway", "--endpoint-picker"} & flags.keys()):
        return f"{min(alone)} needs --inference-pool"
    if "://" not in flags.get("--model-uri", "://"):
        return "--model-uri: hf://, pvc://, s3:// or oci://, and where the model is there"
    if not flags.get("--program", "/").startswith("/"):
        return "--program must be an absolute path"
    return ""
