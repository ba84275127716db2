"""Lark grammars as regular expressions, for the inputs of custom tools.

The input of a tool is one text within the model's own format of calls, often a JSON string. A regular expression can be
enforced there (`pattern` of a schema), a Lark grammar cannot. Grammars of agents' tools, such as patches, are regular:

    start: line+            line: "+" /[a-z]/*
    (?:(?:(?:\\+(?:(?:[a-z]))*))+)

Each use of a rule is replaced by its content (lark_grammar.py reads the rules). Where rules refer to themselves, those
texts remain that nest them a few times: a model can write less than the grammar allows, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from .lark_grammar import Choice, Group, LarkGrammar, NotRegular, Part, Pattern, Reference, Repeat, Sequence

MAX_PATTERN_CHARS = 1 << 16
MAX_NESTED_CHARS = 1 << 14  # of a pattern with rules in themselves
MAX_DEPTH = 8
_MAX_WRITTEN_CHARS = 16 * MAX_PATTERN_CHARS  # while rules are expanded: uses of rules that lead nowhere count too


class TooLarge(NotRegular):
    pass


def regex_of(grammar: str) -> str:
    """The texts of the grammar; of texts that nest rules in themselves, as deeply as MAX_NESTED_CHARS allow.

    Raises NotRegular.
    """
    rules = LarkGrammar(grammar)
    if "start" not in rules:
        raise NotRegular("the grammar has no rule `start`")
    found: str | None = None
    for depth in range(MAX_DEPTH + 1):
        expander = _Expander(rules, depth)
        try:
            pattern = expander.start(MAX_PATTERN_CHARS if found is None else MAX_NESTED_CHARS)
        except RecursionError:
            raise NotRegular("the rules of the grammar are nested too deeply") from None
        except TooLarge:
            if found is None:
                raise
            break
        if pattern is not None:
            found = pattern
        if not expander.is_cut:
            break
    if found is None:
        raise NotRegular("a rule of the grammar refers to itself without an end")
    return found


@dataclass(frozen=True, slots=True)
class _Path:
    """The rules within which another one is written, and how many times a rule may still be entered again."""

    within: frozenset[str]
    left: int

    def into(self, rule: str) -> _Path | None:
        """Path with this rule in it; None if it may not be nested further."""
        if rule not in self.within:
            return _Path(self.within | {rule}, self.left)
        return _Path(frozenset({rule}), self.left - 1) if self.left else None


class _Expander:
    """Writes rules as patterns: each use of a rule is replaced by its content.

    A pattern is None where nothing can be written, since the nesting would exceed `depth`.
    """

    def __init__(self, rules: LarkGrammar, depth: int) -> None:
        self._rules = rules
        self._depth = depth
        self._done: dict[tuple[str, _Path], str | None] = {}
        self._num_written = 0  # characters
        self.is_cut = False  # a rule was not entered again

    def start(self, max_chars: int) -> str | None:
        pattern = self._rule("start", _Path(frozenset(), self._depth))
        if pattern is not None and len(pattern) > max_chars:
            raise TooLarge(f"the grammar is too large: as a regular expression more than {max_chars} characters")
        return pattern

    def _rule(self, rule: str, path: _Path) -> str | None:
        if rule not in self._rules:
            raise NotRegular(f"the grammar has no rule `{rule[:40]}`")
        inner = path.into(rule)
        if inner is None:
            self.is_cut = True
            return None
        key = rule, inner
        if key not in self._done:
            choice = self._rules.choice(rule)
            pattern = self._list(rule, choice, inner) or self._choice(choice, inner)
            self._done[key] = None if pattern is None else f"(?:{pattern})"
        found = self._done[key]
        self._num_written += len(found or "")
        if self._num_written > _MAX_WRITTEN_CHARS:
            raise TooLarge("the grammar is too large as a regular expression")
        return found

    def _list(self, rule: str, choice: Choice, path: _Path) -> str | None:
        """A rule that is a list, written as a repetition, which nests nothing. None for other rules.

        `items: item | items "," item` is item(?:,item)*, and `items: item | item "," items` is (?:item,)*item.
        """
        place = _place_of_itself(rule, choice)
        if place is None:
            return None
        ends: list[str] = []
        steps: list[str] = []
        for alternative in choice:
            is_step = _count(rule, alternative) > 0
            rest = alternative
            if is_step:
                rest = alternative[1:] if place == 0 else alternative[:-1]
            pattern = self._sequence(rest, path)
            if pattern is None or (is_step and not rest):
                return None
            (steps if is_step else ends).append(pattern)
        end, repeated = f"(?:{'|'.join(ends)})", f"(?:{'|'.join(steps)})*"
        return end + repeated if place == 0 else repeated + end

    def _choice(self, choice: Choice, path: _Path) -> str | None:
        patterns = [self._sequence(alternative, path) for alternative in choice]
        possible = [pattern for pattern in patterns if pattern is not None]
        return "|".join(possible) if possible else None

    def _sequence(self, parts: Sequence, path: _Path) -> str | None:
        patterns = [self._part(part, path) for part in parts]
        possible = [pattern for pattern in patterns if pattern is not None]
        return "".join(possible) if len(possible) == len(patterns) else None

    def _part(self, part: Part, path: _Path) -> str | None:
        match part:
            case Pattern(regex):
                return regex
            case Reference(rule):
                return self._rule(rule, path)
            case Group(choice, is_optional):
                pattern, sign, can_be_empty = self._choice(choice, path), "?" if is_optional else "", is_optional
            case Repeat(repeated, sign, min_count):
                pattern, can_be_empty = self._part(repeated, path), min_count == 0
        if pattern is None:
            return "" if can_be_empty else None
        return f"(?:{pattern}){sign}"


def _place_of_itself(rule: str, choice: Choice) -> int | None:
    """0 if some alternatives begin with the rule itself, -1 if they end with it. None if it is elsewhere too."""
    counts = [_count(rule, alternative) for alternative in choice]
    if max(counts) != 1 or min(counts) == 1:
        return None
    steps = [alternative for alternative, count in zip(choice, counts, strict=True) if count]
    for place in (0, -1):
        if all(alternative[place] == Reference(rule) for alternative in steps):
            return place
    return None


def _count(rule: str, parts: Sequence) -> int:
    """How many times these parts refer to the rule."""
    count = 0
    for part in parts:
        match part:
            case Reference(name):
                count += name == rule
            case Group(choice, _):
                count += sum(_count(rule, alternative) for alternative in choice)
            case Repeat(repeated, _, _):
                count += _count(rule, (repeated,))
    return count
