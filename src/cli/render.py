"""`engine render`: files with which a supervisor runs a deployment, written from its manifest."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

from .. import __version__
from ..config.diagnostics import show
from ..config.errors import ConfigError
from ..config.exit_codes import EXIT_WRONG_COMMAND_LINE
from ..config.render.bundle import Bundle
from ..config.render.compose import compose
from ..config.render.k8s import kubernetes, options_of_first_node
from ..config.render.kserve import kserve
from ..config.render.pack import pack
from ..config.render.pod import HOME, HOST
from ..config.render.systemd import home, systemd
from ..config.render.wanted import Pool, Wanted
from .console import print_message, print_result
from .flags.writing import RenderFlags

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


def run(flags: RenderFlags) -> int:
    """Print the files. Returns the exit code: that of an invalid configuration if the deployment cannot run there."""
    form, name = flags.form, _name(Path(flags.file).stem) if flags.name is None else flags.name
    if problem := _problem(replace(flags, name=name)):
        print_message(f"error: {problem}\n  = more: engine render --help")
        return EXIT_WRONG_COMMAND_LINE
    is_container = form != "systemd"
    place, settings = (HOME, {"server.host": HOST}) if is_container else (home(name), {})
    pool = None
    if flags.inference_pool:
        pool = Pool(flags.gateway or "inference-gateway", flags.endpoint_picker or f"{name}-epp")
    try:
        bundle = pack(Path(flags.file), place, os.environ, settings=settings)
        if form == "k8s" and (more := options_of_first_node(bundle, flags.nodes)):
            bundle = pack(Path(flags.file), place, os.environ, settings={**settings, **more})
        image, uri = flags.image or _image(bundle), flags.model_uri
        wanted = Wanted(name, image, flags.namespace, flags.replicas or 1, flags.nodes or 1, pool, uri)
        text = _rendered(form, bundle, wanted, flags.program)
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
    """Name that `make image` gives the image."""
    return f"stoker:{__version__}{'-cuda' * bundle.has_gpu}"


def _name(stem: str) -> str:
    """A file's name as a name that Kubernetes, compose and systemd all accept."""
    name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:52].rstrip("-")
    return name if _NAME.fullmatch(name) else f"engine-{name}".rstrip("-")


def _problem(flags: RenderFlags) -> str:
    """What is wrong with the command line, in which `name` is set."""
    if flags.file == "-":
        return "render needs a file: standard input cannot be included"
    given = {
        f"--{name.replace('_', '-')}": value
        for name, value in asdict(flags).items()
        if value is not None and value is not False
    }
    for flag in ("--name", "--namespace", "--gateway", "--endpoint-picker"):
        if flag in given and not _NAME.fullmatch(given[flag]):
            rule = "use lower-case letters, digits and hyphens, a letter first, at most 52 characters"
            return f"{flag} {given[flag]}: {rule}"
    for flag in ("--replicas", "--nodes"):
        if given.get(flag, 1) < 1:
            return f"{flag} {given[flag]}: at least 1"
    if given.get("--replicas", 1) > 1 and given.get("--nodes", 1) > 1:
        return "--nodes and --replicas exclude each other: each node has one pod"
    for flag in given:
        if flags.form not in _FORMS_OF.get(flag, (flags.form,)):
            return f"{flag} has no effect with {flags.form}"
    if "--inference-pool" not in given and (alone := {"--gateway", "--endpoint-picker"} & given.keys()):
        return f"{min(alone)} needs --inference-pool"
    if "://" not in given.get("--model-uri", "://"):
        return "--model-uri: hf://, pvc://, s3:// or oci://, and where the model is there"
    if not given.get("--program", "/").startswith("/"):
        return "--program must be an absolute path"
    return ""
