"""`engine init`: write a first deployment file, and next to it the schema for completion in editors."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ..config.diagnostics import show
from ..config.examine import report_on
from ..config.exit_codes import EXIT_FAILED, EXIT_INVALID_CONFIGURATION, EXIT_WRONG_COMMAND_LINE
from ..config.export import DRAFT_07, schema_text
from ..config.presets import preset_names
from ..config.resolve.machine import read_machine_spec
from ..config.source_text import printable
from ..config.starter import SCHEMA_FILE, starter
from ..config.suggest import close, did_you_mean
from .console import print_message, print_result
from .files import write_whole
from .flags.writing import InitFlags

STDOUT = "-"


def run(flags: InitFlags) -> int:
    """Write the file; `-` prints it. Returns the exit code: 1 if the file exists or cannot be written."""
    file, preset = flags.file, flags.preset
    if flags.full and flags.minimal:
        print_message("error: --full and --minimal contradict each other")
        return EXIT_WRONG_COMMAND_LINE
    if preset is not None and preset not in preset_names():
        hint = did_you_mean(close(preset, preset_names())) or f"there are {', '.join(preset_names())}"
        print_message(f"error: no such preset `{preset}`; {hint}")
        return EXIT_WRONG_COMMAND_LINE
    path = Path("deploy.yaml" if file == STDOUT else file)
    name = printable(file if file != STDOUT else path.name)
    text = starter(_from(path, flags.model), preset, is_full=flags.full, name=name)
    if problem := _problem(text, path):
        print_message(problem)
        return EXIT_INVALID_CONFIGURATION
    if file == STDOUT:
        print_result(text.rstrip("\n"))
        print_message(f"for completion in editors:  engine schema --draft-07 > {SCHEMA_FILE}")
        return 0
    schema = path.parent / SCHEMA_FILE
    try:
        if os.path.isdir(path) or (os.path.exists(path) and not flags.force):
            kind = "is a directory" if os.path.isdir(path) else "already exists"
            fix = "" if os.path.isdir(path) else "\n  = fix: --force overwrites it; or use another name"
            print_message(f"error: {path} {kind}{fix}")
            return EXIT_FAILED
        write_whole(path, text)
        if _is_ours(schema) or flags.force:
            write_whole(schema, schema_text(DRAFT_07))
        else:
            print_message(f"warning: {schema} is not a schema of deployments, so it was not changed")
    except OSError as error:
        print_message(f"error: cannot write {error.filename or path}: {(error.strerror or str(error)).lower()}")
        return EXIT_FAILED
    except ValueError:  # a null character in the name
        print_message(f"error: cannot write {file!r}: not a file name")
        return EXIT_FAILED
    print_result(f"wrote {path}, and {schema} for editors; next:\n  engine up {path}")
    return 0


def _from(path: Path, model: str) -> str:
    """A model's directory relative to the file, because paths in a file are relative to it."""
    if path.parent == Path() or model.startswith(("/", "~")) or not os.path.isdir(model):
        return model
    found = os.path.relpath(model, path.parent)
    return found if found.startswith(".") else f"./{found}"


def _problem(text: str, path: Path) -> str:
    """Errors of the text as a deployment; empty if there are none. A model that is not on this machine is no error."""
    folder = path.parent if os.path.isdir(path.parent) else Path()
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".yaml", dir=_writable(folder)) as draft:
        draft.write(text)
        draft.flush()
        report = report_on([draft.name], [], read_machine_spec(), env={}, is_elsewhere=True)
        return show([finding for finding in report.errors if finding.path != "model.model"]).replace(
            draft.name, str(path)
        )


def _writable(folder: Path) -> Path | None:
    return folder if os.access(folder, os.W_OK) else None


def _is_ours(schema: Path) -> bool:
    """Whether the schema may be written: it does not exist, or was written by this program."""
    if not os.path.exists(schema):
        return True
    with schema.open("rb") as stream:
        return b'"Stoker deployment"' in stream.read(4096)
