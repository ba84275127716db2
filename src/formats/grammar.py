"""The grammar that makes a model write what the parser reads: text for llguidance's dialect of Lark.

It begins after the reasoning, unless the answer starts within it. Arguments are in the order of the schema, and
written as the model was trained to write them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .format import BareKeys, CallMarkers, Format, Harmony, JsonCall, NamedJson, Pythonic, XmlCall
from .reading import harmony
from .reading.element_ends import ElementEnds
from .reading.schema_types import resolved, types_of
from .tool_choice import Choice, ToolSchema
from .writing import literals
from .writing.rules import ANY_TEXT, Rules, any_of, quoted, regex, without

_XML_TYPES = {"integer": "number"}  # where an attribute has another name of a type
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def grammar_of(
    format: Format,
    tools: Sequence[ToolSchema],
    *,
    choice: Choice,
    parallel: bool,
    starts_in_reasoning: bool = False,
    answer: str | None = None,
    special_tokens: Mapping[str, int] | None = None,
) -> str | None:
    """The grammar of an answer. None if nothing is constrained.

    tools: the request's; the choice may allow some of them only.
    parallel: False ends the answer after one call.
    answer: the body of a rule for the content, instead of any text.
    special_tokens: the id of each special token of the tokenizer, by its text.
    """
    calls = format.calls
    if calls is None:
        return None
    calls = _generated(calls, special_tokens or {})
    allowed = [tool for tool in tools if choice.names is None or tool.name in choice.names]
    if not choice.must_call and answer is None and parallel and not any(tool.strict for tool in allowed):
        restricts = choice.names is not None and len(allowed) < len(tools)
        if not restricts:
            return None
    writer = _Writer(Rules(special_tokens or {}), calls, allowed, enforces=choice.must_call)
    if answer is not None:
        answer = writer.rules.rule(answer)
    if isinstance(calls.style, Harmony):
        return writer.harmony(choice, answer)
    is_single = choice.is_named or not parallel
    start = writer.required(is_single) if choice.must_call else writer.optional(is_single, answer)
    if starts_in_reasoning and format.reasoning:
        start = f"{writer.rules.text_until(format.reasoning.end)} /\\n{{0,2}}/ ({start})"
    return writer.rules.lark(start)


def _generated(calls: CallMarkers, special_tokens: Mapping[str, int]) -> CallMarkers:
    """How the model writes calls: as an array of JSON, if its tokenizer has no token between a name and arguments."""
    style = calls.style
    if not isinstance(style, NamedJson) or not style.reads_json_calls:
        return calls
    is_older = calls.begin in special_tokens and style.name_end not in special_tokens
    return replace(calls, style=JsonCall(is_array=True)) if is_older else calls


class _Writer:
    """The rules of one grammar."""

    def __init__(self, rules: Rules, calls: CallMarkers, tools: Sequence[ToolSchema], *, enforces: bool) -> None:
        """enforces: the schemas of all tools are obeyed, not only of strict ones."""
        self.rules = rules
        self._calls = calls
        self._tools = tools
        self._enforces = enforces

    def required(self, is_single: bool) -> str:
        """Calls and nothing else."""
        opening, _ = self._opening()
        return f"{self.rules.literal(opening)} {self._after_opening(is_single)}".strip()

    def optional(self, is_single: bool, answer: str | None) -> str:
        """Text, or text and calls."""
        if not self._tools:
            return answer or ANY_TEXT
        opening, is_bare = self._opening()
        calls = self._after_opening(is_single)
        content = answer or self.rules.rule(ANY_TEXT)
        if is_bare:  # text must not begin as a call does
            first = re.escape(self._calls.bare)
            text = answer or self.rules.terminal(f"/([^{first}\\s](?s:.*))?/ & {without(self._bare_call())}")
            return f"{text} | {self.rules.literal(opening)} {calls}"
        if answer is not None:
            return f"{content} | {self.rules.literal(opening)} {calls}"
        with_calls = f"{self.rules.text_until(opening)} {calls}"
        # After one call, the answer must end; else text may follow, and further calls.
        return f"{content} | {with_calls}" if is_single else f"({with_calls})* {content}"

    def _bare_call(self) -> str:
        """A regular expression of texts that end with the beginning of a call without markers."""
        if isinstance(self._calls.style, JsonCall):
            return rf'(?s:.*)\{{\s*"({self._calls.style.name_key}|type)"'
        return rf"(?s:.*)\n\s*\[\s*({'|'.join(re.escape(tool.name) for tool in self._tools)})\("

    def _opening(self) -> tuple[str, bool]:
        """What begins the calls of an answer, and whether it is also the beginning of their first argument."""
        calls = self._calls
        if calls.bare:
            return calls.bare, True
        if calls.section:
            return calls.section[0], False
        return calls.begin, False

    def _after_opening(self, is_single: bool) -> str:
        """One call or more, without what opens them."""
        calls, rules = self._calls, self.rules
        names = [tool.name for tool in self._tools]
        if not names:
            raise ValueError("no tool may be called")
        begin = calls.begin + calls.before
        end = calls.after + calls.end
        if calls.bare:
            return self._bare_calls(is_single)
        if isinstance(calls.style, JsonCall) and calls.style.is_array:
            call = any_of([self._body(tool) for tool in self._tools])
            more = "" if is_single else f'(", " {rules.rule(call)})*'
            return f"{quoted(calls.before + '[')} {rules.rule(call)} {more} {rules.literal(']' + end)}"
        if isinstance(calls.style, Pythonic):
            call = rules.rule(any_of([self._body(tool) for tool in self._tools]))
            opening, separator, closing = ("[", ", ", "]") if calls.style.is_list else ("\n", "\n", "\n")
            more = "" if is_single else f"({quoted(separator)} {call})*"
            return f"{quoted(opening)} {call} {more} {rules.literal(closing + end)}"
        call = rules.rule(any_of([self._body(tool) for tool in self._tools]))
        whole = f"{rules.literal(begin)} {call} {rules.literal(end)}"
        between = rules.literal(calls.between)
        if calls.section:
            space = calls.section_space
            more = "" if is_single else f"({between} {whole})*"
            return f"{quoted(space)} {whole} {more} {rules.literal(space + calls.section[1])}"
        more = "" if is_single else f"({between} {whole})*"
        return f"{rules.literal(calls.before)} {call} {rules.literal(end)} {more}"

    def _bare_calls(self, is_single: bool) -> str:
        calls, rules = self._calls, self.rules
        bodies = [self._body(tool) for tool in self._tools]
        if isinstance(calls.style, JsonCall) and not calls.style.is_array:
            # the first brace was written
            first = rules.rule(any_of([body.replace('"{', '"', 1) for body in bodies]))
            more = "" if is_single else f"({rules.literal(calls.between)} {rules.rule(any_of(bodies))})*"
            return f"{first} {more}"
        call = rules.rule(any_of(bodies))
        more = "" if is_single else f'(", " {call})*'
        return f'{call} {more} "]"'

    def _schema(self, tool: ToolSchema) -> Mapping[str, Any]:
        return tool.parameters or _ANY_OBJECT if self._enforces or tool.strict else _ANY_OBJECT

    def _arguments(self, tool: ToolSchema) -> str:
        """The arguments as JSON."""
        schema = self._schema(tool)
        return self.rules.json({"type": "object", **schema}, strict=tool.strict)

    def _body(self, tool: ToolSchema) -> str:
        """One call, without its markers."""
        rules, style, name = self.rules, self._calls.style, tool.name
        match style:
            case JsonCall():
                head = f"{{{json.dumps(name)}: "
                if style.name_key:
                    head = f'{{"{style.name_key}": {json.dumps(name)}, "{style.arguments_key}": '
                return f'{rules.literal(head)} {self._arguments(tool)} "}}"'
            case NamedJson():
                written = f"functions.{name}:" if self._calls.ids == "written" else name
                index = " /[0-9]/ " if self._calls.ids == "written" else " "
                return (
                    f"{rules.literal(style.prefix + written)}{index}{rules.literal(style.name_end)} "
                    f"{self._arguments(tool)} {rules.literal(style.suffix)}"
                )
            case XmlCall():
                return self._elements(tool, style)
            case Pythonic():
                schema = resolved(self._schema(tool), {})
                return f'{rules.literal(name + "(")} {self._keywords(schema)} ")"'
            case BareKeys():
                schema = self._schema(tool)
                # the reader takes this for the end of a call whose last quote is missing
                end = f"(?s:.*){re.escape(self._calls.end)}\\s*{re.escape(self._calls.begin)}"
                notation = literals.bare(style.quote, rules.text_without(end))
                inside = literals.members(rules, notation, schema, schema)
                return f'{rules.literal(style.prefix + name + "{")} {inside} "}}"'
        raise AssertionError(style)

    def _keywords(self, schema: Mapping[str, Any]) -> str:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            any_value = literals.value(self.rules, literals.PYTHON, {}, schema, 4)
            item = f'/[A-Za-z_][A-Za-z0-9_]{{0,63}}/ "=" {any_value}'
            is_empty = schema.get("additionalProperties") is False or isinstance(properties, Mapping)
            return '""' if is_empty else f'({item} (", " {item})*)?'
        required = schema.get("required") or []
        items = [
            (f"{quoted(key + '=')} {literals.value(self.rules, literals.PYTHON, each, schema)}", key in required)
            for key, each in properties.items()
        ]
        return self.rules.separated(items, ", ")

    def _elements(self, tool: ToolSchema, style: XmlCall) -> str:
        rules = self.rules
        schema = self._schema(tool)
        line = quoted(style.line)
        properties = schema.get("properties")
        parts = [rules.literal(style.name_begin + tool.name + style.name_end), line]
        if style.index_attribute:
            parts.append(f'" index=\\"" /[1-9][0-9]?/ {rules.literal(chr(34) + style.tag_end)}')
        required = schema.get("required") or []
        if isinstance(properties, Mapping) and properties:
            for key, each in properties.items():
                written = key.replace("&", "&amp;").replace('"', "&quot;") if style.type_attribute else key
                element = f"{self._element(style, rules.literal(written), each, schema, tool.strict)} {line}"
                parts.append(element if key in required else f"({element})?")
        elif properties is None and schema.get("additionalProperties") is not False:
            key = "/[A-Za-z_][A-Za-z0-9_]{0,63}/"
            parts.append(f"({self._element(style, key, {}, schema, tool.strict)} {line})*")
        if style.end != self._calls.end:
            parts.append(rules.literal(style.end))
        return " ".join(part for part in parts if part)

    def _element(self, style: XmlCall, key: str, schema: Any, root: Any, strict: bool) -> str:
        rules = self.rules
        types = types_of(schema, root)
        excluded = ElementEnds(self._calls, style, _keys(root)).excluded
        any_text = rules.text_without(excluded)
        before = f"{rules.literal(style.key_begin)} {key} "
        space = style.line if style.value_begin else ""
        opened = rules.literal(style.key_end + space + style.value_begin + style.pad)
        definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
        if style.string_attribute or style.type_attribute:
            raw, typed = self._attributes(style, types)
            if types == {"string"}:
                return before + self._string(schema, root, style, raw, excluded)
            value = rules.json({**_no_strings(schema), **definitions}, strict=strict)
            typed = f"{typed} {value} {rules.literal(style.value_end)}"
            text = rules.text_until(style.value_end, any_text)
            return before + (f"({typed} | {raw} {text})" if "string" in types else typed)
        if types == {"string"}:
            return before + self._string(schema, root, style, opened, excluded)
        if "string" in types:  # of several types: the parser decides by what is written
            return f"{before}{opened} {rules.text_until(style.value_end, any_text)}"
        value = rules.json({**schema, **definitions}, strict=strict)
        return f"{before}{opened} {value} {rules.literal(style.pad + style.value_end)}"

    def _attributes(self, style: XmlCall, types: frozenset[str]) -> tuple[str, str]:
        """What follows the key of a string, and the key of a value of the other types."""
        if style.string_attribute:
            words, name = (["true"], ["false"]), "string"
        else:
            words, name = (["string"], sorted({_XML_TYPES.get(each, each) for each in types - {"string"}})), "type"
        before, after = (self.rules.literal(each) for each in (f'{style.key_end} {name}="', f'"{style.tag_end}'))
        raw, typed = (f"{before} {any_of([quoted(word) for word in each])} {after}" if each else "" for each in words)
        return raw, typed

    def _string(self, schema: Any, root: Any, style: XmlCall, opened: str, excluded: str) -> str:
        """The text of a string, without quotes. excluded: what the parser would take for its end."""
        rules = self.rules
        schema = resolved(schema, root)
        constants = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(constants, list) and constants and all(isinstance(each, str) for each in constants):
            texts = any_of([rules.literal(each) or '""' for each in constants])
            return f"{opened} {texts} {rules.literal(style.pad + style.value_end)}"
        if limits := _limits(schema):
            end = without(f"(?s:.*){re.escape(style.value_end)}|{excluded}")
            text = rules.terminal(" & ".join([*limits, end]))
            return f"{opened} {rules.text_until(style.pad + style.value_end, text)}"
        return f"{opened} {rules.text_until(style.value_end, rules.text_without(excluded))}"

    def harmony(self, choice: Choice, answer: str | None) -> str:
        """A whole answer in channels: reasoning if the model wants, then one call, or a text."""
        rules = self.rules
        start = f'({rules.literal(harmony.START)} "assistant")?'
        analysis = f"{rules.literal(harmony.ANALYSIS)} {rules.text_until(harmony.END)}"
        middle = rules.literal(f" {harmony.CONSTRAIN}json{harmony.MESSAGE}")
        bodies = [f"{quoted(tool.name)} {middle} {self._arguments(tool)}" for tool in self._tools]
        ways = []
        if bodies:
            opening = rules.literal(f"{harmony.CHANNEL}commentary to=functions.")
            ways.append(f"{opening} {any_of(bodies)} {rules.literal(harmony.CALL)}")
        if not choice.must_call:
            content = answer or rules.rule(ANY_TEXT)
            final = rules.literal(f"{harmony.CHANNEL}final{harmony.MESSAGE}")
            ways.append(f"{final} {content} ({rules.literal(harmony.RETURN)})?")
        return rules.lark(f"({start} {analysis})* {start} {any_of(ways)}")


def _keys(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) and properties else None


def _no_strings(schema: Any) -> dict[str, Any]:
    """The schema without strings at its top, where strings have another form."""
    found = dict(schema) if isinstance(schema, Mapping) else {}
    if isinstance(found.get("type"), list):
        found["type"] = [each for each in found["type"] if each != "string"]
    elif not found.keys() & {"type", "anyOf", "oneOf", "allOf", "$ref", "enum", "const"}:
        found["type"] = ["number", "boolean", "null", "object", "array"]
    return found


def _limits(schema: Mapping[str, Any]) -> list[str]:
    """Regular expressions that a text must match."""
    found = []
    if isinstance(pattern := schema.get("pattern"), str):
        found.append(regex(_whole(pattern)))
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    if least or most != "":
        found.append(f"/(?s:.){{{least},{most}}}/")
    return found


def _whole(pattern: str) -> str:
    """A pattern of JSON Schema, which may match anywhere in the text, as one that matches the whole of it."""
    body = pattern.removeprefix("^")
    begin = "(?s:.*)" if body == pattern else ""
    num_escapes = len(body[:-1]) - len(body[:-1].rstrip("\\"))
    is_open = not body.endswith("$") or num_escapes % 2 == 1
    return f"{begin}({body if is_open else body[:-1]}){'(?s:.*)' if is_open else ''}"
