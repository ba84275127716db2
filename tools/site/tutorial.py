"""Run the commands of docs/guide/tutorial.md and write their output into the page, or, with --check, compare it.

The first YAML block of the page is `deploy.yaml`; the text describes how `mistake.yaml` and `new.yaml` differ from it.
The server of the page runs on a terminal and listens on a free port, which is written as 8000.

Output that is the same on every machine is compared as it is. Of the plan and of the start only the labels of lines are
compared: sizes, times, kernels and the name of the CPU differ. Of answers the id and the time are left out.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .terminal import TerminalProgram

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "tutorial.md"
START_LIMIT_S = 120
_BLOCK = re.compile(r"```console\n\$ (?P<command>(?:[^\n]*\\\n)*[^\n]*)\n(?P<output>.*?)```", re.DOTALL)
_YAML = re.compile(r"```yaml\n(.*?)```", re.DOTALL)
_SERVER = "engine up "
_OF_THIS_MACHINE = ("engine plan ", _SERVER)
# The label of a line in a table or tree, before at least two spaces. A line that begins deeper continues the last one.
_LABEL = re.compile(r"[ │├└─]{,8}(?P<label>[^\s│├└─]\S*(?: \S+)*?)(?: {2,}.*)?$")
_LOGGED = re.compile(r"\d\d:\d\d:\d\d ")  # such as the compilation of kernels on their first start
_OTHER_ID = re.compile(r'"(id|created)":("[^"]*"|[\d.]+)')


class Session:
    """Runs the commands of the page in order, in a folder with its files."""

    def __init__(self, text: str, folder: Path) -> None:
        self._text, self._folder = text, folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ENGINE__", "OPENAI_"))}
        self._environment = kept | {"CUDA_VISIBLE_DEVICES": "", "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
        self._server: TerminalProgram | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]

    def output(self, command: str) -> str:
        if command.startswith(_SERVER):
            return self._started(command)
        if command.startswith("engine"):
            words = shlex.split(command)[1:]
            if words[0] == "chat":
                words += ["--url", f"http://127.0.0.1:{self._port}/v1"]
            text = self._run([sys.executable, "-m", "stoker", *words])
            if words[0] == "init":
                write_files(self._text, self._folder)
        else:
            text = self._run(["sh", "-c", command.replace(":8000/", f":{self._port}/")])
        return excerpt(text) if command.startswith("engine plan ") else text.strip()

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(
            command,
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.stdout

    def _started(self, command: str) -> str:
        words = [sys.executable, "-m", "stoker", *shlex.split(command)[1:], "--port", str(self._port)]
        terminal = self._environment | {"TERM": "xterm"}
        del terminal["NO_COLOR"]  # with it, a start has no tree
        self._server = TerminalProgram(words, self._folder, terminal)
        lines = self._server.lines_until(r" *curl http", START_LIMIT_S)
        # A line of the log moves the tree, whose first line is then there twice.
        first = max(number for number, line in enumerate(lines) if line.startswith("stoker "))
        text = "\n".join(lines[first:]).replace(f":{self._port}", ":8000")
        return re.sub(r"\S+(?=/stoker/builtin/tiny)", "...", text)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        if self._server is not None:
            self._server.__exit__(*error)


def write_files(text: str, folder: Path) -> None:
    first = _YAML.search(text)
    assert first is not None
    deployment = first[1]
    (folder / "deploy.yaml").write_text(deployment)
    (folder / "mistake.yaml").write_text(deployment.replace("max_num_seqs", "max_num_seq"))
    (folder / "new.yaml").write_text(deployment.replace("max_num_seqs: 8", "max_num_seqs: 32"))


def excerpt(plan: str) -> str:
    """The verdict and the memory of a plan."""
    memory = re.search(r"^memory\n.*?(?=\n\n)", plan, re.DOTALL | re.MULTILINE)
    assert memory is not None, plan
    return "\n".join([plan.strip().splitlines()[0], "...", memory[0], "..."])


def blocks(text: str) -> Iterator[tuple[str, str, str]]:
    """Each command of the page, its output in the page, and its output now."""
    with tempfile.TemporaryDirectory() as folder, Session(text, Path(folder)) as session:
        for block in _BLOCK.finditer(text):
            yield block["command"], block["output"].strip("\n"), session.output(block["command"])


def updated(text: str) -> str:
    """The page with the current output of its commands."""
    outputs = iter([now for _, _, now in blocks(text)])
    return _BLOCK.sub(lambda block: f"```console\n$ {block['command']}\n{next(outputs)}\n```", text)


def compared(command: str, output: str) -> list[str]:
    """The lines of an output without what differs from one run or machine to another."""
    if not command.startswith(_OF_THIS_MACHINE):
        return _OTHER_ID.sub(r'"\1":...', output).splitlines()
    lines = [line for line in output.splitlines() if not _LOGGED.match(line)]
    labels = [found["label"] for line in lines if (found := _LABEL.match(line))]
    return [re.sub(r"(?<= on ).*(?=: )", "...", re.sub(r"\d[\d.]*", "N", label)) for label in labels]


def differences(text: str) -> list[str]:
    """Differences between the page and the current output; empty if the page is up to date."""
    found: list[str] = []
    for command, shown, now in blocks(text):
        before, after = compared(command, shown), compared(command, now)
        found += difflib.unified_diff(before, after, f"page: {command}", f"now: {command}", lineterm="", n=0)
    return found


def main() -> int:
    text = PAGE.read_text("utf-8")
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(updated(text), "utf-8")
        return 0
    if found := differences(text):
        print("\n".join(found), "error: docs/guide/tutorial.md is stale\n  = fix: make docs", sep="\n", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
