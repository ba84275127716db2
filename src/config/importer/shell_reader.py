"""A script's text to commands of words, with variables as forms that are filled in later. Nothing is run.

Comments, redirections and line continuations are taken out. Each command keeps the operator before it, and the
here-documents that it reads:

    A=1 vllm serve "my model" > log && cat <<END     ->  `A=1` `vllm` `serve` `my model`
    text                                                 && `cat`, with the document `text`
    END

Words are read by shell_words.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .shell_words import Word, WordReader

_BREAK = re.compile(r"\n|;;&?|;&|;|&&|&|\|\||\|&?|\(|\)")  # what ends a command
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")


@dataclass(slots=True)
class ReadCommand:
    after: str = "\n"  # the operator in front of it
    words: list[Word] = field(default_factory=list)
    documents: list[tuple[str, bool]] = field(default_factory=list)  # its here-documents, and whether they are quoted


@dataclass(frozen=True, slots=True)
class _Awaited:
    """A here-document that begins after this line: its last line, and the command that gets it."""

    end: str
    takes_tabs: bool  # `<<-`: tabs at the beginning of its lines are taken out
    is_quoted: bool
    command: ReadCommand


@dataclass(slots=True)
class Reader(WordReader):
    """Reads the commands of a text. `word` is the one that is read now."""

    commands: list[ReadCommand] = field(default_factory=lambda: [ReadCommand()])
    awaited: list[_Awaited] = field(default_factory=list)

    def read(self) -> list[ReadCommand]:
        while self.at < len(self.text):
            char = self._char()
            if self._take_part():
                continue
            if char in " \t\r":
                self._end_word()
                self.at += 1
            elif char == "#" and not self.word.has_begun:
                self._skip_comment()
            elif char in "<>":
                self._take_redirection()
            elif char == "(" and _ASSIGNMENT.fullmatch(self.word.text):
                self._take_array()
            elif found := _BREAK.match(self.text, self.at):
                self._end_command(found[0])
            else:
                self._add(char)
                self.at += 1
        self._end_word()
        return self.commands

    def _end_word(self) -> None:
        if self.word.has_begun:
            self.commands[-1].words.append(self.word)
        self.word = Word()

    def _end_command(self, operator: str) -> None:
        self._end_word()
        self.at += len(operator)
        self.commands.append(ReadCommand(operator))
        if operator == "\n":
            self._take_documents()

    def _skip_comment(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _take_array(self) -> None:
        """Take the elements of `NAME=(a b)`."""
        self.at -= 1  # so that the bracket is the one to close
        end = self._after_closing("(", ")")
        inner = Reader(self.text[self.at + 2 : end - 1])
        self.word.array = [word for command in inner.read() for word in command.words]
        self.at = end

    def _take_redirection(self) -> None:
        """Take out `> file`, `2>&1`, `<<< text` or `<< END`. `<(command)` is a word."""
        if self._char(1) == "(" and not self.word.has_begun:
            self._keep_until(self._after_closing("(", ")"))
            return
        if self.word.text.isdigit():  # the number of a file descriptor
            self.word = Word()
        self._end_word()
        start = self.at
        operator = self._take_all_of("<>&")
        takes_tabs = operator == "<<" and self._char() == "-"
        if takes_tabs:
            self.at += 1
        self._take_all_of(" \t")
        target = self._take_target()
        if operator == "<<" and target.text:
            is_quoted = target.is_quoted or "\\" in self.text[start : self.at]
            self.awaited.append(_Awaited(target.text, takes_tabs, is_quoted, self.commands[-1]))

    def _take_all_of(self, characters: str) -> str:
        start = self.at
        while self.at < len(self.text) and self.text[self.at] in characters:
            self.at += 1
        return self.text[start : self.at]

    def _take_target(self) -> Word:
        """Take the word after a redirection, which is not one of the command's."""
        while self.at < len(self.text) and self._char() not in " \t\r\n;|&":
            if not self._take_part():
                self._take_literal()
        target, self.word = self.word, Word()
        return target

    def _take_documents(self) -> None:
        """Take the here-documents that begin in this line out of the text."""
        for awaited in self.awaited:
            lines: list[str] = []
            while self.at < len(self.text):
                line = self._take_line().rstrip("\r")
                if awaited.takes_tabs:
                    line = line.lstrip("\t")
                if line == awaited.end:
                    break
                lines.append(line)
            awaited.command.documents.append(("\n".join(lines), awaited.is_quoted))
        self.awaited.clear()

    def _take_line(self) -> str:
        end = self.text.find("\n", self.at)
        if end < 0:
            end = len(self.text)
        line = self.text[self.at : end]
        self.at = min(end + 1, len(self.text))
        return line
