"""Run the commands of docs/guide/tutorial.md and write their output into the page, or, with --check, compare it.

Only commands whose output does not depend on the machine are run: `engine validate`, `diff` and `config`. The first
YAML block of the page is `deploy.yaml`; the text describes how `mistake.yaml` and `new.yaml` differ from it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "tutorial.md"
_BLOCK = re.compile(
    r"```console\n\$ (?P<command>engine (?:validate|diff|config) [^\n]*)\n(?P<output>.*?)```", re.DOTALL
)
_YAML = re.compile(r"```yaml\n(.*?)```", re.DOTALL)


def write_files(text: str, folder: Path) -> None:
    first = _YAML.search(text)
    assert first is not None
    deployment = first[1]
    (folder / "deploy.yaml").write_text(deployment)
    (folder / "mistake.yaml").write_text(deployment.replace("max_num_seqs", "max_num_seq"))
    (folder / "new.yaml").write_text(deployment.replace("max_num_seqs: 8", "max_num_seqs: 32"))


def updated(text: str) -> str:
    """The page with the current output of its commands."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ENGINE__")}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    with tempfile.TemporaryDirectory() as folder:
        write_files(text, Path(folder))

        def run(block: re.Match[str]) -> str:
            command = [sys.executable, "-m", "stoker", *shlex.split(block["command"])[1:]]
            done = subprocess.run(
                command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            return f"```console\n$ {block['command']}\n{done.stdout.strip()}\n```"

        return _BLOCK.sub(run, text)


def main() -> int:
    text = PAGE.read_text("utf-8")
    new = updated(text)
    if "--check" in sys.argv[1:]:
        if new != text:
            print("error: docs/guide/tutorial.md is stale\n  = fix: make docs", file=sys.stderr)
        return int(new != text)
    PAGE.write_text(new, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
