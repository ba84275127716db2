"""A script's text to commands of words, with variables as forms that are filled in later. Nothing is run.

Reads quotes, escapes, line continuations, comments, redirections, here-documents, `;` `&&` `|` and arrays. Words are
in the form of words.py: an expansion that would have to run something is kept as it is written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .words import PLACE, literal, undecided

NAME = re.compile(r"[A-Za-z_]\w*")
FORM = re.compile(r"([A-Za-z_]\w*)(\[[@*]\])?(.*)", re.DOTALL)
_BREAK = re.compile(r"\n|;;&?|;&|;|&&|&|\|\||\|&?|\(|\)")
_DEFAULTS = (":-", ":=", ":?", ":+")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}


class UnreadableShell(ValueError):
    """A quote that is not closed; `line` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass(slots=True)
class Word:
    text: str = ""
    is_quoted: bool = False
    has_begun: bool = False
    array: list[Word] | None = None


@dataclass(slots=True)
class ReadCommand:
    after: str = "\n"  # the operator in front of it
    words: list[Word] = field(default_factory=list)
    documents: list[tuple[str, bool]] = field(default_factory=list)  # its here-documents, and whether they are quoted


@dataclass(frozen=True, slots=True)
class _Awaited:
    """A here-document that begins after this line: its last line, and the command that gets it."""

    end: str
    takes_tabs: bool
    is_quoted: bool
    command: ReadCommand


@dataclass(slots=True)
class Reader:
    """Text to commands of words, with variables as forms that are filled in later."""

    text: str
    at: int = 0
    commands: list[ReadCommand] = field(default_factory=lambda: [ReadCommand()])
    word: Word = field(default_factory=Word)
    awaited: list[_Awaited] = field(default_factory=list)

    def read(self) -> list[ReadCommand]:
        while self.at < len(self.text):
            char = self.text[self.at]
            if self._part():
                continue
            if char in " \t\r":
                self._end_word()
                self.at += 1
            elif char == "#" and not self.word.has_begun:
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char in "<>":
                self._redirection()
            elif char == "(" and re.fullmatch(r"[A-Za-z_]\w*\+?=", self.word.text):
                self._array()
            elif found := _BREAK.match(self.text, self.at):
                self._end_word()
                self.at = found.end()
                self.commands.append(ReadCommand(found[0]))
                if found[0] == "\n":
                    self._documents()
            else:
                self._add(char)
                self.at += 1
        self._end_word()
        return self.commands

    def as_document(self) -> str:
        """The whole text as a here-document without quotes: expansions, and a backslash before a few characters."""
        while self.at < len(self.text):
            char, follows = self.text[self.at], self.text[self.at + 1 : self.at + 2]
            if char == "\\" and follows in ("\\", "$", "`"):
                self._add(literal(follows))
                self.at += 2
            elif char == "\\" and follows == "\n":
                self.at += 2
            elif char not in "$`" or not self._part():
                self._add(literal(char))
                self.at += 1
        return self.word.text

    def as_one_word(self) -> str:
        """The whole text as one word, as in the default of a variable."""
        while self.at < len(self.text):
            if not self._part():
                self._add(literal(self.text[self.at]))
                self.at += 1
        return self.word.text

    def _part(self) -> bool:
        """Read an escape, a quoted part or an expansion, if there is one here."""
        char = self.text[self.at]
        if char == "\\":
            self._escape()
        elif char in "'\"":
            self._quoted(char)
        elif char == "$":
            self._dollar()
        elif char == "`":
            end = self._closing_backtick()
            self._keep(end)
        elif found := PLACE.match(self.text, self.at):
            self._keep(found.end())
        elif char == "\0":
            end = self.text.find("\0", self.at + 1)
            self._add(undecided(self.text[self.at + 1 : end if end > 0 else len(self.text)]))
            self.at = end + 1 if end > 0 else len(self.text)
        else:
            return False
        return True

    def _add(self, text: str) -> None:
        self.word.text += text
        self.word.has_begun = True

    def _keep(self, end: int) -> None:
        """Keep the text up to `end` as an expansion that nothing here evaluates."""
        self._add(undecided(self.text[self.at : end]))
        self.at = end

    def _end_word(self) -> None:
        if self.word.has_begun:
            self.commands[-1].words.append(self.word)
        self.word = Word()

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
            elif char == "\0" or (quote == '"' and char in "$`"):
                self._part()
            else:
                self._add(literal(char))
                self.at += 1
        raise UnreadableShell(f"the quote {quote} is not closed", self.text.count("\n", 0, start) + 1)

    def _dollar(self) -> None:
        follows = self.text[self.at + 1 : self.at + 2]
        if follows == "(":
            self._keep(self._closing("(", ")"))
        elif follows == "{":
            end = self._closing("{", "}")
            self._braces(self.text[self.at + 2 : end - 1], end)
        elif name := NAME.match(self.text, self.at + 1):
            self._add(f"${{{name[0]}}}")
            self.at = name.end()
        elif follows == "'" and not self.word.is_quoted:
            self._escaped_quotes()
        elif follows == '"' and not self.word.is_quoted:
            self.at += 1
        elif follows and follows in "0123456789@*#?$!-":
            self._keep(self.at + 2)
        else:
            self._add("$$")
            self.at += 1

    def _braces(self, body: str, end: int) -> None:
        """`${...}`: a form that is filled in later, or kept where only a shell can evaluate it."""
        found = FORM.fullmatch(body)
        rest = found[3] if found else ""
        if found and (not rest or rest.startswith(_DEFAULTS) or rest == "-"):
            operator = ":-" if rest == "-" else rest[:2].replace(":=", ":-")
            inner = Reader(rest[2:]).as_one_word()
            self._add(f"${{{found[1]}{found[2] or ''}{operator}{inner}}}")
            self.at = end
        elif found and not found[2] and rest[0] in "%#" and not re.search(r"[$`\\'\"}\0]", rest):
            self._add(f"${{{body}}}")
            self.at = end
        else:
            self._keep(end)

    def _escaped_quotes(self) -> None:
        """`$'...'`, with the escapes of C."""
        start = self.at
        end = start + 2
        while end < len(self.text) and self.text[end] != "'":
            end += 1 + (self.text[end] == "\\")
        if end >= len(self.text):
            raise UnreadableShell("the quote ' is not closed", self.text.count("\n", 0, start) + 1)
        body = re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[0]), self.text[start + 2 : end])
        self._add(literal(body))
        self.word.is_quoted = True
        self.at = end + 1

    def _closing(self, opening: str, closing: str) -> int:
        """Index after the bracket that closes the one at `at + 1`; quotes within are passed over."""
        depth, quote = 0, ""
        at = self.at + 1
        while at < len(self.text):
            char = self.text[at]
            if char == "\\" and quote != "'":
                at += 1
            elif quote:
                quote = "" if char == quote else quote
            elif char in "'\"" and self.text.find(char, at + 1) > 0:
                quote = char
            elif char == opening:
                depth += 1
            elif char == closing:
                depth -= 1
                if not depth:
                    return at + 1
            at += 1
        raise UnreadableShell(f"`${opening}` is not closed", self.text.count("\n", 0, self.at) + 1)

    def _closing_backtick(self) -> int:
        at = self.at + 1
        while at < len(self.text):
            if self.text[at] == "`":
                return at + 1
            at += 1 + (self.text[at] == "\\")
        raise UnreadableShell("a backtick is not closed", self.text.count("\n", 0, self.at) + 1)

    def _array(self) -> None:
        """`NAME=(a b)`: the words are the array's elements."""
        self.at -= 1  # so that the bracket is the one to close
        end = self._closing("(", ")")
        inner = Reader(self.text[self.at + 2 : end - 1])
        self.word.array = [word for command in inner.read() for word in command.words]
        self.at = end

    def _redirection(self) -> None:
        """`> file`, `2>&1`, `<<< text`, `<< END`: taken out with what follows. `<(command)` is a word."""
        if self.text[self.at + 1 : self.at + 2] == "(" and not self.word.has_begun:
            self._keep(self._closing("(", ")"))
            return
        if self.word.text.isdigit():
            self.word = Word()
        self._end_word()
        start = self.at
        while self.at < len(self.text) and self.text[self.at] in "<>&":
            self.at += 1
        operator = self.text[start : self.at]
        takes_tabs = operator == "<<" and self.text[self.at : self.at + 1] == "-"
        self.at += takes_tabs
        before = len(self.commands[-1].words)
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1
        while self.at < len(self.text) and self.text[self.at] not in " \t\r\n;|&":
            if not self._part():
                self._add(literal(self.text[self.at]))
                self.at += 1
        if operator == "<<" and self.word.text:
            is_quoted = self.word.is_quoted or "\\" in self.text[start : self.at]
            self.awaited.append(_Awaited(self.word.text, takes_tabs, is_quoted, self.commands[-1]))
        self._end_word()
        del self.commands[-1].words[before:]

    def _documents(self) -> None:
        """Take the here-documents that begin in this line out of the text."""
        for awaited in self.awaited:
            lines: list[str] = []
            while self.at < len(self.text):
                line, newline, _ = self.text[self.at :].partition("\n")
                self.at += len(line) + len(newline)
                line = line.rstrip("\r").lstrip("\t") if awaited.takes_tabs else line.rstrip("\r")
                if line == awaited.end:
                    break
                lines.append(line)
            awaited.command.documents.append(("\n".join(lines), awaited.is_quoted))
        self.awaited.clear()
