"""What a program has left on a terminal: runs it on a pseudo-terminal and keeps the lines, not the updates of them."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_CONTROL = re.compile(r"\x1b\[(\?)?([\d;]*)([A-Za-z])|\r|\n|[^\x1b\r\n]+")


def screen(text: str) -> list[str]:
    """The lines after all output: line feeds, carriage returns, erased lines and movements up are followed."""
    lines, row, column = [""], 0, 0
    for found in _CONTROL.finditer(text):
        part = found[0]
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            column = 0
        elif found[3] == "A":
            row = max(0, row - int(found[2] or 1))
        elif found[3] == "K":
            lines[row] = lines[row][:column] if found[2] in ("", "0") else ""
        elif not found[3]:
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines]


class TerminalProgram:
    """A program on a pseudo-terminal, until the end of the `with` block."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            command, cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self._text = ""
        self._draining = threading.Thread(target=self._drain, daemon=True)

    def lines_until(self, last: str, limit_s: float) -> list[str]:
        """The lines up to the first that matches the pattern `last`. Raises RuntimeError with all output otherwise."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            readable, _, _ = select.select([self._ours], [], [], 0.2)
            if readable and not self._read():
                break
            lines = screen(self._text)
            for number, line in enumerate(lines[:-1]):
                if re.match(last, line):
                    self._draining.start()
                    return lines[: number + 1]
        raise RuntimeError("the program did not write what was expected:\n" + "\n".join(screen(self._text)))

    def _read(self) -> bool:
        try:
            data = os.read(self._ours, 1 << 16)
        except OSError:  # it has ended
            return False
        self._text += data.decode(errors="replace")
        return bool(data)

    def _drain(self) -> None:
        """Read what there is, so that the program does not wait for its terminal."""
        while self._read():
            pass

    def __enter__(self) -> TerminalProgram:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._draining.ident is not None:
            self._draining.join()
        os.close(self._ours)
