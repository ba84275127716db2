"""Output of the command: plain text, with colours on a terminal only."""

from __future__ import annotations

import os
import re
import sys
from typing import TextIO

_STYLES = (
    (re.compile(r"^(error(\[\w+\])?:)", re.MULTILINE), "1;31"),
    (re.compile(r"^(warning(\[\w+\])?:)", re.MULTILINE), "1;33"),
    (re.compile(r"^( +-->)", re.MULTILINE), "36"),
    (re.compile(r"^(?: +\|) ( *\^+.*)$", re.MULTILINE), "1;31"),
)


def is_coloured(stream: TextIO) -> bool:
    """Whether colours are used: on a terminal, and neither NO_COLOR nor TERM=dumb is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_result(text: str) -> None:
    """Print results, on stdout."""
    print(_painted(text, sys.stdout), flush=True)


def print_message(text: str) -> None:
    """Print messages, on stderr."""
    print(_painted(text, sys.stderr), file=sys.stderr, flush=True)


def _painted(text: str, stream: TextIO) -> str:
    encoding = stream.encoding or "utf-8"  # ASCII under LANG=C; file names may contain undecodable bytes
    text = text.encode(encoding, "backslashreplace").decode(encoding)
    if not is_coloured(stream):
        return text
    for pattern, style in _STYLES:
        text = pattern.sub(lambda match, style=style: _paint(match, style), text)  # type: ignore[misc]
    return text


def _paint(match: re.Match[str], style: str) -> str:
    start, end = match.start(1) - match.start(), match.end(1) - match.start()
    return f"{match[0][:start]}\x1b[{style}m{match[0][start:end]}\x1b[0m{match[0][end:]}"
