"""Lark grammars as trees.

What comes in is the text of a grammar. What goes out is the alternatives of each rule, when they are asked for: errors
in a rule that no other rule uses are not found.

    start: "a" item~1..3 | [item]
    (Pattern("a"), Repeat(Reference("item"), "{1,3}", 1)), (Group(((Reference("item"),),), is_optional=True),)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_MAX_REPEATS = 1000
_COMMON = {
    "LF": r"\n",
    "CR": r"\r",
    "NEWLINE": r"(?:\r?\n)+",
    "DIGIT": "[0-9]",
    "INT": "[0-9]+",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[A-Za-z_][A-Za-z0-9_]*",
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
    "NUMBER": r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?",
}
_TOKEN = re.compile(
    r'(?P<space>(?:[ \t]|//[^\n]*|\#[^\n]*)+)|(?P<newline>\n\s*)|(?P<string>"(?:[^"\\\n]|\\.)*"i?)'
    r"|(?P<regex>/(?:[^/\\\n]|\\.)+/[imsx]*)|(?P<name>[?!_]*[A-Za-z][A-Za-z0-9_]*)|(?P<arrow>->)"
    r"|(?P<range>\.\.)|(?P<directive>%[a-z]+)|(?P<number>-?[0-9]+)|(?P<sign>[:|()\[\]?*+~,.])"
)


class NotRegular(ValueError):
    """The grammar has what is not read here. The message is for the client."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A text or a regular expression, as a regular expression."""

    regex: str


@dataclass(frozen=True, slots=True)
class Reference:
    """Another rule, by its name."""

    rule: str


@dataclass(frozen=True, slots=True)
class Group:
    """Alternatives within parentheses, or within brackets, where they are optional."""

    choice: Choice
    is_optional: bool


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part that is repeated."""

    part: Part
    sign: str  # of regular expressions
    min_count: int


Part = Pattern | Reference | Group | Repeat
Sequence = tuple[Part, ...]
Choice = tuple[Sequence, ...]  # alternatives


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str


class LarkGrammar:
    """The rules of a grammar."""

    def __init__(self, text: str) -> None:
        """Raises NotRegular."""
        self._tokens_of_rules = _rules(_Reader(_tokens(text)))
        self._choices: dict[str, Choice] = {}

    def __contains__(self, rule: str) -> bool:
        return rule in self._tokens_of_rules or rule in _COMMON

    def choice(self, rule: str) -> Choice:
        """The alternatives of a rule that exists. Raises NotRegular."""
        if rule not in self._choices:
            tokens = self._tokens_of_rules.get(rule)
            self._choices[rule] = ((Pattern(_COMMON[rule]),),) if tokens is None else _parsed(rule, tokens)
        return self._choices[rule]


class _Reader:
    """Reads tokens one by one. After the last one, line breaks follow."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._tokens)

    @property
    def next(self) -> _Token:
        return _Token("newline", "\n") if self.is_at_end else self._tokens[self._at]

    def take(self) -> _Token:
        token = self.next
        self._at += 1
        return token

    def take_line(self) -> list[_Token]:
        """Take the tokens before the next line break."""
        taken: list[_Token] = []
        while self.next.kind != "newline":
            taken.append(self.take())
        return taken

    def is_sign(self, signs: str) -> bool:
        """Whether one of these signs is next."""
        return self.next.kind == "sign" and self.next.text in signs


def _tokens(grammar: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    while at < len(grammar):
        match = _TOKEN.match(grammar, at)
        if match is None:
            raise NotRegular(f"the grammar cannot be read at {grammar[at : at + 20]!r}")
        at = match.end()
        if match.lastgroup != "space":
            found.append(_Token(str(match.lastgroup), match.group()))
    return found


def _rules(reader: _Reader) -> dict[str, list[_Token]]:
    """The tokens of each rule after its colon, by its name."""
    rules: dict[str, list[_Token]] = {}
    while not reader.is_at_end:
        match reader.next.kind:
            case "newline":
                reader.take()
            case "directive":
                _check_import([token.text for token in reader.take_line()])
            case "name":
                name = _take_rule_name(reader)
                rules[name] = _take_rule(reader)
            case _:
                raise NotRegular(f"a rule must begin with its name; found {reader.next.text[:20]!r}")
    return rules


def _check_import(words: list[str]) -> None:
    is_common = words[:3] == ["%import", "common", "."] and set(words[3:]) <= {*_COMMON, "(", ")", ","}
    if not is_common:
        raise NotRegular(f"`{' '.join(words)[:80]}` is not read here: only imports of common terminals are")


def _take_rule_name(reader: _Reader) -> str:
    """Take the name of a rule, its priority if it has one, and the colon."""
    name = _plain(reader.take().text)
    if reader.is_sign("."):
        reader.take()
        reader.take()  # the priority decides nothing: all texts of the grammar are allowed
    if not reader.is_sign(":"):
        raise NotRegular(f"a rule must be `name: ...`; found {reader.next.text[:20]!r} after `{name[:40]}`")
    reader.take()
    return name


def _take_rule(reader: _Reader) -> list[_Token]:
    """Take the tokens of a rule, which goes on in the next line if that begins with an alternative."""
    tokens = reader.take_line()
    while not reader.is_at_end:
        reader.take()
        if not reader.is_sign("|"):
            break
        tokens += reader.take_line()
    return tokens


def _plain(name: str) -> str:
    """The name of a rule without the signs that say how Lark shows it in its trees."""
    return name.lstrip("?!")


def _parsed(rule: str, tokens: list[_Token]) -> Choice:
    reader = _Reader(tokens)
    choice = _take_choice(reader)
    if not reader.is_at_end:
        raise NotRegular(f"the rule `{rule[:40]}` has an unexpected {reader.next.text[:20]!r}")
    return choice


def _take_choice(reader: _Reader) -> Choice:
    """Take alternatives, up to a closing bracket or the end."""
    alternatives: list[Sequence] = []
    parts: list[Part] = []
    while not (reader.is_at_end or reader.is_sign(")]")):
        if reader.is_sign("|"):
            reader.take()
            alternatives.append(tuple(parts))
            parts = []
        elif reader.next.kind == "arrow":
            reader.take()
            if reader.is_at_end:
                raise NotRegular("`->` needs a name, the alias of the alternative")
            reader.take()
        else:
            parts.append(_take_repeated(reader))
    return (*alternatives, tuple(parts))


def _take_repeated(reader: _Reader) -> Part:
    part = _take_part(reader)
    while reader.is_sign("?*+~"):
        sign = reader.take().text
        if sign != "~":
            part = Repeat(part, sign, 1 if sign == "+" else 0)
            continue
        low = high = _take_count(reader)
        if reader.next.kind == "range":
            reader.take()
            high = _take_count(reader)
        part = Repeat(part, f"{{{low},{high}}}", low)
    return part


def _take_count(reader: _Reader) -> int:
    token = reader.take()
    if token.kind != "number" or not 0 <= int(token.text) <= _MAX_REPEATS:
        raise NotRegular(f"`~` needs a number up to {_MAX_REPEATS}")
    return int(token.text)


def _take_part(reader: _Reader) -> Part:
    token = reader.take()
    match token.kind:
        case "string":
            if token.text.endswith("i"):
                raise NotRegular("texts that ignore the case are not read here")
            return Pattern(_literal(_unquoted(token.text)))
        case "regex":
            end = token.text.rindex("/")
            if token.text[end + 1 :]:
                raise NotRegular("flags of regular expressions are not read here")
            pattern = token.text[1:end].replace("\\/", "/")
            return Pattern(f"(?:{pattern})")
        case "name":
            return Reference(_plain(token.text))
        case "sign" if token.text in "([":
            choice = _take_choice(reader)
            closing = ")" if token.text == "(" else "]"
            if not reader.is_sign(closing):
                raise NotRegular(f"`{closing}` is missing")
            reader.take()
            return Group(choice, is_optional=token.text == "[")
    raise NotRegular(f"unexpected {token.text[:20]!r}")


def _unquoted(text: str) -> str:
    escapes = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
    return re.sub(r"\\(.)", lambda match: escapes.get(match[1], match[1]), text[1:-1])


def _literal(text: str) -> str:
    escaped = re.sub(r"([\\.^$|?*+()\[\]{}])", r"\\\1", text)
    return escaped.replace("\n", r"\n").replace("\r", r"\r").replace("\t", r"\t")
