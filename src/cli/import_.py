"""`engine import`: the manifest that says what a launch of another serving engine says."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ..config.diagnostics import FORMAT_VERSION
from ..config.errors import EXIT_WRONG_COMMAND_LINE, ConfigError
from ..config.importer.draft import Draft
from ..config.importer.launch import ENGINES, Engine
from ..config.importer.manifest import left_records, manifest_text, manifest_tree
from ..config.importer.read import import_flat, import_script, import_words, summary_of
from ..config.source.yaml import MAX_BYTES
from .console import say, tell

EXIT_LOST = 1
_FLAT = (".yaml", ".yml", ".json")


def run(what: Sequence[str], *, engine: str | None = None, output: str = "yaml", strict: bool = False) -> int:
    """Print the manifest on stdout and a count of what is in it on stderr. Returns the exit code."""
    if output not in ("yaml", "json"):
        tell(f"error: no such output `{output}`; there are yaml and json")
        return EXIT_WRONG_COMMAND_LINE
    known: Engine | None = next((name for name in ENGINES if name == engine), None)
    if engine is not None and known is None:
        tell(f"error: no such engine `{engine}`; there are {', '.join(ENGINES)}")
        return EXIT_WRONG_COMMAND_LINE
    if not what:
        tell("error: nothing to import: give a command line or a file\n  = more: engine import --help")
        return EXIT_WRONG_COMMAND_LINE
    try:
        draft = _draft(what, known)
    except ConfigError as error:
        tell(str(error))
        return error.exit_code
    except OSError as error:
        tell(f"error: cannot read `{what[0]}`: {(error.strerror or str(error)).lower()}")
        return EXIT_WRONG_COMMAND_LINE
    say(_json(draft) if output == "json" else manifest_text(draft).rstrip("\n"))
    counts = summary_of(draft)
    lost = counts["lost"]
    plural = "s" * (counts["options"] != 1)
    tell(f"{counts['options']} option{plural}, {lost} without a place in this build, {counts['needless']} not needed")
    return EXIT_LOST if strict and lost else 0


def _draft(what: Sequence[str], engine: Engine | None) -> Draft:
    if len(what) > 1:
        return import_words(what, engine)
    (name,) = what
    if name == "-":
        return import_script(sys.stdin.read(MAX_BYTES), "<stdin>", engine)
    is_name = "\n" not in name and " " not in name and "\0" not in name
    if is_name and (name.endswith((*_FLAT, ".sh")) or os.path.isfile(name)):
        with Path(name).open(encoding="utf-8-sig", errors="replace") as stream:
            content = stream.read(MAX_BYTES)
        return import_flat(content, name, engine) if name.endswith(_FLAT) else import_script(content, name, engine)
    return import_script(name, engine=engine)


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
