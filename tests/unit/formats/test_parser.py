"""Reading answers: promises that hold for every format, shown with the simplest one."""

from __future__ import annotations

import json

import pytest
from tests.unit.formats.transcripts import Answer, joined, read

from stoker.formats.events import CallArguments, CallBegin, CallEnd, Content
from stoker.formats.initial import starts_in_reasoning
from stoker.formats.parser import AnswerParser
from stoker.formats.registry import UnknownFormat, find

HERMES = find("hermes")
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "x</tool_call>\\""}}\n</tool_call>'
ARGUMENTS = '{"a": "x</tool_call>\\""}'
CASES = {
    "Hi <b>you</b>\n": Answer(content="Hi <b>you</b>\n"),
    f"Sure.\n\n{CALL}\n{CALL}\nDone.": Answer(content="Sure.Done.", calls=[("f", ARGUMENTS)] * 2),
    f"<think>\nhm\n</think>\n\nHi{CALL}": Answer(reasoning="hm", content="Hi", calls=[("f", ARGUMENTS)]),
    f"<think>hm\n{CALL}": Answer(reasoning="hm", calls=[("f", ARGUMENTS)]),
    "Tags are <think> and </think>.": Answer(content="Tags are <think> and </think>."),
    "a <tool_call> b <tool_": Answer(content="a <tool_call> b <tool_"),
    '<tool_call>{"size": 3}</tool_call>': Answer(content='<tool_call>{"size": 3}</tool_call>'),
    '<tool_call>{"name": "f", "argu': Answer(content='<tool_call>{"name": "f", "argu'),
    '<tool_call>{"name": "f", "arguments": {"a": "x': Answer(calls=[("f", '{"a": "x')]),
    '<tool_call>{"name": "f", "arguments": {"a": [1}</tool_call>!': Answer("", "!", [("f", '{"a": [1]}')]),
    '<tool_call>{"name": "f", "arguments": {"a": 1</tool_call>!': Answer("", "!", [("f", '{"a": 1}')]),
    '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>': Answer(calls=[("f", '{"a": 1}')]),
    '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>': Answer(calls=[("f", '{"a": 1}')]),
    '<tool_call>{"name": "f"}</tool_call>': Answer(calls=[("f", "{}")]),
    '<tool_call>[{"name": "f"}, {"name": "g"}]</tool_call>': Answer(calls=[("f", "{}"), ("g", "{}")]),
}


@pytest.mark.parametrize(("text", "answer"), CASES.items())
def test_an_answer_is_the_same_at_every_split(text: str, answer: Answer):
    assert joined(read(HERMES, [text])) == answer
    assert joined(read(HERMES, list(text))) == answer
    for place in range(len(text)):
        assert joined(read(HERMES, [text[:place], text[place:]])) == answer


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", r'<tool_call>{"name": "\ud800", "arguments": {"a": "\ud800"}}</tool_call>'),
        ("hermes", r'<tool_call>{"name": "f", "arguments": "{\"a\": \"\ud800\"}"}</tool_call>'),
        ("pythonic", r"[f(a='\ud800', b=['\ud800'])]"),
    ],
)
def test_half_of_a_surrogate_pair_can_be_sent_to_the_client(name: str, text: str):
    """It is no UTF-8: writing the answer was an error of the server."""
    (call, arguments, _) = AnswerParser(find(name), tools={"f": {}}, starts_in_reasoning=False).feed(text)
    assert isinstance(call, CallBegin)
    assert isinstance(arguments, CallArguments)
    assert (call.name + arguments.text).encode()
    assert json.loads(arguments.text).keys() >= {"a"}


@pytest.mark.parametrize("nested", ["[", '{"a": ', "{a:"])
@pytest.mark.parametrize(
    ("name", "begin", "end"),
    [
        ("hermes", '<tool_call>\n{"name": "f", "arguments": "', '"}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "f", "arguments": ', "}\n</tool_call>"),
        ("gemma4", "<|tool_call>call:f{a:", "}<tool_call|>"),
        ("qwen_xml", "<tool_call>\n<function=f>\n<parameter=a>\n", "\n</parameter>\n</function>\n</tool_call>"),
        ("pythonic", "[f(a=", ")]"),
    ],
)
def test_values_of_any_depth_are_read(name: str, begin: str, end: str, nested: str):
    """A model that repeats a bracket was an error of the server: a recursion without a limit."""
    if begin.endswith('"'):
        nested = nested.replace('"', '\\"')
    parser = AnswerParser(find(name), tools={"f": {}}, starts_in_reasoning=False)
    events = parser.feed(begin + nested * 5000 + end) + parser.finish()
    assert any(isinstance(event, CallBegin) or nested * 5000 in getattr(event, "text", "") for event in events)


def test_pieces_are_passed_on_as_soon_as_they_are_certain():
    parser = AnswerParser(HERMES, starts_in_reasoning=False, new_id=lambda: "1")
    assert parser.feed("Hi") == [Content("Hi")]
    assert parser.feed("\n<tool_call>") == []
    assert parser.feed('{"name": "f", "arguments": {"a"') == [CallBegin(0, "1", "f"), CallArguments(0, '{"a"')]
    assert parser.feed(": 1") == [CallArguments(0, ": ")]  # it may be the beginning of a word
    assert parser.feed("}") == [CallArguments(0, "1}"), CallEnd(0)]
    assert parser.feed("}\n</tool_call>") == []
    assert parser.finish() == []


def test_calls_stay_in_the_text_where_calls_are_not_read():
    parser = AnswerParser(HERMES, starts_in_reasoning=False, reads_calls=False)
    assert parser.feed(CALL) + parser.finish() == [Content(CALL)]


def test_the_prompt_says_whether_the_answer_starts_in_reasoning():
    assert starts_in_reasoning(HERMES, "<|im_start|>assistant\n<think>\n")
    assert not starts_in_reasoning(HERMES, "<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not starts_in_reasoning(HERMES, "what is <think>?<|im_end|>\n<|im_start|>assistant\n")
    assert starts_in_reasoning(HERMES, "assistant\n<think>so", continued="<think>so")


def test_a_name_of_another_server_is_found_and_a_wrong_one_is_refused_with_the_near_ones():
    assert find("qwen25") is HERMES
    with pytest.raises(UnknownFormat, match="did you mean hermes"):
        find("herms")


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("'it\\'s\\n'", "it's\n"),
        ("'\\x41'", "A"),
        ("'a' 'b'", "ab"),
        ("'a\nb'", "a\nb"),  # Python has no such literal, models write it
        ("-0", 0),
        ("007", "007"),
        ("12345678901234567890", 12345678901234567890),
        ("None", None),
        ("true", True),
        ("{'a': None}", {"a": None}),
    ],
)
def test_literals_of_python_become_json(literal: str, value: object):
    ((_, arguments),) = joined(read(find("olmo3"), [f"<function_calls>\nf(a={literal})\n</function_calls>"], {})).calls
    assert json.loads(arguments) == {"a": value}


def test_after_a_section_of_calls_only_names_of_tools_begin_a_call():
    """Within a section a call without its marker may have any name; the text after it may quote one."""
    section = (
        '<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="f"></steptml:invoke>'
        '<steptml:invoke name="unknown"></steptml:invoke><｜tool_calls_end｜>'
    )
    format, tools = find("step3"), {"f": {"type": "object"}}
    quoted = 'As in <steptml:invoke name="ll">.'
    answer = joined(read(format, [section + quoted], tools))
    assert answer.calls == [("f", "{}"), ("unknown", "{}")]
    assert answer.content == quoted
    again = joined(read(format, [section + '<steptml:invoke name="f"></steptml:invoke>'], tools))
    assert [name for name, _ in again.calls] == ["f", "unknown", "f"]


def test_the_form_of_ids_that_a_family_has_is_not_overridden():
    """The server gave its own ids to all calls, which templates of Mistral refuse in the next turn."""
    text = '[TOOL_CALLS][{"name": "f", "arguments": {}}][TOOL_CALLS]f[CALL_ID]too-long-for-it[ARGS]{}'
    parser = AnswerParser(find("mistral"), tools={"f": {}}, starts_in_reasoning=False, new_id=lambda: "call_1")
    ids = [event.id for event in parser.feed(text) + parser.finish() if isinstance(event, CallBegin)]
    assert len(ids) == 2
    assert all(len(id) == 9 and id.isalnum() for id in ids)
