"""Structural tags: free text with parts that obey a schema or a grammar, as in xgrammar. Becomes Lark of llguidance.

What comes in is one of two forms: `{"structures": [{"begin", "schema", "end"}], "triggers": [...]}` or
`{"format": {"type": ...}}`. What goes out is a grammar, with one rule for each part that needs a name:

    {"format": {"type": "sequence", "elements": [{"type": "const_string", "value": "a"}, {"type": "any_text"}]}}
    start: r1    T0: /(.|\\n)*/    r1: "a" T0

Special tokens of the vocabulary are written as tokens, which a text can never be.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ...formats.writing.rules import regex
from ..protocol.errors import ApiError, bad_request
from .lark import check_text, literal, of_gbnf, of_regex

MAX_DEPTH = 32
MAX_TAGS = 1024
_TEXT = r"/(.|\n)*/"
_TIMES = {"optional": "?", "plus": "+", "star": "*"}
SchemaGrammar = Callable[[Any, str], str]  # of a schema and its place: the schema with the options of llguidance


class _Tags:
    def __init__(self, of_schema: SchemaGrammar, special_tokens: Collection[str], param: str) -> None:
        self._of_schema = of_schema
        self._special_tokens = special_tokens
        self._rules: list[str] = []
        self._nested: list[dict[str, str]] = []
        self._num_tags = 0
        self.param = param

    def grammar(self, start: str) -> str:
        text = "\n".join(["%llguidance {}", f"start: {start}", *self._rules])
        if not self._nested:
            return text
        return json.dumps({"grammars": [{"name": "structural_tag", "lark_grammar": text}, *self._nested]})

    def rule(self, body: str, attributes: str = "", *, is_terminal: bool = False) -> str:
        """A new rule's name."""
        name = f"{'T' if is_terminal else 'r'}{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    # ---- formats: each returns what stands for it in the body of a rule

    def format(self, node: Any, place: str, depth: int = 0, *, is_last: bool = False) -> str:
        """is_last: nothing follows it."""
        if not isinstance(node, dict):
            raise self._wrong("must be an object with `type`", place)
        if depth > MAX_DEPTH:
            raise bad_request(f"more than {MAX_DEPTH} levels", code="grammar_too_complex", param=self.param)
        kind, inner = node.get("type"), depth + 1
        match kind:
            case "const_string":
                return self._literal(self._str(node, "value", place))
            case "json_schema":
                return self._schema(node, place)
            case "regex":
                pattern = of_regex(self._str(node, "pattern", place), f"{self.param}#{place}/pattern")
                return self._nest(_slashed(pattern))
            case "grammar":
                return self._grammar(self._str(node, "grammar", place), f"{place}/grammar")
            case "any_text":
                return self._any_text(node, place, is_last=is_last)
            case "sequence":
                return self.rule(" ".join(self._elements(node, place, inner, is_last=is_last)))
            case "or":
                return self.rule(" | ".join(self._elements(node, place, inner, is_last=is_last, are_choices=True)))
            case "optional" | "plus" | "star":
                return f"({self._content(node, place, inner)}){_TIMES[kind]}"
            case "repeat":
                content = self._content(node, place, inner)
                low, high = self._int(node, "min", place, 0), self._int(node, "max", place, -1)
                return f"({content}){{{low},{'' if high < 0 else high}}}"
            case "tag":
                return self._tag(node, place, inner)
            case "triggered_tags":
                return self._triggered(node, place, inner, is_last=is_last)
            case "tags_with_separator":
                return self._separated(node, place, inner)
            case _:
                raise self._cannot(f"the format {str(kind)[:40]!r}", f"{place}/type")

    def _content(self, node: Any, place: str, depth: int) -> str:
        return self.format(self._value(node, "content", place), f"{place}/content", depth)

    def _schema(self, node: Any, place: str) -> str:
        if node.get("style") not in (None, "json"):
            raise self._cannot(f"the style {str(node['style'])[:40]!r}", f"{place}/style")
        return f"%json {self._of_schema(self._value(node, 'json_schema', place), f'{place}/json_schema')}"

    def _any_text(self, node: Any, place: str, *, is_last: bool) -> str:
        if node.get("excludes"):
            raise self._cannot("`excludes`", f"{place}/excludes")
        if not is_last:
            raise self._cannot("`any_text` that is neither the last part nor all of a tag", place)
        return self.rule(_TEXT, is_terminal=True)

    def _elements(self, node: Any, place: str, depth: int, *, is_last: bool, are_choices: bool = False) -> list[str]:
        """The elements of a format. is_last: nothing follows the format, and so its last element, or each choice."""
        elements = self._list(node, "elements", place)
        last = len(elements) - 1
        return [
            self.format(each, f"{place}/elements/{at}", depth, is_last=is_last and (are_choices or at == last))
            for at, each in enumerate(elements)
        ]

    def _grammar(self, text: str, place: str) -> str:
        return self._nest(of_gbnf(text, place) if "::=" in text else text)

    def _nest(self, lark: str) -> str:
        name = f"nested_{len(self._nested)}"
        self._nested.append({"name": name, "lark_grammar": lark})
        return f"@{name}"

    def _literal(self, text: str) -> str:
        """A text in Lark, with its special tokens as tokens."""
        check_text(text, self.param)
        for token in self._special_tokens:
            before, found, after = text.partition(token)
            if found:
                return " ".join(filter(None, (self._literal(before), _token(token), self._literal(after))))
        return literal(text) if text else ""

    def _tag(self, node: Any, place: str, depth: int, trigger: str = "") -> str:
        """trigger: the part of `begin` that has been written."""
        self._num_tags += 1
        if self._num_tags > MAX_TAGS:
            raise bad_request(f"more than {MAX_TAGS} tags", code="grammar_too_complex", param=self.param)
        begin = self._str(node, "begin", place)
        ends = node.get("end", "")
        ends = ends if isinstance(ends, list) else [ends]
        if not ends or not all(isinstance(end, str) for end in ends):
            raise self._wrong("must be a text or texts", f"{place}/end")
        content = self._value(node, "content", place)
        rest_of_begin = self._literal(begin[len(trigger) :])
        is_text = isinstance(content, dict) and content.get("type") == "any_text" and not content.get("excludes")
        if not is_text:
            body = self.format(content, f"{place}/content", depth)
            return self.rule(f"{rest_of_begin} {body} {self._ends(ends)}")
        has_one_text_as_end = len(ends) == 1 and bool(ends[0]) and ends[0] not in self._special_tokens
        if has_one_text_as_end:
            text = self.rule(_TEXT, f"[suffix={literal(ends[0])}]")
            return self.rule(f"{rest_of_begin} {text}")
        text = self.rule(_TEXT, is_terminal=True)
        return self.rule(f"{rest_of_begin} {text} {self._ends(ends)}")

    def _ends(self, ends: Sequence[str]) -> str:
        return f"({' | '.join(self._literal(end) or literal('') for end in ends)})"

    def _triggered(self, node: Any, place: str, depth: int, *, is_last: bool) -> str:
        if not is_last:
            raise self._cannot("`triggered_tags` that are not the last part", place)
        if node.get("excludes"):
            raise self._cannot("`excludes`", f"{place}/excludes")
        by_trigger = self._tags_by_trigger(node, place, depth)
        text = self.rule(_TEXT, is_terminal=True)
        parts: list[str] = []
        for trigger, rules in by_trigger.items():
            if not rules:
                continue
            if trigger in self._special_tokens:
                head = f"{text} {_token(trigger)}"
            else:
                head = self.rule(f"{text} {literal(trigger)}", "[lazy]")
            parts.append(f"{head} ({' | '.join(rules)})")
        several = self.rule(" | ".join(parts))
        if node.get("stop_after_first"):
            return several if node.get("at_least_one") else self.rule(f"{several} | {text}")
        return self.rule(f"{several}{'+' if node.get('at_least_one') else '*'} {text}")

    def _tags_by_trigger(self, node: Any, place: str, depth: int) -> dict[str, list[str]]:
        """The rules of the tags that begin with each trigger; of several triggers, the first that fits."""
        triggers = self._list(node, "triggers", place)
        tags = self._list(node, "tags", place)
        if not all(isinstance(trigger, str) and trigger for trigger in triggers):
            raise self._wrong("must be texts that are not empty", f"{place}/triggers")
        by_trigger: dict[str, list[str]] = {trigger: [] for trigger in triggers}
        for at, tag in enumerate(tags):
            where = f"{place}/tags/{at}"
            begin = self._str(tag, "begin", where) if isinstance(tag, dict) else ""
            trigger = next((each for each in triggers if begin.startswith(each)), None)
            if trigger is None:
                raise self._wrong("begins with none of the triggers", f"{where}/begin")
            by_trigger[trigger].append(self._tag(tag, where, depth, trigger))
        return by_trigger

    def _separated(self, node: Any, place: str, depth: int) -> str:
        tags = self._list(node, "tags", place)
        rules = [self._tag(tag, f"{place}/tags/{at}", depth) for at, tag in enumerate(tags)]
        one = self.rule(" | ".join(rules))
        separator = self._literal(self._str(node, "separator", place))
        several = one if node.get("stop_after_first") else self.rule(f"{one} ({separator} {one})*")
        return several if node.get("at_least_one") else f"({several})?"

    # ---- reading

    def _value(self, node: Any, name: str, place: str) -> Any:
        if not isinstance(node, dict) or name not in node:
            raise self._wrong(f"needs `{name}`", place)
        return node[name]

    def _str(self, node: Any, name: str, place: str) -> str:
        value = self._value(node, name, place)
        if not isinstance(value, str):
            raise self._wrong("must be a text", f"{place}/{name}")
        return value

    def _int(self, node: Any, name: str, place: str, default: int) -> int:
        value = node.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value <= 10_000:
            raise self._wrong("must be a number up to 10000", f"{place}/{name}")
        return value

    def _list(self, node: Any, name: str, place: str) -> list[Any]:
        value = self._value(node, name, place)
        if not isinstance(value, list) or not value:
            raise self._wrong("must be a list that is not empty", f"{place}/{name}")
        return value

    def _wrong(self, message: str, place: str) -> ApiError:
        where = f"{self.param}#{place}"
        return bad_request(f"`{where}` {message}", param=where)

    def _cannot(self, what: str, place: str) -> ApiError:
        where = f"{self.param}#{place}"
        message = f"no answer can be made to obey {what} (at `{where}`)"
        return bad_request(message, code="grammar_unsupported", param=where)


def of_structural_tag(tag: Any, of_schema: SchemaGrammar, special_tokens: Collection[str], param: str) -> str:
    """Raises ApiError with the JSON pointer of what is wrong or cannot be obeyed."""
    tags = _Tags(of_schema, sorted(special_tokens, key=len, reverse=True), param)
    if isinstance(tag, dict) and "structures" in tag:
        return tags.grammar(tags.format(_from_structures(tag, tags), "", is_last=True))
    if not isinstance(tag, dict) or "format" not in tag:
        raise bad_request(f"`{param}` needs `format`, or `structures` and `triggers`", param=param)
    return tags.grammar(tags.format(tag["format"], "/format", is_last=True))


def _from_structures(tag: dict[str, Any], tags: _Tags) -> dict[str, Any]:
    structures = tag["structures"]
    if not isinstance(structures, list) or not all(isinstance(each, dict) for each in structures):
        raise bad_request(f"`{tags.param}#/structures` must be a list of objects", param=f"{tags.param}#/structures")
    return {
        "type": "triggered_tags",
        "triggers": tag.get("triggers", []),
        "tags": [
            {
                "begin": each.get("begin"),
                "content": {"type": "json_schema", "json_schema": each.get("schema", True)},
                "end": each.get("end", ""),
            }
            for each in structures
        ],
    }


def _token(text: str) -> str:
    """A special token in Lark: tokens of the form <name> are written as they are."""
    return text if text.startswith("<") and text.endswith(">") else literal(text)


def _slashed(pattern: str) -> str:
    """A grammar of one regular expression."""
    return f"start: {regex(pattern)}"
