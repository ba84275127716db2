"""A schema is obeyed, or refused with the place of what cannot be: texts that its grammar allows are valid."""

from __future__ import annotations

import functools
import json
import random
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema
import llguidance
import numpy as np
import pytest
from jsonschema.validators import extend, validator_for

import stoker
from stoker.server.grammars.compile import byte_tokens
from stoker.server.grammars.json_schema import grammar_of_schema
from stoker.server.grammars.patterns import rust_pattern
from stoker.server.protocol.errors import ApiError

# Hand-written and generated: every keyword of every draft, alone and together.
SCHEMAS = [json.loads(line) for line in (Path(__file__).parent / "schemas.jsonl").read_text("utf-8").splitlines()]
NUM_TEXTS = 6
MAX_TOKENS = 600


def grammar_of(schema: Any, **options: Any) -> str:
    return grammar_of_schema(
        schema, "schema", **{"whitespace_pattern": None, "is_compact": False, "is_closed": False, **options}
    )


@functools.cache
def vocabulary() -> llguidance.LLTokenizer:
    file = Path(stoker.__file__).parent / "builtin" / "tiny" / "tokenizer.json"
    return llguidance.LLTokenizer(file.read_text("utf-8"))


@functools.cache
def closing() -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Of each token: whether it begins with what can end a value."""
    tokens = vocabulary()
    return np.array([tokens.decode_bytes([each])[:1] in b'"]},:0' for each in range(tokens.vocab_size)])


def sampled_text(grammar: str, randomness: random.Random) -> str | None:
    """What a model without any preference writes; None if it does not come to an end."""
    tokens = vocabulary()
    matcher = llguidance.LLMatcher(tokens, grammar)
    token_ids: list[int] = []
    while len(token_ids) < MAX_TOKENS:
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        assert not matcher.is_error(), matcher.get_error()
        allowed = np.flatnonzero(np.unpackbits(mask, count=tokens.vocab_size, bitorder="little"))
        assert allowed.size, "no token is allowed"
        if len(token_ids) > 60 and closing()[allowed].any():
            allowed = allowed[closing()[allowed]]
        token_id = int(randomness.choice(allowed))
        if token_id in tokens.eos_tokens:
            break
        token_ids.append(token_id)
        matcher.consume_token(token_id)
        if matcher.is_stopped():
            break
    return tokens.decode_str(token_ids) if len(token_ids) < MAX_TOKENS else None


def accepts(grammar: str, text: str) -> bool:
    matcher = llguidance.LLMatcher(byte_tokens(), grammar)
    return matcher.try_consume_tokens(list(text.encode())) == len(text.encode()) and matcher.is_accepting()


def _multiple_of(validator: Any, divisor: Any, instance: Any, _: Any) -> Any:
    """Up to the rounding of a number that was read as a float."""
    if validator.is_type(instance, "number"):
        quotient = Fraction(instance) / Fraction(str(divisor))
        if abs(quotient - round(quotient)) > abs(quotient) * Fraction(1, 10**12):
            yield jsonschema.ValidationError(f"{instance} is not a multiple of {divisor}")


def _pattern(validator: Any, pattern: str, instance: Any, _: Any) -> Any:
    """Python's notation has other names for some classes; its negated ones are those of Unicode."""
    written = pattern.replace(r"\p{L}", r"[^\W\d_]").replace("(?<x>", "(?P<x>")
    flags = re.ASCII if r"\D" in pattern else 0
    if validator.is_type(instance, "string") and not re.search(written, instance, flags):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


def problems(schema: Any, text: str) -> list[str]:
    """Of a text, by jsonschema; numbers are compared exactly, and patterns have the classes of ECMA-262."""
    kind = extend(
        validator_for(schema, jsonschema.Draft202012Validator), {"multipleOf": _multiple_of, "pattern": _pattern}
    )
    return [error.message for error in kind(schema).iter_errors(json.loads(text))]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:80])
@pytest.mark.quick_cases(2, schema=SCHEMAS[5::60])
def test_a_schema_is_obeyed_or_refused_with_its_place(schema: Any):
    grammar, refused = None, None
    try:
        grammar = grammar_of(schema)
    except ApiError as error:
        refused = error.status, (error.param or "").partition("#")[0]
    assert refused in (None, (400, "schema"))
    if grammar is None:
        return
    randomness = random.Random(1)
    for _ in range(NUM_TEXTS):
        text = sampled_text(grammar, randomness)
        assert text is None or problems(schema, text) == [], text


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": {"a/b": {"items": {"uniqueItems": True}}}}, "schema#/properties/a~1b/items/uniqueItems"),
        ({"anyOf": [{}, {"not": {}}]}, "schema#/anyOf/1/not"),
        ({"properties": {"a": {"type": "strin"}}}, "schema#/properties/a/type"),
        ({"properties": {"a": {"type": "string", "pattern": "(?=a)b"}}}, "schema#/properties/a"),
        ({"x-guidance": {"lenient": True}}, "schema#/x-guidance"),
        ({"$ref": "http://example.com/other"}, "schema#/$ref"),
        ({"$schema": "http://example.com/mine"}, "schema#/$schema"),
        ({"const": 2**60}, "schema#/const"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "schema#/$defs/a"),
        (False, "schema#"),
        # where no subschema is, nothing was checked: what llguidance ignores there was accepted, and disobeyed
        ({"$ref": "#/a", "a": {"type": "object", "minProperties": 2}}, "schema#/$ref"),
        ({"$ref": "#/examples/0", "examples": [{"x-guidance": {"lenient": True}}]}, "schema#/$ref"),
        ({"items": {"$ref": "#/$defs/a"}}, "schema#/items/$ref"),
    ],
)
def test_what_cannot_be_obeyed_is_refused_with_a_pointer(schema: Any, place: str):
    with pytest.raises(ApiError) as refused:
        grammar_of(schema)
    assert (refused.value.status, refused.value.param) == (400, place)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"const": 7}}},
        {"$ref": "#/prefixItems/0", "type": "integer", "prefixItems": [{"const": 7}]},
        {"$ref": "#/$defs/any", "type": "integer", "$defs": {"any": True}},
        {"$ref": "#seven", "$defs": {"a": {"$anchor": "seven", "const": 7}}},
    ],
)
def test_a_reference_to_a_subschema_is_followed(schema: Any):
    assert accepts(grammar_of(schema), "7")


def test_problems_are_named_in_words_of_json_schema():
    for schema, words in (({"$ref": "#"}, "itself"), ({"oneOf": [{}, {"type": "null"}]}, "write `anyOf`")):
        with pytest.raises(ApiError, match=words):
            grammar_of(schema)


def test_a_listed_property_has_one_spelling():
    r"""`{"\u0061": "x"}` was accepted as an additional property."""
    grammar = grammar_of({"type": "object", "properties": {"a": {"type": "integer"}, "\n": {"type": "integer"}}})
    assert accepts(grammar, '{"a": 1}')
    for text in (r'{"\u0061": "x"}', r'{"\u000a": "x"}', r'{"\u000A": "x"}', '{"a": 1, "a": "x"}'):
        assert not accepts(grammar, text)


def test_properties_that_repeat_are_not_counted_as_several():
    for schema in ({"minProperties": 2}, {"minProperties": 2, "properties": {"a": {}}}):
        with pytest.raises(ApiError, match="minProperties"):
            grammar_of({"type": "object", **schema})
    grammar = grammar_of({"type": "object", "minProperties": 2, "required": ["a", "b"]})
    assert not accepts(grammar, '{"a": 1, "a": 1}')


def test_whitespace_is_bounded():
    grammar = grammar_of({"type": "array", "items": {"type": "null"}})
    assert accepts(grammar, "[null, null\n]")
    assert accepts(grammar, "[\n        null,\n        null\n    ]")
    for text in ("[null,  null]", "[" + "\n" * 2 + "null]", "[\n" + " " * 33 + "null]", "[null] ", "[null]\n"):
        assert not accepts(grammar, text)
    assert not accepts(grammar_of({"type": "array"}, is_compact=True), "[1, 2]")
    assert accepts(grammar_of({"type": "array"}, is_compact=True), "[1,2]")


def test_a_closed_schema_has_no_other_properties():
    schema = {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {}}}}}
    open_schema = {**schema, "additionalProperties": True}
    assert accepts(grammar_of(schema), '{"c":1}')
    assert not accepts(grammar_of(schema, is_closed=True), '{"c":1}')
    assert not accepts(grammar_of(schema, is_closed=True), '{"a":{"c":1}}')
    assert accepts(grammar_of(open_schema, is_closed=True), '{"c":1}')


def test_keywords_without_effect_and_annotations_are_accepted():
    schema = {"title": "t", "uniqueItems": False, "nullable": True, "format": "int32", "type": "integer", "default": 3}
    assert accepts(grammar_of(schema), "7")


@pytest.mark.parametrize("pattern", ["[[:alpha:]]", "[a&&b]", "[a--b]", "(?i)a", r"\Aa", r"\x{41}", "[^]", "(?P<n>a)"])
def test_patterns_that_mean_something_else_in_another_notation_are_refused(pattern: str):
    with pytest.raises(ValueError, match=r"`.*`"):
        rust_pattern(pattern)


def test_a_dot_matches_no_line_end():
    grammar = grammar_of({"type": "string", "pattern": "^.[.]$"})
    assert accepts(grammar, '"a."')
    assert not accepts(grammar, r'"\r."')
    assert not accepts(grammar, '"ab"')


def test_a_large_schema_is_refused():
    deep: Any = {}
    for _ in range(200):
        deep = {"items": deep}
    for schema in (deep, {"enum": list(range(30_000))}):
        with pytest.raises(ApiError, match="too large"):
            grammar_of(schema)
