"""`engine init`: write a first deployment file, and beside it the schema that editors complete it from."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ..config.diagnostics import show
from ..config.errors import EXIT_FAILED, EXIT_INVALID_CONFIGURATION, EXIT_WRONG_COMMAND_LINE
from ..config.examine import report_on
from ..config.export import DRAFT_07, schema_text
from ..config.presets import preset_names
from ..config.resolve.machine import read_machine_facts
from ..config.source.text import printable
from ..config.starter import SCHEMA_FILE, starter
from ..config.suggest import close, did_you_mean
from .console import say, tell
from .files import write_whole

STDOUT = "-"


def run(
    file: str,
    *,
    model: str = "builtin:tiny",
    preset: str | None = None,
    is_full: bool = False,
    is_minimal: bool = False,
    force: bool = False,
) -> int:
    """Write `file`; `-` prints it. Returns the exit code: 1 if something is in the way."""
    if is_full and is_minimal:
        tell("error: --full and --minimal contradict each other")
        return EXIT_WRONG_COMMAND_LINE
    if preset is not None and preset not in preset_names():
        hint = did_you_mean(close(preset, preset_names())) or f"there are {', '.join(preset_names())}"
        tell(f"error: no such preset `{preset}`; {hint}")
        return EXIT_WRONG_COMMAND_LINE
    path = Path("deploy.yaml" if file == STDOUT else file)
    text = starter(_from(path, model), preset, is_full=is_full, name=printable(file if file != STDOUT else path.name))
    if problem := _problem(text, path):
        tell(problem)
        return EXIT_INVALID_CONFIGURATION
    if file == STDOUT:
        say(text.rstrip("\n"))
        tell(f"for completion in editors:  engine schema --draft-07 > {SCHEMA_FILE}")
        return 0
    schema = path.parent / SCHEMA_FILE
    try:
        if os.path.isdir(path) or (os.path.exists(path) and not force):
            kind = "a directory" if os.path.isdir(path) else "there already"
            fix = "" if os.path.isdir(path) else "\n  = fix: --force writes over it, another name writes beside it"
            tell(f"error: {path} is {kind}{fix}")
            return EXIT_FAILED
        write_whole(path, text)
        if _is_ours(schema) or force:
            write_whole(schema, schema_text(DRAFT_07))
        else:
            tell(f"warning: {schema} is no schema of deployments, so it was left as it is")
    except OSError as error:
        tell(f"error: cannot write {error.filename or path}: {(error.strerror or str(error)).lower()}")
        return EXIT_FAILED
    except ValueError:  # a null character in the name
        tell(f"error: cannot write {file!r}: no file name")
        return EXIT_FAILED
    say(f"wrote {path}, and {schema} for editors; next:\n  engine up {path}")
    return 0


def _from(path: Path, model: str) -> str:
    """A model's directory as seen from the file, since the file is what its relative paths go out from."""
    if path.parent == Path() or model.startswith(("/", "~")) or not os.path.isdir(model):
        return model
    found = os.path.relpath(model, path.parent)
    return found if found.startswith(".") else f"./{found}"


def _problem(text: str, path: Path) -> str:
    """What is wrong with the text as a deployment; empty if nothing is. Models that are not here count as right."""
    folder = path.parent if os.path.isdir(path.parent) else Path()
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".yaml", dir=_writable(folder)) as draft:
        draft.write(text)
        draft.flush()
        report = report_on([draft.name], [], read_machine_facts(), env={}, is_elsewhere=True)
        return show([finding for finding in report.errors if finding.path != "model.model"]).replace(
            draft.name, str(path)
        )


def _writable(folder: Path) -> Path | None:
    return folder if os.access(folder, os.W_OK) else None


def _is_ours(schema: Path) -> bool:
    """Whether the schema may be written: not there, or one of ours."""
    if not os.path.exists(schema):
        return True
    with schema.open("rb") as stream:
        return b'"Stoker deployment"' in stream.read(4096)
