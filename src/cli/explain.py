"""`engine explain`: what an option, rule, error code or preset means."""

from __future__ import annotations

import json

from ..config.diagnostics import FORMAT_VERSION
from ..config.explain import as_markdown, as_text, find
from .console import say, tell

EXIT_NOT_FOUND = 1
EXIT_WRONG_COMMAND_LINE = 2


def run(what: str, *, output: str = "text", recursive: bool = False) -> int:
    """Print the pages for `what`. Exit code 1 if nothing has that name or mentions it."""
    if output not in ("text", "json", "md"):
        tell(f"error: no such output `{output}`; there are text, json and md")
        return EXIT_WRONG_COMMAND_LINE
    pages = find(what, recursive)
    if not pages:
        tell(f"error: nothing is called or mentions `{what}`\n  = more: engine explain")
        return EXIT_NOT_FOUND
    if output == "json":
        say(json.dumps({"format_version": FORMAT_VERSION, "pages": [page.as_dict() for page in pages]}, indent=2))
    else:
        say(as_markdown(pages) if output == "md" else as_text(pages))
    return 0
