"""Lark grammars without recursion as regular expressions, for the inputs of custom tools.

The input of a tool is one text within the model's own format of calls, often a JSON string. A regular expression can be
enforced there (`pattern` of a schema), a Lark grammar cannot. Grammars of agents' tools, such as that of patches, are
regular.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_PATTERN_CHARS = 1 << 16
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
    """The grammar refers to itself, or has what is not read here. The message is for the client."""


@dataclass(frozen=True, slots=True)
class _Item:
    kind: str
    text: str


def regex_of(grammar: str) -> str:
    """Raises NotRegular."""
    rules = _rules(grammar)
    if "start" not in rules:
        raise NotRegular("the grammar has no rule `start`")
    pattern = _Expander(rules).rule("start", ())
    if len(pattern) > MAX_PATTERN_CHARS:
        raise NotRegular(f"the grammar is too large: as a regular expression more than {MAX_PATTERN_CHARS} characters")
    return pattern


def _tokens(grammar: str) -> list[_Item]:
    found: list[_Item] = []
    at = 0
    while at < len(grammar):
        match = _TOKEN.match(grammar, at)
        if match is None:
            raise NotRegular(f"the grammar cannot be read at {grammar[at : at + 20]!r}")
        at = match.end()
        if match.lastgroup != "space":
            found.append(_Item(str(match.lastgroup), match.group()))
    return [*found, _Item("newline", "\n")]


def _rules(grammar: str) -> dict[str, list[_Item]]:
    """The items of each rule, by its name."""
    rules: dict[str, list[_Item]] = {name: [_Item("pattern", pattern)] for name, pattern in _COMMON.items()}
    current: list[_Item] | None = None
    items = _tokens(grammar)
    index = 0
    while index < len(items):
        item, following = items[index], items[index + 1] if index + 1 < len(items) else _Item("newline", "")
        if item.kind == "newline":
            # the rule goes on if the next line begins with an alternative
            if following.text != "|":
                current = None
        elif current is None and item.kind == "directive":
            line = index
            while items[index].kind != "newline":
                index += 1
            words = [each.text for each in items[line:index]]
            if (
                item.text != "%import"
                or words[1:3] != ["common", "."]
                or not set(words[3:]) <= {*_COMMON, "(", ")", ","}
            ):
                raise NotRegular(f"`{' '.join(words)[:80]}` is not read here: only imports of common terminals are")
            continue
        elif current is None and item.kind == "name":
            name = item.text.lstrip("?!")
            index += 1
            if items[index].text == ".":  # a priority
                index += 2
            if items[index].text != ":":
                raise NotRegular(f"a rule must be `name: ...`; found {items[index].text[:20]!r} after `{name[:40]}`")
            current = rules[name] = []
        elif current is None:
            raise NotRegular(f"a rule must begin with its name; found {item.text[:20]!r}")
        else:
            current.append(item)
        index += 1
    return rules


class _Expander:
    """Writes rules as patterns: each use of a rule is replaced by its content."""

    def __init__(self, rules: dict[str, list[_Item]]) -> None:
        self._rules = rules
        self._done: dict[str, str] = {}
        self._size = 0

    def rule(self, name: str, within: tuple[str, ...]) -> str:
        name = name.lstrip("?!")
        if name in within:
            raise NotRegular(
                f"the rule `{name[:40]}` refers to itself; in the format of this model's calls, a grammar cannot"
            )
        if name not in self._rules:
            raise NotRegular(f"the grammar has no rule `{name[:40]}`")
        if name not in self._done:
            items = self._rules[name]
            pattern, rest = self._alternatives(items, 0, (*within, name))
            if rest != len(items):
                raise NotRegular(f"the rule `{name[:40]}` has an unexpected {items[rest].text[:20]!r}")
            self._done[name] = f"(?:{pattern})"
        self._size += len(self._done[name])
        if self._size > 16 * MAX_PATTERN_CHARS:
            raise NotRegular("the grammar is too large as a regular expression")
        return self._done[name]

    def _alternatives(self, items: list[_Item], at: int, within: tuple[str, ...]) -> tuple[str, int]:
        found = [""]
        while at < len(items) and items[at].text not in (")", "]"):
            item = items[at]
            if item.text == "|" and item.kind == "sign":
                found.append("")
                at += 1
            elif item.kind == "arrow":
                at += 2  # the alias of an alternative
            else:
                pattern, at = self._repeated(items, at, within)
                found[-1] += pattern
        return "|".join(found), at

    def _repeated(self, items: list[_Item], at: int, within: tuple[str, ...]) -> tuple[str, int]:
        pattern, at = self._atom(items, at, within)
        while at < len(items) and items[at].kind == "sign" and items[at].text in "?*+~":
            sign = items[at].text
            at += 1
            if sign == "~":
                low = high = self._number(items, at)
                at += 1
                if at < len(items) and items[at].kind == "range":
                    high = self._number(items, at + 1)
                    at += 2
                sign = f"{{{low},{high}}}"
            pattern = f"(?:{pattern}){sign}"
        return pattern, at

    def _number(self, items: list[_Item], at: int) -> int:
        if at >= len(items) or items[at].kind != "number" or not 0 <= int(items[at].text) <= 1000:
            raise NotRegular("`~` needs a number up to 1000")
        return int(items[at].text)

    def _atom(self, items: list[_Item], at: int, within: tuple[str, ...]) -> tuple[str, int]:
        item = items[at]
        match item.kind:
            case "pattern":
                return item.text, at + 1
            case "string":
                if item.text.endswith("i"):
                    raise NotRegular("texts that ignore the case are not read here")
                return _literal(_unquoted(item.text)), at + 1
            case "regex":
                end = item.text.rindex("/")
                if item.text[end + 1 :]:
                    raise NotRegular("flags of regular expressions are not read here")
                return f"(?:{item.text[1:end].replace(chr(92) + '/', '/')})", at + 1
            case "name":
                return self.rule(item.text, within), at + 1
        if item.text in "([":
            pattern, at = self._alternatives(items, at + 1, within)
            closing = ")" if item.text == "(" else "]"
            if at >= len(items) or items[at].text != closing:
                raise NotRegular(f"`{closing}` is missing")
            return f"(?:{pattern})" + ("" if item.text == "(" else "?"), at + 1
        raise NotRegular(f"unexpected {item.text[:20]!r}")


def _unquoted(text: str) -> str:
    escapes = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
    return re.sub(r"\\(.)", lambda match: escapes.get(match[1], match[1]), text[1:-1])


def _literal(text: str) -> str:
    escaped = re.sub(r"([\\.^$|?*+()\[\]{}])", r"\\\1", text)
    return escaped.replace("\n", r"\n").replace("\r", r"\r").replace("\t", r"\t")
