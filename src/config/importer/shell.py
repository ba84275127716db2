"""A script's text into commands and words, as far as a launch line needs it.

Quotes, escapes, line continuations, comments, redirections, `;` `&&` `|`, and variables that the script sets itself.
A word is in the form of a manifest: a dollar sign is `$$`, and a variable that the script does not set is `${NAME}`.
Nothing is run: `$(...)` and globs stay as they are written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:(:-|:\?)([^{}$]*))?\})")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_FILLED = re.compile(r"\$\$|\$\{([A-Za-z_]\w*)(?:(:-|:\?)([^{}]*))?\}")
_BREAKS = ";&|\n()"


class UnreadableShell(ValueError):
    """A quote that is not closed; `line` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass(slots=True)
class _Word:
    text: str = ""
    is_quoted: bool = False
    has_begun: bool = False


@dataclass(slots=True)
class _Reader:
    text: str
    at: int = 0
    commands: list[list[_Word]] = field(default_factory=lambda: [[]])
    word: _Word = field(default_factory=_Word)

    def read(self) -> list[list[_Word]]:
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "\\":
                self._escape()
            elif char in "'\"":
                self._quoted(char)
            elif char == "$":
                self._dollar()
            elif char in " \t\r":
                self._end_word()
                self.at += 1
            elif char == "#" and not self.word.has_begun:
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char in "<>":
                self._redirection()
            elif char in _BREAKS:
                self._end_word()
                self.commands.append([])
                self.at += 1
            else:
                self._add(char)
                self.at += 1
        self._end_word()
        return [command for command in self.commands if command]

    def _add(self, text: str) -> None:
        self.word.text += text
        self.word.has_begun = True

    def _end_word(self) -> None:
        if self.word.has_begun:
            self.commands[-1].append(self.word)
        self.word = _Word()

    def _escape(self) -> None:
        follows = self.text[self.at + 1 : self.at + 3]
        if follows[:1] == "\n" or follows == "\r\n":
            self.at += 2 + (follows == "\r\n")
        elif follows:
            self._add(literal(follows[0]))
            self.at += 2
        else:
            self.at += 1

    def _quoted(self, quote: str) -> None:
        start = self.at
        self.at += 1
        self.word.has_begun = self.word.is_quoted = True
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == quote:
                self.at += 1
                return
            if quote == '"' and char == "\\" and self.text[self.at + 1 : self.at + 2] in tuple('"\\$`\n'):
                escaped = self.text[self.at + 1]
                self._add("" if escaped == "\n" else literal(escaped))
                self.at += 2
            elif quote == '"' and char == "$":
                self._dollar()
            else:
                self._add(literal(char))
                self.at += 1
        raise UnreadableShell(f"the quote {quote} is not closed", self.text.count("\n", 0, start) + 1)

    def _dollar(self) -> None:
        match = _VARIABLE.match(self.text, self.at)
        if match is None:
            self._add("$$")
            self.at += 1
            return
        name, more = match[1] or match[2], f"{match[3]}{match[4]}" if match[3] else ""
        self._add(f"${{{name}{more}}}")
        self.at = match.end()

    def _redirection(self) -> None:
        """`> file`, `2>&1`, `<<< text`: taken out with what follows."""
        if self.word.text.isdigit():
            self.word = _Word()
        self._end_word()
        while self.at < len(self.text) and self.text[self.at] in "<>&":
            self.at += 1
        before = len(self.commands[-1])
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1
        while self.at < len(self.text) and self.text[self.at] not in " \t\r\n;|&":
            if self.text[self.at] in "'\"":
                self._quoted(self.text[self.at])
            else:
                self._add(literal(self.text[self.at]))
                self.at += 1
        self._end_word()
        del self.commands[-1][before:]


def literal(text: str) -> str:
    """Text in the form of a manifest, where `$` starts a variable."""
    return text.replace("$", "$$")


def commands_of(text: str) -> list[list[str]]:
    """The commands of a script in order, the variables it sets filled in. UnreadableShell for an open quote."""
    known: dict[str, str] = {}
    commands: list[list[str]] = []
    for written in _Reader(text).read():
        words = [part for word in written for part in _filled(word, known)]
        assigned = words[1:] if words[:1] in (["export"], ["declare"], ["local"], ["readonly"]) else words
        matches = [_ASSIGNMENT.fullmatch(word) for word in assigned]
        if assigned and all(matches):
            known |= {match[1]: match[2] for match in matches if match is not None}
            if words[0] == "export":
                commands.append(assigned)
        elif words:
            commands.append(words)
    return commands


def _filled(word: _Word, known: dict[str, str]) -> Iterable[str]:
    def fill(match: re.Match[str]) -> str:
        return known.get(match[1], match[0]) if match[1] else match[0]

    text = _FILLED.sub(fill, word.text)
    if text == word.text or word.is_quoted:
        return [text]
    return text.split()  # a variable without quotes may hold several words


def assignment(word: str) -> tuple[str, str] | None:
    """Name and value of `NAME=value`."""
    match = _ASSIGNMENT.fullmatch(word)
    return (match[1], match[2]) if match else None
