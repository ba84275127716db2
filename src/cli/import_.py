"""`engine import`: the manifest that corresponds to a launch command or a Modelfile of another serving engine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ..config.diagnostics import FORMAT_VERSION
from ..config.errors import ConfigError
from ..config.exit_codes import EXIT_WRONG_COMMAND_LINE
from ..config.importer.draft import Draft
from ..config.importer.manifest import left_records, manifest_text, manifest_tree
from ..config.importer.program_names import Engine
from ..config.importer.read import import_script, import_words, import_yaml, summary_of
from ..config.source.yaml import MAX_BYTES
from ..input_file import read_file, read_stream
from .console import print_message, print_result
from .flags.writing import ImportFlags

EXIT_LOST = 1
_FLAT = (".yaml", ".yml", ".json")
_YAML = re.compile(r"\s*(#[^\n]*\n\s*)*(---\s|\{|[A-Za-z][\w-]*:(\s|$))")  # a document, by its first line


def run(flags: ImportFlags) -> int:
    """Print the manifest on stdout and the number of its options on stderr. Returns the exit code."""
    if not (what := flags.what):
        print_message("error: nothing to import: give a command line or a file\n  = more: engine import --help")
        return EXIT_WRONG_COMMAND_LINE
    try:
        draft = _draft(what, flags.engine)
    except ConfigError as error:
        print_message(str(error))
        return error.exit_code
    except OSError as error:
        print_message(f"error: cannot read `{what[0]}`: {(error.strerror or str(error)).lower()}")
        return EXIT_WRONG_COMMAND_LINE
    print_result(_json(draft) if flags.output == "json" else manifest_text(draft).rstrip("\n"))
    counts = summary_of(draft)
    lost = counts["lost"]
    plural = "s" * (counts["options"] != 1)
    print_message(f"{counts['options']} option{plural}, {lost} without a counterpart, {counts['needless']} not needed")
    return EXIT_LOST if flags.strict and lost else 0


def _draft(what: Sequence[str], engine: Engine | None) -> Draft:
    if len(what) > 1:
        return import_words(what, engine, os.environ)
    (name,) = what
    if name == "-":
        content = read_stream(sys.stdin.buffer, MAX_BYTES).decode("utf-8-sig", "replace")
        return _of_file(content, "<stdin>", engine)
    is_name = "\n" not in name and " " not in name and "\0" not in name
    if is_name and (name.endswith((*_FLAT, ".sh")) or os.path.isfile(name)):
        content = "\n".join(_read(path) for path in (Path(name), *_drop_ins(name)))
        return _of_file(content, name, engine)
    return import_script(name, engine=engine, environ=os.environ)


def _of_file(content: str, name: str, engine: Engine | None) -> Draft:
    """Read a file as its suffix says; without one of YAML its first line decides, which a Makefile may have too."""
    if name.endswith(_FLAT):
        return import_yaml(content, name, engine)
    if not name.endswith(".sh") and _YAML.match(content):
        with contextlib.suppress(ConfigError):
            return import_yaml(content, name, engine)
    return import_script(content, name, engine, os.environ)


def _read(path: Path) -> str:
    return read_file(str(path), MAX_BYTES, may_be_pipe=True).decode("utf-8-sig", "replace")


def _drop_ins(name: str) -> list[Path]:
    """The files that systemd reads after a unit."""
    return sorted(Path(f"{name}.d").glob("*.conf")) if name.endswith(".service") else []


def _json(draft: Draft) -> str:
    return json.dumps(
        {
            "format_version": FORMAT_VERSION,
            "engine": draft.engine,
            "deployment": manifest_tree(draft),
            "manifest": manifest_text(draft),
            "left": left_records(draft.left),
            "notes": draft.notes,
            "variables": sorted({name for names in draft.secrets.values() for name in names}),
        },
        indent=2,
        ensure_ascii=False,
    )
