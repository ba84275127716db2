"""Finds where a text is code in Markdown: markers there are quoted, not written."""

from __future__ import annotations

import re

_MARK = re.compile(r"[\n`~]")
_TOKEN = re.compile(r"\n|`+|~+|[^\n`~]+")


class Prose:
    """The text since the last marker, as far as it decides whether the next character is in code."""

    __slots__ = ("_fence", "_in_code", "_is_start", "_last", "_run")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """A marker was read: a text begins."""
        self._fence = ""  # its character, while a fenced block is open
        self._in_code = False  # between two runs of backticks in one line
        self._is_start = True  # only white space since the line's beginning
        self._last = ""  # the character of the run at the end of the text
        self._run = 0  # its length

    @property
    def is_code(self) -> bool:
        if self._run and self._is_start and self._run >= 3:
            return self._fence != self._last
        if self._run and self._last == "`" and not self._fence:
            return not self._in_code
        return bool(self._fence) or self._in_code

    @property
    def is_line_start(self) -> bool:
        return self._is_start and not self._run

    def add(self, text: str) -> None:
        if not self._run and not _MARK.search(text):  # most tokens
            self._is_start = self._is_start and text.isspace()
            return
        for match in _TOKEN.finditer(text):
            token = match.group()
            if token[0] in "`~":
                if token[0] == self._last:
                    self._run += len(token)
                else:
                    self._end_run()
                    self._last, self._run = token[0], len(token)
                continue
            self._end_run()
            if token == "\n":
                self._in_code, self._is_start = False, True
            elif not token.isspace():
                self._is_start = False

    def _end_run(self) -> None:
        if not self._run:
            return
        if self._is_start and self._run >= 3:
            self._fence = "" if self._fence == self._last else self._fence or self._last
        elif self._last == "`" and not self._fence:
            self._in_code = not self._in_code
        self._last, self._run, self._is_start = "", 0, False
