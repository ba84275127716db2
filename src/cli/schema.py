"""`engine schema`: the JSON Schema of deployment files, printed, written to schemas/, or compared with the files."""

from __future__ import annotations

from pathlib import Path

from ..config.exit_codes import EXIT_WRONG_COMMAND_LINE
from ..config.export import DRAFT_07, DRAFT_2020_12, FILES, schema_text
from .console import print_message, print_result

FOLDER = Path("schemas")
EXIT_STALE = 1


def run(*, check: bool = False, write: bool = False, draft_07: bool = False) -> int:
    """Returns 0; 1 if `check` finds a stale file; 2 for flags that contradict each other."""
    if check and write:
        print_message("error: --check and --write contradict each other")
        return EXIT_WRONG_COMMAND_LINE
    if not check and not write:
        print_result(schema_text(DRAFT_07 if draft_07 else DRAFT_2020_12).rstrip("\n"))
        return 0
    stale = 0
    for name, draft in FILES.items():
        file, content = FOLDER / name, schema_text(draft)
        if file.is_file() and file.read_text("utf-8") == content:
            continue
        if check:
            print_message(f"error: {file} is stale\n  = fix: engine schema --write")
            stale = EXIT_STALE
        else:
            FOLDER.mkdir(exist_ok=True)
            file.write_text(content, "utf-8")
            print_message(f"wrote {file}")
    return stale
