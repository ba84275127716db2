"""Lark grammars as regular expressions, for the inputs of custom tools.

The input of a tool is one text within the model's own format of calls, often a JSON string. A regular expression can be
enforced there (`pattern` of a schema), a Lark grammar cannot. Grammars of agents' tools, such as patches, are regular.
Of others, whose rules refer to themselves, those texts remain that nest them a few times: a model can write less than
the grammar allows, and nothing else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_PATTERN_CHARS = 1 << 16
MAX_NESTED_CHARS = 1 << 14  # of a pattern with rules in themselves
MAX_DEPTH = 8
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
class _Item:
    kind: str
    text: str


class TooLarge(NotRegular):
    pass


def regex_of(grammar: str) -> str:
    """The texts of the grammar; of texts that nest rules in themselves, as deeply as MAX_NESTED_CHARS allow.

    Raises NotRegular.
    """
    rules = _rules(grammar)
    if "start" not in rules:
        raise NotRegular("the grammar has no rule `start`")
    found: str | None = None
    for depth in range(MAX_DEPTH + 1):
        expander = _Expander(rules, depth)
        try:
            pattern = expander.start()
        except RecursionError:
            raise NotRegular("the rules of the grammar are nested too deeply") from None
        except TooLarge:
            if found is None:
                raise
            break
        most = MAX_NESTED_CHARS if found is not None else MAX_PATTERN_CHARS
        if pattern is not None and len(pattern) > most:
            if found is None:
                raise TooLarge(f"the grammar is too large: as a regular expression more than {most} characters")
            break
        found = pattern or found
        if not expander.is_cut:
            break
    if found is None:
        raise NotRegular("a rule of the grammar refers to itself without an end")
    return found


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


@dataclass(frozen=True, slots=True)
class _Path:
    """The rules within which another one is written, and how many times a rule may still be entered again."""

    within: tuple[str, ...]
    left: int

    def into(self, name: str) -> _Path | None:
        """Path with this rule in it; None if it may not be nested further."""
        if name not in self.within:
            return _Path((*self.within, name), self.left)
        return _Path((name,), self.left - 1) if self.left else None


class _Expander:
    """Writes rules as patterns: each use of a rule is replaced by its content.

    A pattern is None where nothing can be written, since the nesting would exceed `depth`.
    """

    def __init__(self, rules: dict[str, list[_Item]], depth: int) -> None:
        self._rules = rules
        self._depth = depth
        self._done: dict[tuple[str, _Path], str | None] = {}
        self._size = 0
        self.is_cut = False  # a rule was not entered again

    def start(self) -> str | None:
        return self._rule("start", _Path((), self._depth))

    def _rule(self, name: str, path: _Path) -> str | None:
        name = name.lstrip("?!")
        if name not in self._rules:
            raise NotRegular(f"the grammar has no rule `{name[:40]}`")
        inner = path.into(name)
        if inner is None:
            self.is_cut = True
            return None
        key = name, _Path(tuple(sorted(set(inner.within))), inner.left)
        if key not in self._done:
            items = self._rules[name]
            pattern, rest = self._linear(name, items, inner) or self._alternatives(items, 0, inner)
            if rest != len(items):
                raise NotRegular(f"the rule `{name[:40]}` has an unexpected {items[rest].text[:20]!r}")
            self._done[key] = None if pattern is None else f"(?:{pattern})"
        found = self._done[key]
        self._size += len(found or "")
        if self._size > 16 * MAX_PATTERN_CHARS:
            raise TooLarge("the grammar is too large as a regular expression")
        return found

    def _linear(self, name: str, items: list[_Item], path: _Path) -> tuple[str, int] | None:
        """A rule that refers to itself only as the first item of alternatives, or only as their last item: a list.

        Written as a repetition, which nests nothing. None for other rules.
        """
        alternatives = _split(items)
        of_itself = [[each.text.lstrip("?!") == name and each.kind == "name" for each in own] for own in alternatives]
        again = [sum(own) for own in of_itself]
        if max(again, default=0) != 1 or min(again) == 1:
            return None
        for at in (0, -1):
            if all(own[at] for own in of_itself if any(own)):
                break
        else:
            return None
        ends: list[str] = []
        steps: list[str] = []
        for own, found in zip(alternatives, of_itself, strict=True):
            rest = [each for each, is_again in zip(own, found, strict=True) if not is_again]
            if any(found) and at == 0 and rest and rest[0].kind == "sign" and rest[0].text in "?*+~":
                return None
            pattern, stop = self._alternatives(rest, 0, path)
            if pattern is None or stop != len(rest) or (any(found) and not rest):
                return None
            (steps if any(found) else ends).append(pattern)
        end, step = f"(?:{'|'.join(ends)})", f"(?:{'|'.join(steps)})*"
        return (end + step if at == 0 else step + end), len(items)

    def _alternatives(self, items: list[_Item], at: int, path: _Path) -> tuple[str | None, int]:
        found: list[str | None] = [""]
        while at < len(items) and items[at].text not in (")", "]"):
            item = items[at]
            if item.text == "|" and item.kind == "sign":
                found.append("")
                at += 1
            elif item.kind == "arrow":
                at += 2  # the alias of an alternative
            else:
                pattern, at = self._repeated(items, at, path)
                found[-1] = None if pattern is None or found[-1] is None else found[-1] + pattern
        possible = [each for each in found if each is not None]
        return "|".join(possible) if possible else None, at

    def _repeated(self, items: list[_Item], at: int, path: _Path) -> tuple[str | None, int]:
        pattern, at = self._atom(items, at, path)
        while at < len(items) and items[at].kind == "sign" and items[at].text in "?*+~":
            sign, least = items[at].text, 1 if items[at].text == "+" else 0
            at += 1
            if sign == "~":
                low = high = self._number(items, at)
                at += 1
                if at < len(items) and items[at].kind == "range":
                    high = self._number(items, at + 1)
                    at += 2
                sign, least = f"{{{low},{high}}}", low
            if pattern is None:
                pattern = "" if least == 0 else None
            else:
                pattern = f"(?:{pattern}){sign}"
        return pattern, at

    def _number(self, items: list[_Item], at: int) -> int:
        if at >= len(items) or items[at].kind != "number" or not 0 <= int(items[at].text) <= 1000:
            raise NotRegular("`~` needs a number up to 1000")
        return int(items[at].text)

    def _atom(self, items: list[_Item], at: int, path: _Path) -> tuple[str | None, int]:
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
                return self._rule(item.text, path), at + 1
        if item.text in "([":
            pattern, at = self._alternatives(items, at + 1, path)
            closing = ")" if item.text == "(" else "]"
            if at >= len(items) or items[at].text != closing:
                raise NotRegular(f"`{closing}` is missing")
            if pattern is None:
                return (None if item.text == "(" else ""), at + 1
            return f"(?:{pattern})" + ("" if item.text == "(" else "?"), at + 1
        raise NotRegular(f"unexpected {item.text[:20]!r}")


def _split(items: list[_Item]) -> list[list[_Item]]:
    """The alternatives of a rule, without their aliases; groups are not split."""
    found: list[list[_Item]] = [[]]
    level = 0
    index = 0
    while index < len(items):
        item = items[index]
        if item.kind == "arrow":
            index += 2
            continue
        if item.kind == "sign":
            level += (item.text in "([") - (item.text in ")]")
        if item.kind == "sign" and item.text == "|" and level == 0:
            found.append([])
        else:
            found[-1].append(item)
        index += 1
    return found


def _unquoted(text: str) -> str:
    escapes = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
    return re.sub(r"\\(.)", lambda match: escapes.get(match[1], match[1]), text[1:-1])


def _literal(text: str) -> str:
    escaped = re.sub(r"([\\.^$|?*+()\[\]{}])", r"\\\1", text)
    return escaped.replace("\n", r"\n").replace("\r", r"\r").replace("\t", r"\t")
