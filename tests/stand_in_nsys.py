"""A program in place of Nsight Systems: records its arguments, runs the command, and writes a report after its end."""

from __future__ import annotations

import sys
from pathlib import Path

_PROGRAM = """#!{python}
import json, os, subprocess, sys

words = sys.argv[1:]
first = next(index for index, word in enumerate(words) if index and not word.startswith("-"))
with open({record!r}, "a") as record:
    record.write(json.dumps(words) + "\\n")
code = subprocess.call(words[first:], close_fds=False)
(output,) = [word.removeprefix("--output=") for word in words if word.startswith("--output=")]
with open(output.replace("%p", str(os.getpid())) + ".nsys-rep", "w") as report:
    report.write(str(code))
sys.exit(code)
"""


def write_nsys(folder: Path) -> Path:
    """Writes `nsys` to the folder. Returns the file to which it adds its arguments, a line of JSON for each call."""
    record, program = folder / "calls.jsonl", folder / "nsys"
    program.write_text(_PROGRAM.format(python=sys.executable, record=str(record)))
    program.chmod(0o755)
    return record
