"""Collects what a deployment needs on another machine.

The manifest is copied unchanged. Files that it names by a relative path are copied to the same relative path, so that
the manifest stays valid. What cannot be copied is refused, with a fix.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ...input_file import FileTooLarge, read_file
from ..adapter_modules import modules_of
from ..deployment import Deployment
from ..diagnostics import Diagnostic, Label
from ..errors import ConfigError
from ..examine import ABOUT_MACHINE, report_on
from ..origin import Layer
from ..resolve.machine_spec import MachineSpec
from ..schema.options import ENV_PREFIX, Option, options
from ..source.files import read_files
from ..source.interpolate import names_only
from ..source.node import Node
from ..source.yaml import MAX_BYTES, lines_of, parse
from ..source_text import SourceText
from .bundle import Bundle, BundledFile, Folder

MAX_FILE_BYTES = 512 << 10  # a ConfigMap and a Secret hold at most 1 MiB each, for all files of the deployment
_VARIABLE = re.compile(r"(?<!\$)(?:\$\$)*\$\{([A-Za-z_][A-Za-z0-9_]*)")
_PRIVATE = frozenset({"server.ssl_keyfile"})  # options that are paths, of files that are secrets
# The machine that is planned for: always the same, so that the same file gives the same bytes.
NOMINAL_MACHINE = MachineSpec(
    system="Linux",
    architecture="x86_64",
    num_cores=64,
    total_memory_bytes=1 << 40,
    available_memory_bytes=1 << 40,
    cpu_flags=("avx2", "avx512_bf16", "avx512f"),
)


Entry = tuple[str, Path, bool]  # option, file, whether it was written as an absolute path


def pack(file: Path, home: str, env: Mapping[str, str], *, settings: Mapping[str, str] | None = None) -> Bundle:
    """Checks the deployment for the other machine, and collects what it needs. Raises ConfigError.

    Args:
        home: folder of the manifest on the other machine.
        env: of this process. ENGINE__ variables are ignored: the other machine does not have them.
        settings: values of options, by path, that override the files there. A container sets `server.host`.
    """
    settings = settings or {}
    written = {name: value for name, value in env.items() if not name.startswith(ENV_PREFIX)}
    written |= {options()[path].variable: value for path, value in settings.items()}
    # Secrets need not be on this machine: a value in the environment overrides the file, and is what is checked.
    stand_ins = {options()[path].variable: "-" for path in _secret_paths(file, written)}
    report = report_on([file], [], NOMINAL_MACHINE, env={**written, **stand_ins}, is_elsewhere=True)
    # the deployment is for another machine than the nominal one
    report = replace(report, findings=tuple(each for each in report.findings if each.code not in ABOUT_MACHINE))
    if report.deployment is None or report.errors:
        raise ConfigError(report.errors)
    deployment = report.deployment
    found: list[Diagnostic] = []
    read = [Path(source.name) for source in deployment.sources if source.layer is Layer.FILE]
    trees = [_tree(path) for path in read]
    secret_files, variables_of = _secrets(trees, found)
    named, folders = _named_files(deployment, found)
    if deployment.server.port == 0:
        found.append(_refused("server.port", deployment, "port 0 is a different port at each start", "write a port"))
    if "server.host" in settings and deployment.server.uds is not None:
        fix = "leave it out: a container is reached through its port"
        found.append(
            _refused(
                "server.uds", deployment, "probes and clients outside the container cannot reach a Unix socket", fix
            )
        )
    manifests = [("", Path(os.path.abspath(path)), False) for path in reversed(read)]
    packer = _Packer(home, _root([*manifests, *named, *secret_files]), deployment, found)
    files = [packer.bundled(*entry) for entry in [*manifests, *named] if entry[0] not in _PRIVATE]
    private = [packer.bundled(*entry) for entry in [*secret_files, *(e for e in named if e[0] in _PRIVATE)]]
    if found:
        raise ConfigError(found)
    secret = {name for names in variables_of.values() for name in names}
    names = sorted({name for tree in trees for name in _variables(tree)} - secret)
    return Bundle(
        report=report,
        deployment=deployment,
        manifest=files[0],
        files=tuple(dict.fromkeys(files)),
        secret_files=tuple(dict.fromkeys(private)),
        folders=tuple(packer.placed(folder) for folder in folders),
        variables_of={path: tuple(dict.fromkeys(names)) for path, names in variables_of.items()},
        variables={name: env[name] for name in names if name in env},
        settings=settings,
    )


class _Packer:
    """Gives each file its path on the other machine, and a key that is valid in a ConfigMap."""

    def __init__(self, home: str, root: Path, deployment: Deployment, found: list[Diagnostic]) -> None:
        self._home = home
        self._root = root
        self._deployment = deployment
        self._found = found
        self._names: dict[str, Path] = {}

    def bundled(self, option: str, source: Path, is_absolute: bool) -> BundledFile:
        inside = str(source).lstrip("/") if is_absolute else str(source.relative_to(self._root))
        target = str(source) if is_absolute else f"{self._home}/{inside}"
        key = re.sub(r"[^A-Za-z0-9._-]", "-", inside.replace("/", "--"))
        while self._names.setdefault(key, source) != source:
            key += "-2"
        is_secret = option in _PRIVATE or (bool(option) and options()[option].is_secret)
        return BundledFile(option, source, target, key, "" if is_secret else self._text(source, option))

    def placed(self, folder: Folder) -> Folder:
        target = str(folder.source)
        if not Path(os.path.expanduser(folder.written)).is_absolute():
            target = os.path.normpath(f"{self._home}/{os.path.relpath(folder.source, self._root)}")
        return replace(folder, target=target)

    def _text(self, source: Path, option: str) -> str:
        try:
            text = read_file(source, MAX_FILE_BYTES).decode()
        except FileTooLarge as error:
            problem = f"`{source.name}` is {error.strerror}"
            self._found.append(_refused(option, self._deployment, problem, "shorten it"))
            return ""
        except (OSError, UnicodeDecodeError):
            problem = f"`{source.name}` is not a text file in UTF-8"
            self._found.append(_refused(option, self._deployment, problem, "only text files can be bundled"))
            return ""
        return text


def _root(entries: list[Entry]) -> Path:
    """The folder that holds all files named relatively."""
    return Path(os.path.commonpath([str(source.parent) for _, source, is_absolute in entries if not is_absolute]))


def _tree(file: Path) -> Node | None:
    """A manifest as it is written, without the replacement of `${...}`. It has been read before without errors."""
    content = read_file(file, MAX_BYTES).decode("utf-8-sig")
    return parse(content, SourceText(Layer.FILE, str(file), lines_of(content), file.parent), [])


def _secret_paths(file: Path, env: Mapping[str, str]) -> set[str]:
    """Secrets that the files set."""
    return {
        f"{section}.{name}"
        for source in read_files([file], env, [])
        for section, node in source.tree.items()
        if isinstance(node.value, dict)
        for name, child in node.value.items()
        if options()[f"{section}.{name}"].is_secret and any(not scalar.is_null for scalar in child.scalars())
    }


def _leaves(tree: Node | None) -> Iterator[tuple[Option, Node]]:
    if tree is None or not isinstance(tree.value, dict):
        return
    for section, node in tree.value.items():
        if section in options():
            yield options()[section], node
        elif isinstance(node.value, dict):
            for name, child in node.value.items():
                option = options().get(f"{section}.{name}")
                if option is not None:
                    yield option, child


def _variables(tree: Node | None) -> list[str]:
    return [
        name
        for option, node in _leaves(tree)
        if not option.is_secret
        for scalar in node.scalars()
        if isinstance(scalar.value, str)
        for name in _VARIABLE.findall(scalar.value)
    ]


def _secrets(trees: list[Node | None], found: list[Diagnostic]) -> tuple[list[Entry], dict[str, list[str]]]:
    """Files and, by option, variables that secrets come from. A secret in plain text is reported but not shown."""
    files: list[Entry] = []
    variables: dict[str, list[str]] = {}
    for option, node in (leaf for tree in trees for leaf in _leaves(tree)):
        if not option.is_secret or node.is_null:
            continue
        for item in node.value if isinstance(node.value, list) else [node]:
            if isinstance(item.value, dict):
                for kind, child in item.value.items():
                    if kind == "file":
                        path = Path(os.path.expanduser(child.text or ""))
                        place = Path(os.path.abspath(child.span.source.folder / path))
                        files.append((option.path, place, path.is_absolute()))
                    else:
                        variables.setdefault(option.path, []).append(child.text or "")
            elif names_only(item.text or ""):
                variables.setdefault(option.path, []).extend(_VARIABLE.findall(item.text or ""))
            else:
                found.append(_plain_secret(option, item))
    return list(dict.fromkeys(files)), variables


def _plain_secret(option: Option, node: Node) -> Diagnostic:
    for span in (node.span, node.anchor):
        if span is not None:
            span.source.hide(span)
    return Diagnostic(
        code="C130",
        message=f"`{option.path}` holds a secret in plain text, which would be copied into what is written",
        path=option.path,
        labels=(Label(node.span, f"write {{env: {option.name.upper()}}} or {{file: path}}"),),
    )


def _named_files(deployment: Deployment, found: list[Diagnostic]) -> tuple[list[Entry], list[Folder]]:
    """Files and folders on this machine that options name."""
    files: list[Entry] = []
    folders: list[Folder] = []
    for path, option in options().items():
        if option.path_kind is None or deployment.origin(path).layer is not Layer.FILE:
            continue
        if path == "load.download_dir":
            problem, fix = "downloads go where the supervisor keeps the cache", "leave it out"
            found.append(_refused(path, deployment, problem, fix))
            continue
        value = getattr(getattr(deployment.config, option.section), option.name)
        if not isinstance(value, str) or (option.path_kind == "template" and ("{{" in value or "{%" in value)):
            continue
        place = Path(deployment.located(path))
        is_absolute = Path(os.path.expanduser(value)).is_absolute()
        if path == "model.model" and os.path.isfile(place):
            fix = "write its directory, which is mounted as it is"
            found.append(_refused(path, deployment, "a file of weights is not copied", fix))
        elif os.path.isfile(place):
            files.append((path, place, is_absolute))
        elif os.path.isdir(place) or (option.path_kind == "path" and (is_absolute or path == "server.uds")):
            folders.append(Folder(path, value, Path(os.path.abspath(place)), "", deployment.spans[path]))
        elif option.path_kind == "path":
            fix = "write an absolute path, or put the file there"
            found.append(_refused(path, deployment, f"`{value}` does not exist on this machine", fix))
    return files, [*folders, *_adapters(deployment)]


def _adapters(deployment: Deployment) -> Iterator[Folder]:
    """Folders of adapters; those of the hub are downloaded where the deployment starts."""
    for module in modules_of(deployment.config):
        place = Path(deployment.absolute(module.option, module.path))
        is_path = module.path.startswith((".", "/", "~")) or place.is_dir()
        if is_path and deployment.origin(module.option).layer is Layer.FILE:
            yield Folder(module.option, module.path, place, "", deployment.spans[module.option])


def _refused(path: str, deployment: Deployment, message: str, fix: str) -> Diagnostic:
    span = deployment.spans.get(path)
    return Diagnostic(
        code="C131",
        message=f"`{path}` cannot be bundled: {message}" if path else message,
        path=path or None,
        labels=(Label(span),) if span is not None else (),
        fixes=(fix,),
    )
