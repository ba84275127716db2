"""`engine migrate`: deprecated names of a manifest in today's words, shown as a diff or written."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from ..config.diagnostics import show
from ..config.errors import EXIT_INVALID_CONFIGURATION, EXIT_WRONG_COMMAND_LINE, ConfigError
from ..config.migrate import migrate, shown_lines
from .console import say, tell
from .files import write_whole

EXIT_LEFT = 1


def run(file: str, *, write: bool = False) -> int:
    """Print what changes; with `write` change the file. Returns 1 if something has to be done by hand."""
    if file == "-":
        tell("error: migrate changes a file, and standard input is none")
        return EXIT_WRONG_COMMAND_LINE
    path = Path(file)
    try:
        text = path.read_bytes().decode()
        done = migrate(text, file, os.environ)
        if write and done.text != text:
            write_whole(path, done.text)
    except OSError as error:
        tell(f"error: cannot {'write' if error.filename != file else 'read'} {file}: {_reason(error)}")
        return EXIT_INVALID_CONFIGURATION
    except UnicodeDecodeError:
        tell(f"error: {file} is not UTF-8")
        return EXIT_INVALID_CONFIGURATION
    except ValueError:  # a null character in the name
        tell(f"error: cannot read {file!r}: no file name")
        return EXIT_INVALID_CONFIGURATION
    except ConfigError as error:
        tell(show(error.diagnostics))
        return error.exit_code
    if done.text != text:
        # what is shown is for reading: a diff that goes to a log must not carry the keys that stand beside a change
        before, after = (shown_lines(each, file, os.environ) for each in (text, done.text))
        say("\n".join(difflib.unified_diff(before, after, file, file, lineterm="")))
    for line in done.renamed:
        tell(line)
    if done.left:
        tell(show(done.left))
    if not done.renamed and not done.left:
        tell(f"{file}: nothing to migrate")
    elif done.renamed and not write:
        tell(f"nothing is written yet:  engine migrate {file} --write")
    return EXIT_LEFT if done.left else 0


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
