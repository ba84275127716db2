"""Questions from a terminal or a pipe, one after another; answers are printed while they are generated."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from .console import print_message
from .remote import RemoteError


def talk(answer: Callable[[str], Iterator[str]], quick: str | None, greeting: str) -> int:
    """Returns the exit code.

    answer: yields the parts of the answer to one text. quick: ask only this.
    Questions are read from standard input; prompts and greeting are shown on a terminal only.
    """
    if quick is not None:
        return _show(answer(quick))
    is_typed = sys.stdin.isatty()
    if is_typed:
        print_message(greeting)
    code = 0
    while True:
        try:
            text = input("> " if is_typed else "")
        except EOFError:
            return code
        except KeyboardInterrupt:
            print_message("")
            return code
        if not text.strip():
            if is_typed:
                return code
            continue
        failed = _show(answer(text))
        if not is_typed:
            code = code or failed


def _show(pieces: Iterator[str]) -> int:
    """Ctrl-C ends this answer only: closing the connection makes the server stop generating."""
    try:
        for piece in pieces:
            print(piece, end="", flush=True)
        print(flush=True)
    except KeyboardInterrupt:
        print(flush=True)
        return 130
    except RemoteError as error:
        print_message(f"error: {error}")
        return 1
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            close()
    return 0
