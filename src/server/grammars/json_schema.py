"""JSON schemas: checked against their metaschema and against what llguidance can obey, then made a grammar.

Nothing is ignored: a keyword that cannot be obeyed is an error with its JSON pointer. Keywords that no draft defines
are annotations, as the standard says.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import jsonschema
import llguidance
import numpy as np
import referencing.exceptions
from jsonschema.validators import validator_for

from ...formats.reading.schema_types import value_at
from ..protocol.errors import ApiError, bad_request
from ..protocol.whitespace import DEFAULT
from .lark import check_text
from .patterns import rust_pattern

MAX_NODES = 20_000  # of a schema: subschemas, and values of `enum` and `const`
MAX_DEPTH = 64
# Without \u each text has one spelling: else a listed property could be written as one that the schema does not list.
_ESCAPES = '"\\bfnrt'
_SPELLABLE = re.compile(r"[^\x00-\x07\x0b\x0e-\x1f\ud800-\udfff]*")
_MAX_INTEGER = 2**53  # larger ones are not exact for most readers of JSON
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_MAX_ATTEMPTS = 64  # to find the place that llguidance refuses

# Keywords of subschemas, and what their values are.
_ONE = ("items", "additionalItems", "additionalProperties")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_REASONS = {
    "uniqueItems": "a grammar cannot compare items",
    "contains": "a grammar cannot count items that match",
    "not": "a grammar cannot exclude what a schema describes",
    "$dynamicRef": "use `$ref`",
    "$recursiveRef": "use `$ref`",
}
# Problems that llguidance has words for which no client knows.
_PROBLEMS = {
    "NoExtensionBias": "it refers to itself without an end",
    "coerce_one_of": "more than one member of `oneOf` may match; write `anyOf`",
}
# Of all drafts. Those that llguidance does not know are refused.
_FORMATS = (
    *("date-time", "time", "date", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6", "uri"),
    *(
        "uri-reference",
        "iri",
        "iri-reference",
        "uuid",
        "uri-template",
        "json-pointer",
        "relative-json-pointer",
        "regex",
    ),
)
# llguidance's own allow 29 February in every year, and leap seconds at any time.
_DAYS = (
    "[0-9]{4}-(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|[0-9]{4}-(0[469]|11)-(0[1-9]|[12][0-9]|30)|"
    "[0-9]{4}-02-(0[1-9]|1[0-9]|2[0-8])|"
    "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29"
)
_HOURS = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIMES = f"{_HOURS}:[0-5][0-9]([.][0-9]{{1,9}})?([Zz]|[-+]{_HOURS})"
_EXACT_FORMATS = {"date": f"^({_DAYS})$", "time": f"^{_TIMES}$", "date-time": f"^({_DAYS})[Tt]{_TIMES}$"}
# Accepted where they have no effect: `uniqueItems: false`.
_WITHOUT_EFFECT: Mapping[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "propertyNames": (True, {}),
    "minContains": (0,),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "if": (),
    "then": (),
    "else": (),
    "not": (False,),
    "contains": (),
    "maxContains": (),
    "$dynamicRef": (),
    "$recursiveRef": (),
}


def grammar_of_schema(
    schema: Any, param: str, *, whitespace_pattern: str | None, is_compact: bool, is_closed: bool
) -> str:
    """The grammar of the JSON texts that a schema allows, in their shortest or in a readable form.

    whitespace_pattern: between tokens; None for the default.
    is_closed: objects have only properties that their schema lists.

    Raises ApiError with the JSON pointer of what is wrong or cannot be obeyed.
    """
    _check_size(schema, param)
    _check_metaschema(schema, param)
    schema = _without_no_effect(schema)
    places = dict(_subschemas(schema))
    for pointer, node in places.items():
        _check_keywords(node, f"{param}#{pointer}")
        _check_reference(node.get("$ref"), schema, places, f"{param}#{pointer}/$ref")
        _check_values(node, f"{param}#{pointer}")
    schema = _rebuilt(schema, _for_llguidance)
    if is_closed:
        schema = _closed(schema)
    options: dict[str, Any] = {"lenient": False, "coerce_one_of": False, "json_allowed_escapes": _ESCAPES}
    if is_compact:
        options["whitespace_flexible"] = False
    else:
        options["whitespace_pattern"] = DEFAULT if whitespace_pattern is None else whitespace_pattern
    grammar = _grammar(schema, options)
    if (problem := problem_of(grammar)) is not None:
        raise _refused(problem, schema, options, param)
    return grammar


def obeyable(schema: Any, param: str) -> Any:
    """The schema without what no answer can be made to obey, and with patterns as llguidance reads them.

    For tools whose schema is a wish. Raises ApiError with the JSON pointer of what is not a JSON schema, or if nothing
    can obey what is left.
    """
    _check_size(schema, param)

    def change(node: dict[str, Any]) -> dict[str, Any]:
        changed = {name: value for name, value in node.items() if name not in _WITHOUT_EFFECT and name != "x-guidance"}
        if "pattern" in node and (pattern := _obeyable_pattern(changed.pop("pattern"))) is not None:
            changed["pattern"] = pattern
        if isinstance(keys := node.get("patternProperties"), dict):
            found = {_obeyable_pattern(key): value for key, value in keys.items()}
            changed["patternProperties"] = {key: value for key, value in found.items() if key is not None}
        if "format" in node and not _is_obeyable({"type": "string", "format": node["format"]}):
            del changed["format"]
        if "oneOf" in node:  # that only one of them matches is left out
            changed = {"anyOf": changed.pop("oneOf"), **changed}
        return changed

    found = _rebuilt(schema, change)
    options = {"lenient": True}
    if (problem := problem_of(_grammar(found, options))) is not None:
        _check_metaschema(schema, param)
        raise _refused(problem, found, options, param)
    return found


def _obeyable_pattern(pattern: Any) -> str | None:
    try:
        found = rust_pattern(pattern)
    except (TypeError, ValueError):
        return None
    return found if _is_obeyable({"type": "string", "pattern": found}) else None


def _is_obeyable(schema: Mapping[str, Any]) -> bool:
    return problem_of(_grammar(schema, {})) is None


def _grammar(schema: Any, options: Mapping[str, Any]) -> str:
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    return llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=options)  # type: ignore[arg-type]


def problem_of(grammar: str, tokens: llguidance.LLTokenizer | None = None) -> str | None:
    """Why a grammar cannot be compiled, or not without ignoring a part of it."""
    _, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar, tokens)
    if messages:
        message = messages[0].removeprefix("WARNING: ").strip()
        return _in_our_words(" ".join(line.strip() for line in message.splitlines() if line.strip())[:300])
    matcher = llguidance.LLMatcher(tokens or byte_tokens(), grammar, log_level=0)
    for step in range(2):  # some are found to be too complex after the first byte
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little"))
        if matcher.is_error():
            return _in_our_words(matcher.get_error().strip().partition("\n")[0][:300])
        if not allowed.size:
            return None if step else "no text obeys it"
        matcher.consume_token(int(allowed[0]))
    return None


def _in_our_words(problem: str) -> str:
    return next((ours for mark, ours in _PROBLEMS.items() if mark in problem), problem)


@functools.lru_cache(maxsize=4)
def byte_tokens(special_tokens: tuple[str, ...] = (), vocab_size: int = 0) -> llguidance.LLTokenizer:
    """A vocabulary of bytes and these special tokens, which grammars may name.

    vocab_size: of the model, whose ids grammars may name; the others are tokens that no text has.
    """
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Vocabulary(special_tokens, vocab_size)))


class _Vocabulary:
    def __init__(self, special_tokens: Sequence[str], vocab_size: int) -> None:
        named = [*(bytes([value]) for value in range(256)), *map(str.encode, special_tokens)]
        others = (b"<[%d]>" % token_id for token_id in range(len(named), vocab_size - 1))
        self.tokens = [*named, *others, b"<end>"]
        self.special_token_ids = list(range(256, len(self.tokens)))
        self.eos_token_id = len(self.tokens) - 1
        self.bos_token_id = None

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def _check_size(schema: Any, param: str) -> None:
    """Check the size of a schema before anything recurses into it."""
    num_nodes, stack = 0, [(schema, 0)]
    while stack:
        node, depth = stack.pop()
        num_nodes += 1
        if num_nodes > MAX_NODES or depth > 2 * MAX_DEPTH:
            limit = f"more than {MAX_NODES} nodes" if num_nodes > MAX_NODES else f"more than {MAX_DEPTH} levels"
            raise bad_request(f"the schema is too large: {limit}", code="grammar_too_complex", param=param)
        if isinstance(node, str):
            check_text(node, param)
        elif isinstance(node, dict):
            for key in node:
                check_text(key, param)
            stack += [(child, depth + 1) for child in node.values()]
        elif isinstance(node, list):
            stack += [(child, depth + 1) for child in node]


def _check_metaschema(schema: Any, param: str) -> None:
    declared = schema.get("$schema") if isinstance(schema, dict) else None
    kind = validator_for(schema, default=jsonschema.Draft202012Validator)
    if declared is not None and (not isinstance(declared, str) or declared.rstrip("#") not in _DRAFTS):
        message = f"`$schema` is {str(declared)[:80]!r}; known are drafts 4, 6, 7, 2019-09 and 2020-12"
        raise bad_request(message, param=f"{param}#/$schema")
    try:
        kind.check_schema(schema, format_checker=_NO_FORMATS)  # type: ignore[call-arg]
    except jsonschema.SchemaError as error:
        pointer = "".join(f"/{_escaped(part)}" for part in error.absolute_path)
        place = f"{param}#{pointer}"
        raise bad_request(f"not a JSON schema: {error.message[:200]} (at `{place}`)", param=place) from None
    except (referencing.exceptions.Unresolvable, RecursionError) as error:
        raise bad_request(f"not a JSON schema: {str(error)[:200]}", param=param) from None


_NO_FORMATS = jsonschema.FormatChecker(formats=())  # patterns are those of ECMA-262, which Python cannot check
_DRAFTS = frozenset(
    str(kind.META_SCHEMA.get("$id") or kind.META_SCHEMA.get("id")).rstrip("#")
    for kind in (
        jsonschema.Draft4Validator,
        jsonschema.Draft6Validator,
        jsonschema.Draft7Validator,
        jsonschema.Draft201909Validator,
        jsonschema.Draft202012Validator,
    )
)


def _check_keywords(node: Mapping[str, Any], place: str) -> None:
    """Raises ApiError for a keyword that llguidance does not obey."""
    for name in node:
        if name in _WITHOUT_EFFECT:
            reason = f": {_REASONS[name]}" if name in _REASONS else ""
            raise _cannot(f"`{name}`{reason}", f"{place}/{_escaped(name)}")
    if "x-guidance" in node:
        raise _cannot("`x-guidance`", f"{place}/x-guidance")


def _check_reference(reference: Any, schema: Any, places: Container[str], place: str) -> None:
    """Raises ApiError for a reference to another document, or to what was not checked: it is no place of a subschema.

    places: the JSON pointers of all subschemas that are objects.
    """
    if not isinstance(reference, str):
        return
    if not reference.startswith("#"):
        raise _cannot(f"a reference to another document, {reference[:80]!r}", place)
    pointer = unquote(reference[1:])
    if pointer.startswith("/") and pointer not in places and not isinstance(value_at(schema, pointer), bool):
        raise _cannot(f"a reference to {reference[:80]!r}, where no subschema is; write it into `$defs`", place)


def _check_values(node: Mapping[str, Any], place: str) -> None:
    """Raises ApiError for values that llguidance would read as others, or count wrongly."""
    for name in ("properties", "patternProperties"):
        for key in node.get(name, ()):
            if not _SPELLABLE.fullmatch(key):
                raise _cannot("a name with control characters", f"{place}/{name}")
            if name == "patternProperties":
                _check_pattern(key, f"{place}/{name}/{_escaped(key)}")
    if isinstance(node.get("pattern"), str):
        _check_pattern(node["pattern"], f"{place}/pattern")
    for name in ("const", "enum", "required", *_NUMBERS):
        stack = [node[name]] if name in node else []
        while stack:
            value = stack.pop()
            if isinstance(value, dict):
                stack += [*value, *value.values()]
            elif isinstance(value, list):
                stack += value
            elif isinstance(value, int) and abs(value) > _MAX_INTEGER:
                raise _cannot(f"the integer {value}, which is above 2**53", f"{place}/{name}")
            elif isinstance(value, str) and not _SPELLABLE.fullmatch(value):
                raise _cannot("a text with control characters", f"{place}/{name}")
    least, required = node.get("minProperties", 0), set(node.get("required", ()))
    is_closed = node.get("additionalProperties") is False and not node.get("patternProperties")
    if least > max(1, len(required)) and not is_closed:
        reason = "names that the schema does not list may repeat; list them, or set `additionalProperties: false`"
        raise _cannot(f"`minProperties`: {reason}", f"{place}/minProperties")


def _check_pattern(pattern: str, place: str) -> None:
    try:
        rust_pattern(pattern)
    except ValueError as error:
        raise _cannot(f"a pattern with {error}", place) from None


def _for_llguidance(node: dict[str, Any]) -> dict[str, Any]:
    changed = dict(node)
    if isinstance(node.get("pattern"), str):
        changed["pattern"] = rust_pattern(node["pattern"])
    if "patternProperties" in node:
        changed["patternProperties"] = {rust_pattern(key): value for key, value in node["patternProperties"].items()}
    if node.get("format") in _EXACT_FORMATS:
        changed["allOf"] = [*node.get("allOf", ()), {"pattern": _EXACT_FORMATS[changed.pop("format")]}]
    return changed


def _cannot(what: str, place: str) -> ApiError:
    return bad_request(f"no answer can be made to obey {what} (at `{place}`)", code="grammar_unsupported", param=place)


def _subschemas(schema: Any, pointer: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every schema that is an object within this one, itself first, with their JSON pointers."""
    if not isinstance(schema, dict):
        return
    yield pointer, schema
    for name, value in schema.items():
        place = f"{pointer}/{_escaped(name)}"
        if name in _ONE and isinstance(value, dict):
            yield from _subschemas(value, place)
        elif name in _LISTS and isinstance(value, list):
            for index, child in enumerate(value):
                yield from _subschemas(child, f"{place}/{index}")
        elif name in _MAPS and isinstance(value, dict):
            for key, child in value.items():
                yield from _subschemas(child, f"{place}/{_escaped(key)}")


def _rebuilt(schema: Any, change: Any) -> Any:
    """A copy in which `change` has been applied to every subschema that is an object."""
    if not isinstance(schema, dict):
        return schema
    result: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _ONE and isinstance(value, dict):
            value = _rebuilt(value, change)
        elif name in _LISTS and isinstance(value, list):
            value = [_rebuilt(child, change) for child in value]
        elif name in _MAPS and isinstance(value, dict):
            value = {key: _rebuilt(child, change) for key, child in value.items()}
        result[name] = value
    return change(result)


def _without_no_effect(schema: Any) -> Any:
    def change(node: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in node.items() if not _has_no_effect(name, value)}

    return _rebuilt(schema, change)


def _has_no_effect(name: str, value: Any) -> bool:
    if name == "format" and value not in _FORMATS:  # such as OpenAPI's int32: an annotation
        return True
    return any(value == each and type(value) is type(each) for each in _WITHOUT_EFFECT.get(name, ()))


def _closed(schema: Any) -> Any:
    def change(node: dict[str, Any]) -> dict[str, Any]:
        is_open = "properties" in node and "additionalProperties" not in node and "patternProperties" not in node
        return {**node, "additionalProperties": False} if is_open else node

    return _rebuilt(schema, change)


def _refused(problem: str, schema: Any, options: Mapping[str, Any], param: str) -> ApiError:
    """llguidance names no place: the deepest subschema that it refuses alone is the one."""
    pointer = ""
    shared = {name: schema[name] for name in ("$defs", "definitions") if isinstance(schema, dict) and name in schema}
    for place, node in list(_subschemas(schema))[1 : _MAX_ATTEMPTS + 1]:
        if place.startswith(pointer) and (own := problem_of(_grammar({**shared, **node}, options))) is not None:
            pointer, problem = place, own
    place = f"{param}#{pointer}"
    return bad_request(
        f"no answer can be made to obey this schema: {problem} (at `{place}`)", code="grammar_unsupported", param=place
    )


def _escaped(part: Any) -> str:
    """Escape a part of a JSON pointer."""
    return str(part).replace("~", "~0").replace("/", "~1")
