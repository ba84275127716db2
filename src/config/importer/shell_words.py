"""Words of a shell: quotes, escapes and expansions, in the form of words.py. Nothing is run.

What comes in is text of a script; what goes out is a word whose variables are filled in later. An expansion that would
have to run something is kept as it is written, between two NUL characters:

    a"b c"$HOME    ->  ab c${HOME}
    '$5'$(date)    ->  $$5 and the expansion $(date)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .words import PLACE, literal, undecided

NAME = re.compile(r"[A-Za-z_]\w*")
FORM = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<all>\[[@*]\])?(?P<operation>.*)", re.DOTALL)  # within ${}
_DEFAULTS = (":-", ":=", ":?", ":+")
_NEEDS_SHELL = re.compile(r"[$`\\'\"}\0]")  # in a pattern that is removed from a value
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}


class UnreadableShell(ValueError):
    """A quote that is not closed; `line` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass(slots=True)
class Word:
    text: str = ""
    is_quoted: bool = False  # at least in part
    has_begun: bool = False  # also an empty word in quotes has
    array: list[Word] | None = None  # elements, in `NAME=(a b)`


@dataclass(slots=True)
class WordReader:
    """Reads a text from `at` on, and adds to `word` what it means."""

    text: str
    at: int = 0
    word: Word = field(default_factory=Word)

    def as_document(self) -> str:
        """The whole text as a here-document without quotes: expansions, and a backslash before a few characters."""
        while self.at < len(self.text):
            char, follows = self._char(), self._char(1)
            if char == "\\" and follows in ("\\", "$", "`"):
                self._add(literal(follows))
                self.at += 2
            elif char == "\\" and follows == "\n":
                self.at += 2
            elif char not in "$`" or not self._take_part():
                self._take_literal()
        return self.word.text

    def as_one_word(self) -> str:
        """The whole text as one word, as in the default of a variable."""
        while self.at < len(self.text):
            if not self._take_part():
                self._take_literal()
        return self.word.text

    def _char(self, offset: int = 0) -> str:
        """A character from the present place on; empty after the end."""
        return self.text[self.at + offset : self.at + offset + 1]

    def _add(self, text: str) -> None:
        self.word.text += text
        self.word.has_begun = True

    def _take_literal(self) -> None:
        self._add(literal(self._char()))
        self.at += 1

    def _keep_until(self, end: int) -> None:
        """Keep the text up to `end` as an expansion that nothing here evaluates."""
        self._add(undecided(self.text[self.at : end]))
        self.at = end

    def _take_part(self) -> bool:
        """Take an escape, a quoted part or an expansion, if there is one here."""
        char = self._char()
        if char == "\\":
            self._take_escape()
        elif char in "'\"":
            self._take_quoted(char)
        elif char == "$":
            self._take_dollar()
        elif char == "`":
            self._keep_until(self._after_backtick())
        elif place := PLACE.match(self.text, self.at):
            self._keep_until(place.end())
        elif char == "\0":
            self._take_undecided()
        else:
            return False
        return True

    def _take_escape(self) -> None:
        self.at += 1
        if self.text.startswith("\r\n", self.at):
            self.at += 2
        elif self._char() == "\n":
            self.at += 1
        elif self._char():
            self._take_literal()

    def _take_undecided(self) -> None:
        """Take what an earlier reader has kept between two NUL characters."""
        end = self.text.find("\0", self.at + 1)
        if end < 0:
            end = len(self.text)
        self._add(undecided(self.text[self.at + 1 : end]))
        self.at = min(end + 1, len(self.text))

    def _take_quoted(self, quote: str) -> None:
        start = self.at
        self.at += 1
        self.word.has_begun = self.word.is_quoted = True
        while self.at < len(self.text):
            char = self._char()
            if char == quote:
                self.at += 1
                return
            if quote == '"' and char == "\\" and self._char(1) in tuple('"\\$`\n'):
                self._take_escape()
            elif char == "\0" or (quote == '"' and char in "$`"):
                self._take_part()
            else:
                self._take_literal()
        raise self._unclosed(f"the quote {quote}", start)

    def _take_dollar(self) -> None:
        follows = self._char(1)
        if follows == "(":
            self._keep_until(self._after_closing("(", ")"))
        elif follows == "{":
            self._take_braces()
        elif name := NAME.match(self.text, self.at + 1):
            self._add(f"${{{name[0]}}}")
            self.at = name.end()
        elif follows == "'" and not self.word.is_quoted:
            self._take_escaped_quotes()
        elif follows == '"' and not self.word.is_quoted:
            self.at += 1
        elif follows and follows in "0123456789@*#?$!-":
            self._keep_until(self.at + 2)
        else:
            self._take_literal()

    def _take_braces(self) -> None:
        """Take `${...}`: a form that is filled in later, or kept where only a shell can evaluate it."""
        end = self._after_closing("{", "}")
        body = self.text[self.at + 2 : end - 1]
        form = FORM.fullmatch(body)
        operation = form["operation"] if form else ""
        if form and (operation in ("", "-") or operation.startswith(_DEFAULTS)):
            self._add(_with_default(form))
            self.at = end
        elif form and not form["all"] and operation[0] in "%#" and not _NEEDS_SHELL.search(operation):
            self._add(f"${{{body}}}")
            self.at = end
        else:
            self._keep_until(end)

    def _take_escaped_quotes(self) -> None:
        """Take `$'...'`, with the escapes of C."""
        start = self.at
        end = start + 2
        while end < len(self.text) and self.text[end] != "'":
            end = self._after_character(end)
        if end >= len(self.text):
            raise self._unclosed("the quote '", start)
        body = re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[0]), self.text[start + 2 : end])
        self._add(literal(body))
        self.word.is_quoted = True
        self.at = end + 1

    def _after_closing(self, opening: str, closing: str) -> int:
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
        raise self._unclosed(f"`${opening}`", self.at)

    def _after_backtick(self) -> int:
        """Index after the backtick that closes the one at `at`."""
        at = self.at + 1
        while at < len(self.text):
            if self.text[at] == "`":
                return at + 1
            at = self._after_character(at)
        raise self._unclosed("a backtick", self.at)

    def _after_character(self, at: int) -> int:
        """Index after a character, or after a backslash and the character that it escapes."""
        return at + 2 if self.text[at] == "\\" else at + 1

    def _unclosed(self, what: str, start: int) -> UnreadableShell:
        return UnreadableShell(f"{what} is not closed", self.text.count("\n", 0, start) + 1)


def _with_default(form: re.Match[str]) -> str:
    """A variable and, if it has one, what it is without a value. `${A:=b}` and `${A-}` are written as `:-`."""
    operation = form["operation"]
    operator = operation[:2]
    if operator in (":=", "-"):
        operator = ":-"
    default = WordReader(operation[2:]).as_one_word()
    return f"${{{form['name']}{form['all'] or ''}{operator}{default}}}"
