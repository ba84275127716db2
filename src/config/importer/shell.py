"""The commands of a script, as far as a launch line needs them. Nothing is run.

shell_reader.py divides the text into words. This module fills in the variables and arrays that the script sets itself,
with what its branches and loops make of them. A variable whose value depends on a branch or a loop is undecided: its
words are in the form of words.py.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from .shell_reader import ReadCommand, Reader
from .shell_words import FORM, NAME, UnreadableShell, Word
from .words import as_written, fields, is_undecided, names_a_secret, redacted, undecided

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
# Files that set up an environment of Python, or of a shell.
_ACTIVATES = re.compile(r"(^activate$|/bin/activate|/conda\.sh|\.bashrc|/etc/profile)")
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_EXPORTS = re.compile(r"-\w*x")  # an option of declare
_EXPORTS_ALL = re.compile(r"([-+])\w*a\w*|([-+])o allexport")  # options of set
_OPENS = ("if", "while", "until", "for", "case", "select")
_ENDS = ("fi", "done", "esac")
_CONTINUES = ("elif", "else")
KEYWORDS = frozenset((*_OPENS, *_ENDS, *_CONTINUES, "then", "do", "{", "}", "!", "time", "function"))
Value = str | list[str]


@dataclass(slots=True)
class Command:
    """Words of one command. `used`: variables of the script that they are made of; `exported`: NAME=value so far."""

    words: list[str]
    used: set[str]
    exported: dict[str, str]


@dataclass(slots=True)
class Script:
    """What a script runs, in order.

    documents: its here-documents, which may be scripts.
    files: what it reads further variables from.
    notes: by variable, what a branch or a loop sets it to.
    private: variables that it sets and does not export.
    """

    commands: list[Command] = field(default_factory=list)
    documents: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Branching:
    """An `if`, a `case` or a loop that is still open: the variables before it, and after each of its branches."""

    before: dict[str, Value]
    results: list[dict[str, Value]] = field(default_factory=list)
    is_complete: bool = False  # one of the branches is taken in any case


@dataclass(slots=True)
class _Interpreter:
    """Follows the assignments of a script, and records its commands with the variables filled in."""

    known: dict[str, Value]
    script: Script = field(default_factory=Script)
    exported: dict[str, str] = field(default_factory=dict)
    stack: list[_Branching] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    tested: bool = False  # the command before is a test
    exports_all: bool = False  # after `set -a`

    def run(self, commands: list[ReadCommand]) -> None:
        for command in commands:
            if command.after.startswith(";;") and self.stack:
                self._next_branch()
            words = list(command.words)
            while words and not words[0].is_quoted and words[0].text in KEYWORDS:
                keyword = words.pop(0).text
                self._keyword(keyword, words)
                if keyword in ("for", "case", "select"):
                    words = []
            if words:
                self._command(words, command.after)
            self.script.documents += [self._document(*document) for document in command.documents]
        while self.stack:
            self._end_branches()

    def _document(self, text: str, is_quoted: bool) -> str:
        """A here-document as its reader gets it; what only the running script can evaluate is between NULs."""
        if is_quoted:
            return text
        with contextlib.suppress(UnreadableShell):
            reader = Reader(text)
            reader.word.is_quoted = True  # `$'` is no quote here
            filled = self._fill(reader.as_document())
            return re.sub(r"(\0[^\0]*\0)|\$\$", lambda match: match[1] or "$", filled)
        return text

    def _keyword(self, keyword: str, words: list[Word]) -> None:
        if keyword in _OPENS:
            self.stack.append(_Branching(dict(self.known)))
            if keyword in ("for", "select") and words:
                values = [_joined(word.text) for word in words[2:]]
                self.known[words[0].text] = undecided(f"${words[0].text}")
                self.script.notes[words[0].text] = f"A loop of the script sets `{words[0].text}`: {' '.join(values)}."
        elif keyword in _CONTINUES and self.stack:
            self._next_branch()
            self.stack[-1].is_complete = keyword == "else"
        elif keyword in _ENDS and self.stack:
            self._end_branches()

    def _next_branch(self) -> None:
        self.stack[-1].results.append(self.known)
        self.known = dict(self.stack[-1].before)

    def _end_branches(self) -> None:
        branching = self.stack.pop()
        results = [*branching.results, self.known]
        if not branching.is_complete:
            results.append(branching.before)
        self._join(branching.before, results)

    def _join(self, before: Mapping[str, Value], results: list[dict[str, Value]]) -> None:
        """Join branches: a variable that they leave with different values is undecided, what they add to it too."""
        self.known = {}
        self._join_values(before, results)
        self.exported |= {name: value for name in self.exported if isinstance(value := self.known.get(name), str)}

    def _join_values(self, before: Mapping[str, Value], results: list[dict[str, Value]]) -> None:
        for name in dict.fromkeys(name for result in results for name in result):
            values = [result.get(name) for result in results]
            first, old = values[0], before.get(name)
            if first is not None and all(value == first for value in values):
                self.known[name] = first
                continue
            some = [value for value in values if value is not None and value != old]
            if isinstance(old, list):
                added = [value[len(old) :] for value in some if isinstance(value, list) and value[: len(old)] == old]
                if len(added) == len(some):
                    self.known[name] = [*old, *(undecided(_joined(more)) for more in added)]
                    continue
            if isinstance(old, str) and old and all(isinstance(value, str) and value.startswith(old) for value in some):
                more = [value[len(old) :] for value in some if isinstance(value, str)]
                self.known[name] = old + " ".join(f" {undecided(_joined(part))}" for part in more)
                continue
            self.known[name] = undecided(f"${name}")
            if not names_a_secret(name) and self.known[name] not in some:
                all_values = [old, *(value for value in values if value != old)]
                shown = dict.fromkeys(_joined(value) for value in all_values if value is not None)
                said = " or ".join(f"`{value}`" if value else "nothing" for value in shown)
                self.script.notes[name] = f"Branches of the script set `{name}`: {said}."

    def _command(self, words: list[Word], operator: str) -> None:
        first = words[0].text
        declares = first in _DECLARES
        marked = declares and any(_EXPORTS.match(word.text) for word in words[1:])
        exports = self.exports_all or first == "export" or marked
        assigned = [word for word in words[1:] if not word.text.startswith("-")] if declares else words
        matches = [_ASSIGNMENT.fullmatch(word.text) for word in assigned]
        was_tested, self.tested = self.tested, first in ("[", "[[", "test") or words[-1].text in ("]", "]]")
        if assigned and all(matches):
            before = dict(self.known)
            for word, match in zip(assigned, matches, strict=True):
                assert match is not None
                self._assign(word, match, exports)
            if operator == "||" or (operator == "&&" and was_tested):
                self._join(before, [dict(self.known), before])
            return
        if declares:
            self._declare(exports, assigned)
            return
        if first == "set" and (found := _EXPORTS_ALL.fullmatch(" ".join(word.text for word in words[1:]))):
            self.exports_all = "-" in (found[1], found[2])
        if first == "eval":
            self.script.files += [as_written(word.text) for word in words[1:] if is_undecided(word.text)]
        if first in ("source", "."):
            self.script.files += [name for word in words[1:2] if not _ACTIVATES.search(name := as_written(word.text))]
        before_it = set(self.used)  # by assignments
        filled = [part for word in words for part in self._filled(word)]
        self.script.commands.append(Command(filled, self.used, dict(self.exported)))
        self.used = before_it

    def _declare(self, exports: bool, words: list[Word]) -> None:
        """`export NAME`, `export $(cat .env)`, and mixtures of these with assignments."""
        for word in words:
            if match := _ASSIGNMENT.fullmatch(word.text):
                self._assign(word, match, exports)
            elif exports and (is_undecided(word.text) or "$" in word.text):
                self.script.files.append(as_written(word.text))
            elif exports and NAME.fullmatch(word.text):
                value = self.known.get(word.text, f"${{{word.text}}}")  # else from the environment, or from `read`
                if isinstance(value, str):
                    self.exported[word.text] = value

    def _assign(self, word: Word, match: re.Match[str], is_exported: bool) -> None:
        name, adds = match[1], bool(match[2])
        old = self.known.get(name)
        value: Value
        if word.array is not None:
            value = [part for item in word.array for part in self._filled(item)]
            if adds:
                value = [*(old if isinstance(old, list) else [old] if old else []), *value]
        else:
            value = self._fill(match[3])
            if adds:
                value = f"{old if isinstance(old, str) else ''}{value}"
        self.known[name] = value
        if isinstance(value, str) and (is_exported or name in self.exported):
            self.exported[name] = value

    def _filled(self, word: Word) -> list[str]:
        whole = re.fullmatch(r"\$\{([A-Za-z_]\w*)\[[@*]\]\}", word.text)
        if whole and isinstance(value := self.known.get(whole[1]), list):
            self.used.add(whole[1])
            return list(value)
        text = self._fill(word.text)
        if text == word.text or word.is_quoted:
            return [text]
        return fields(text)  # a variable without quotes may hold several words

    def _fill(self, text: str) -> str:
        """The text with the variables that the script sets."""
        return "".join(self._parts(text))

    def _parts(self, text: str) -> Iterator[str]:
        at = 0
        while at < len(text):
            if text[at] == "\0":
                end = text.index("\0", at + 1) + 1
                yield text[at:end]
            elif text.startswith("$$", at):
                end = at + 2
                yield "$$"
            elif text.startswith("${", at):
                end = _end_of_form(text, at)
                yield self._form(text[at:end])
            else:
                end = at + 1
                yield text[at]
            at = end

    def _form(self, form: str) -> str:
        found = FORM.fullmatch(form[2:-1])
        if found is None:
            return form
        name, index, rest = found[1], found[2], found[3]
        value = self.known.get(name)
        if value is not None:
            self.used.add(name)
        text = " ".join(value) if isinstance(value, list) else value
        if rest.startswith(("%", "#")):
            is_plain = text is not None and not is_undecided(text) and "${" not in text
            return _trimmed(text, rest) if is_plain and text is not None else undecided(as_written(form))
        if rest.startswith(":+"):
            inner = self._fill(rest[2:])
            return undecided(as_written(form)) if text is None or is_undecided(text) else inner if text else ""
        if text or (text is not None and not rest):
            return text
        if rest.startswith(":-"):
            inner = self._fill(rest[2:])
            if text is not None:
                return inner
            return undecided(as_written(form)) if index or is_undecided(inner) else f"${{{name}:-{inner}}}"
        return undecided(as_written(form)) if index or is_undecided(rest) else form


def _joined(value: Value | None) -> str:
    return redacted(value if isinstance(value, list) else fields(value or ""))


def _end_of_form(text: str, at: int) -> int:
    """Index after the brace that closes the form at `at`."""
    depth, end = 0, at
    while end < len(text):
        if text[end] == "\0":
            end = text.index("\0", end + 1)
        elif text.startswith("${", end):
            depth += 1
            end += 1
        elif text[end] == "}":
            depth -= 1
            if not depth:
                return end + 1
        end += 1
    return len(text)


def _trimmed(value: str, rest: str) -> str:
    """`${NAME%pattern}` and its kin: the value without the shortest or longest match at one end."""
    is_suffix, is_longest = rest[0] == "%", rest[:2] in ("%%", "##")
    pattern = rest[2 if is_longest else 1 :]
    lengths = range(len(value), -1, -1) if is_longest else range(len(value) + 1)
    for length in lengths:
        part = value[len(value) - length :] if is_suffix else value[:length]
        if fnmatchcase(part, pattern):
            return value[: len(value) - length] if is_suffix else value[length:]
    return value


def read_script(text: str, known: Mapping[str, str] | None = None) -> Script:
    """The commands of a script in order, the variables it sets filled in. UnreadableShell for an open quote.

    known: variables that it finds in its environment.
    """
    reader = Reader(text)
    interpreter = _Interpreter(dict(known or {}))
    interpreter.run(reader.read())
    interpreter.script.private = set(interpreter.known) - set(interpreter.exported) - set(known or {})
    return interpreter.script


def commands_of(text: str) -> list[list[str]]:
    """The words of a script's commands in order. UnreadableShell for an open quote."""
    return [command.words for command in read_script(text).commands]


def assignment(word: str) -> tuple[str, str] | None:
    """Name and value of `NAME=value`."""
    match = _ASSIGNMENT.fullmatch(word)
    return (match[1], match[3]) if match and not match[2] else None
