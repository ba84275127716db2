"""`engine migrate`: replaces deprecated names of a manifest, shown as a diff or written."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from ..config.diagnostics import show
from ..config.errors import ConfigError
from ..config.exit_codes import EXIT_INVALID_CONFIGURATION, EXIT_WRONG_COMMAND_LINE
from ..config.migrate import migrate, shown_lines
from ..config.source.yaml import MAX_BYTES
from ..input_file import read_file
from .console import print_message, print_result
from .files import write_whole

EXIT_LEFT = 1


def run(file: str, *, write: bool = False) -> int:
    """Print the changes; with `write` change the file. Returns 1 if something has to be changed by hand."""
    if file == "-":
        print_message("error: migrate changes a file; standard input cannot be changed")
        return EXIT_WRONG_COMMAND_LINE
    path = Path(file)
    try:
        text = read_file(path, MAX_BYTES).decode()
        done = migrate(text, file, os.environ)
        if write and done.text != text:
            write_whole(path, done.text)
    except OSError as error:
        print_message(f"error: cannot {'write' if error.filename != file else 'read'} {file}: {_reason(error)}")
        return EXIT_INVALID_CONFIGURATION
    except UnicodeDecodeError:
        print_message(f"error: {file} is not UTF-8")
        return EXIT_INVALID_CONFIGURATION
    except ValueError:  # a null character in the name
        print_message(f"error: cannot read {file!r}: not a file name")
        return EXIT_INVALID_CONFIGURATION
    except ConfigError as error:
        print_message(show(error.diagnostics))
        return error.exit_code
    if done.text != text:
        # the diff is for reading: in a log it must not contain secrets in the lines around a change
        before, after = (shown_lines(each, file, os.environ) for each in (text, done.text))
        print_result("\n".join(difflib.unified_diff(before, after, file, file, lineterm="")))
    for line in done.renamed:
        print_message(line)
    if done.left:
        print_message(show(done.left))
    if not done.renamed and not done.left:
        print_message(f"{file}: nothing to migrate")
    elif done.renamed and not write:
        print_message(f"the file was not changed; to change it:  engine migrate {file} --write")
    return EXIT_LEFT if done.left else 0


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
