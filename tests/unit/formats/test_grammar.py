"""What a grammar lets a model write, the parser reads: as the calls that the request allows."""

from __future__ import annotations

import json
import os
import random

import jsonschema
import pytest
from tests.unit.formats.golden import TOOLS
from tests.unit.formats.sampling import sample, tiny_tokens
from tests.unit.formats.transcripts import joined, read

from stoker.formats.format import Format, Harmony, XmlCall
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
    text = sample(tokens, grammar, closing_of(format, with_tokens), random.Random(seed))
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


def closing_of(format: Format, with_tokens: bool = True) -> tuple[str, ...]:
    """Markers, of which some close what is open."""
    calls = format.calls
    assert calls is not None
    if isinstance(calls.style, Harmony):  # as text, other markers than the end of a message would begin messages
        return format.tokens if with_tokens else (harmony.END,)
    style = [value for slot in type(calls.style).__slots__ if isinstance(value := getattr(calls.style, slot), str)]
    return tuple(filter(None, (*style, calls.end, *(calls.section or ()))))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.quick_cases(12)
def test_what_the_grammar_allows_is_what_the_parser_reads(name: str):
    for seed in range(4):
        choice, parallel = CHOICES[seed]
        check(FORMATS[name], choice, parallel, with_tokens=seed % 2 == 0, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("with_tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("name", FORMATS)
def test_what_the_grammar_allows_is_what_the_parser_reads_many_times(name: str, with_tokens: bool):
    """STOKER_GRAMMAR_SAMPLES: how many answers of each format, half of them with markers as special tokens."""
    for seed in range(int(os.environ.get("STOKER_GRAMMAR_SAMPLES", "120")) // 2):
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
@pytest.mark.quick_cases(14)
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
    texts = [sample(tokens, grammar, closing_of(format), random.Random(seed)) for seed in range(3)]
    for text in texts:
        ((_, arguments),) = joined(read(format, [text], {"note": PATTERNS})).calls
        jsonschema.validate(json.loads(arguments), PATTERNS)


LONG = {
    "type": "object",
    "properties": {"text": {"type": "string", "maxLength": 60}, "html": {"type": "string"}},
    "required": ["text", "html"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("name", ["qwen_xml", "glm47", "minimax_m2", "deepseek_v32", "step3"])
@pytest.mark.parametrize("with_tokens", [True, False], ids=["tokens", "text"])
def test_a_text_may_contain_the_beginning_of_the_marker_that_ends_it(name: str, with_tokens: bool):
    """A text with a limit could not end, because it took the marker's beginning; `</` ended others."""
    format = FORMATS[name]
    special = format.special_tokens | ({"｜DSML｜"} if "deepseek" in name else set())
    tokens = tiny_tokens(frozenset(special) if with_tokens else frozenset())
    calls = format.calls
    assert calls is not None
    tool = ToolSchema("note", LONG, strict=True)
    grammar = grammar_of(format, [tool], choice=named("note"), parallel=False, special_tokens=tokens.added)
    section = calls.section[0] + calls.section_space if calls.section else ""
    style = calls.style
    assert isinstance(style, XmlCall)

    def element(key: str, value: str) -> str:
        attribute = ' string="true">' if style.string_attribute else ""
        before = style.line + style.value_begin if style.value_begin else ""
        return f"{style.key_begin}{key}{style.key_end}{attribute}{before}{style.pad}{value}{style.pad}{style.value_end}"

    values = {"text": "a\n</ b", "html": "<p>a</p>\n</par"}
    elements = "".join(element(key, value) + style.line for key, value in values.items())
    end = style.end if style.end != calls.end else ""
    call = f"{style.name_begin}note{style.name_end}{style.line}{elements}{end}"
    closing = calls.section_space + calls.section[1] if calls.section else ""
    text = f"{section}{calls.begin}{calls.before}{call}{calls.after}{calls.end}{closing}"
    assert joined(read(format, [text], {"note": LONG})).calls == [("note", json.dumps(values))]
    assert tokens.allows(grammar or "", text), f"{text}\n{grammar}"


def test_marks_in_a_key_are_escaped_where_it_is_an_attribute():
    format = FORMATS["kimi_k3"]
    tokens = tiny_tokens(format.special_tokens)
    schema = {
        "type": "object",
        "properties": {'a&"b': {"type": ["string", "integer"]}},
        "required": ['a&"b'],
        "additionalProperties": False,
    }
    tool = ToolSchema("note", schema, strict=True)
    grammar = grammar_of(format, [tool], choice=REQUIRED, parallel=True, special_tokens=tokens.added)
    assert grammar is not None
    for type_, written, value in (("string", "7", "7"), ("number", "7", 7)):
        text = (
            '<|open|>tools<|sep|><|open|>call tool="note" index="1"<|sep|><|open|>argument key="a&amp;&quot;b" '
            f'type="{type_}"<|sep|>{written}<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
        )
        assert tokens.allows(grammar, text)
        assert joined(read(format, [text], {"note": schema})).calls == [("note", json.dumps({'a&"b': value}))]


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
        text = sample(tokens, grammar, ("yes", "no", *closing_of(format)), random.Random(seed))
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
    answer = joined(read(FORMATS["hermes"], [text], CLOSED, starts_in_reasoning=True))
    assert answer.calls


def test_a_tokenizer_without_the_token_before_arguments_gets_an_array_of_json():
    """Mistral's models with tokenizers before version 11 were made to write a form that they do not know."""
    format = FORMATS["mistral"]
    older, newer = tiny_tokens(frozenset({"[TOOL_CALLS]"})), tiny_tokens(frozenset({"[TOOL_CALLS]", "[ARGS]"}))
    forms = ('[TOOL_CALLS][{"name": "note", "arguments": {"text": "a"}}]', '[TOOL_CALLS]note[ARGS]{"text": "a"}')
    for tokens, written, other in ((older, *forms), (newer, *reversed(forms))):
        for choice in (REQUIRED, named("note")):
            grammar = grammar_of(format, STRICT, choice=choice, parallel=True, special_tokens=tokens.added)
            assert grammar is not None
            assert tokens.allows(grammar, written)
            assert not tokens.allows(grammar, other)
            assert joined(read(format, [written], CLOSED)).calls == [("note", '{"text": "a"}')]


def test_text_does_not_contain_what_is_read_as_a_call_without_markers():
    tokens = tiny_tokens()
    for name, call in (("llama_json", 'Hi {"name": "note", "parameters": {}}'), ("pythonic", "Hi\n[note(a=1)]")):
        grammar = grammar_of(FORMATS[name], STRICT, choice=AUTO, parallel=False, special_tokens=tokens.added)
        assert grammar is not None
        assert joined(read(FORMATS[name], [call], CLOSED)).calls
        assert not tokens.allows(grammar, call)
        assert tokens.allows(grammar, 'Hi {"size": [1]}')
