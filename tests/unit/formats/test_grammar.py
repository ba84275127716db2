"""What a grammar lets a model write, the parser reads: as the calls that the request allows."""

from __future__ import annotations

import json
import random

import jsonschema
import pytest
from tests.unit.formats.golden import TOOLS
from tests.unit.formats.sampling import sample, tiny_tokens
from tests.unit.formats.transcripts import joined, read

from stoker.formats.format import Format, Harmony
from stoker.formats.grammar import grammar_of
from stoker.formats.reading import harmony
from stoker.formats.registry import FORMATS
from stoker.formats.tool_choice import AUTO, REQUIRED, Choice, ToolSchema, named
from stoker.formats.writing.obeyed import unobeyed

CLOSED = {name: {**schema, "additionalProperties": False} for name, schema in TOOLS.items()}
STRICT = [ToolSchema(name, schema, strict=True) for name, schema in CLOSED.items()]
CHOICES = [(REQUIRED, True), (REQUIRED, False), (named("note"), True), (AUTO, True), (AUTO, False)]


def check(format: Format, choice: Choice, parallel: bool, with_tokens: bool, seed: int) -> None:
    tokens = tiny_tokens(format.special_tokens if with_tokens else frozenset())
    grammar = grammar_of(format, STRICT, choice=choice, parallel=parallel, special_tokens=tokens.added)
    assert grammar is not None
    calls = format.calls
    assert calls is not None
    closing = (*vars_of(calls.style), calls.end, *(calls.section or ()))
    if isinstance(calls.style, Harmony):  # as text, other markers than the end of a message would begin messages
        closing = format.tokens if with_tokens else (harmony.END,)
    text = sample(tokens, grammar, tuple(filter(None, closing)), random.Random(seed))
    if text is None:
        return
    answer = joined(read(format, [text], CLOSED))
    evidence = f"{answer}\n{text!r}\n{grammar}"
    assert answer.calls or not choice.must_call, evidence
    if choice.must_call:
        assert not answer.content, evidence
    if choice.is_named or not parallel:
        assert len(answer.calls) <= 1, evidence
    for name, arguments in answer.calls:
        assert name in (choice.names or CLOSED), evidence
        try:
            jsonschema.validate(json.loads(arguments), CLOSED[name])
        except ValueError as error:
            raise AssertionError(evidence) from error


def vars_of(style: object) -> list[str]:
    """The markers of a style."""
    return [value for slot in type(style).__slots__ if isinstance(value := getattr(style, slot), str)]


@pytest.mark.parametrize("name", FORMATS)
def test_what_the_grammar_allows_is_what_the_parser_reads(name: str):
    for seed in range(4):
        choice, parallel = CHOICES[seed]
        check(FORMATS[name], choice, parallel, with_tokens=seed % 2 == 0, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("with_tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("name", FORMATS)
def test_what_the_grammar_allows_is_what_the_parser_reads_1000_times(name: str, with_tokens: bool):
    for seed in range(500):
        choice, parallel = CHOICES[seed % len(CHOICES)]
        check(FORMATS[name], choice, parallel, with_tokens, seed)


PATTERNS = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "pattern": r"^[a\\/<]{2,5}$", "maxLength": 4},
        "any": {"type": "string", "pattern": "b"},
    },
    "required": ["path", "any"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_pattern_of_a_strict_tool_is_obeyed_or_named(name: str):
    format = FORMATS[name]
    assert format.calls is not None
    if (pointer := unobeyed(format.calls.style, PATTERNS)) is not None:
        assert pointer in ("/properties/path/maxLength", "/properties/path/pattern")
        return
    tool = ToolSchema("note", PATTERNS, strict=True)
    tokens = tiny_tokens(format.special_tokens)
    grammar = grammar_of(format, [tool], choice=REQUIRED, parallel=False, special_tokens=tokens.added)
    assert grammar is not None
    closing = (*vars_of(format.calls.style), format.calls.end, *(format.calls.section or ()))
    texts = [sample(tokens, grammar, tuple(filter(None, closing)), random.Random(seed)) for seed in range(3)]
    for text in filter(None, texts):
        ((_, arguments),) = joined(read(format, [text], {"note": PATTERNS})).calls
        jsonschema.validate(json.loads(arguments), PATTERNS)


def test_nothing_is_constrained_where_all_is_allowed():
    loose = [ToolSchema("f", {"type": "object"})]
    assert grammar_of(FORMATS["hermes"], loose, choice=AUTO, parallel=True) is None
    assert grammar_of(FORMATS["hermes"], loose, choice=AUTO, parallel=False) is not None
    assert grammar_of(FORMATS["hermes"], loose, choice=Choice(names=frozenset({"f"})), parallel=True) is None
    assert grammar_of(FORMATS["hermes"], [*loose, *STRICT], choice=Choice(names=frozenset({"f"})), parallel=True)


@pytest.mark.parametrize("name", ["hermes", "llama_json", "harmony"])
def test_an_answer_is_calls_or_the_form_of_the_response(name: str):
    format, tokens = FORMATS[name], tiny_tokens(FORMATS[name].special_tokens)
    grammar = grammar_of(format, STRICT, choice=AUTO, parallel=True, answer='"yes" | "no"', special_tokens=tokens.added)
    assert grammar is not None
    contents = set()
    for seed in range(12):
        text = sample(tokens, grammar, ("yes", "no", '"', "}"), random.Random(seed))
        if text is not None:
            answer = joined(read(format, [text], CLOSED))
            contents.add(answer.content)
            assert bool(answer.content) != bool(answer.calls)
    assert contents <= {"yes", "no", ""}


def test_a_grammar_that_starts_in_reasoning_reads_until_its_end():
    tokens = tiny_tokens()
    grammar = grammar_of(
        FORMATS["hermes"],
        STRICT,
        choice=REQUIRED,
        parallel=True,
        starts_in_reasoning=True,
        special_tokens=tokens.added,
    )
    assert grammar is not None
    text = sample(tokens, grammar, ("</think>", '"', "}"), random.Random(5))
    assert text is not None
    answer = joined(read(FORMATS["hermes"], [text], CLOSED, starts_in_reasoning=True))
    assert answer.calls
