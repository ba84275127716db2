"""Answers with the mistakes that models make: each is read as it was meant, at every split and wherever it is cut.

Each case was once read wrongly: arguments that are not JSON, arguments or text that were lost, calls that were only
quoted, or markup in the content.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from jiter import from_json
from tests.unit.formats.transcripts import joined, read, with_values

from stoker.formats.registry import find

F = {
    "type": "object",
    "properties": {
        "code": {"type": "string"},
        "a": {"type": "integer"},
        "n": {"type": "boolean"},
        "b": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "m": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "i": {"type": ["integer", "null"]},
        "o": {"type": "object"},
        "l": {"oneOf": [{"type": "array"}, {"type": "null"}]},
        "u": {"type": "string", "nullable": True},
        "x": {"type": "number"},
    },
}
TOOLS: dict[str, Any] = {"f": F, "g": {"type": "object", "properties": {}}}


@dataclass(frozen=True)
class Case:
    """calls: name and values of the arguments."""

    format: str
    text: str
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    content: str = ""
    reasoning: str = ""
    thinks: bool = False


def f(format: str, text: str, content: str = "", **arguments: Any) -> Case:
    return Case(format, text, (("f", arguments),), content)


def hermes(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'


def qwen(*elements: tuple[str, str]) -> str:
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in elements)
    return f"<tool_call>\n<function=f>\n{inside}</function>\n</tool_call>"


def glm(*elements: tuple[str, str]) -> str:
    inside = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in elements)
    return f"<tool_call>f\n{inside}</tool_call>"


def minimax(inside: str) -> str:
    return f'<minimax:tool_call>\n<invoke name="f">\n{inside}</invoke>\n</minimax:tool_call>'


def dsml(*elements: tuple[str, str, str]) -> str:
    inside = "".join(
        f'<｜DSML｜parameter name="{key}" string="{is_string}">{value}</｜DSML｜parameter>\n'
        for key, is_string, value in elements
    )
    return f'<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n{inside}</｜DSML｜invoke>\n</｜DSML｜function_calls>'


def kimi(inside: str) -> str:
    return f"<|tool_calls_section_begin|>{inside}<|tool_calls_section_end|>"


KIMI = '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>'
PYTHON_VALUES = [("m", "None"), ("b", "True"), ("n", "False"), ("i", "None"), ("u", "None")]
FROM_PYTHON = {"m": None, "b": True, "n": False, "i": None, "u": None}
LITERALS = [("o", "{'a': True, 'b': None}"), ("l", "['x', 'y']")]
FROM_LITERALS = {"o": {"a": True, "b": None}, "l": ["x", "y"]}
CASES = {
    # values in the notation of Python, as templates write them that print Python's values
    "words of Python": f("qwen_xml", qwen(*PYTHON_VALUES), **FROM_PYTHON),
    "words of Python in glm45": f("glm45", glm(*PYTHON_VALUES), **FROM_PYTHON),
    "words of Python in minimax_m2": f(
        "minimax_m2",
        minimax("".join(f'<parameter name="{key}">{value}</parameter>\n' for key, value in PYTHON_VALUES)),
        **FROM_PYTHON,
    ),
    "literals of Python": f("qwen_xml", qwen(*LITERALS), **FROM_LITERALS),
    "literals of Python in glm45": f("glm45", glm(*LITERALS), **FROM_LITERALS),
    "a word in a text": f("qwen_xml", qwen(("code", "None"), ("m", "none")), code="None", m="none"),
    "a whole number": f("qwen_xml", qwen(("a", "5.0"), ("x", "5.0")), a=5, x=5.0),
    "a number in quotes": f("qwen_xml", qwen(("a", '"5"')), a=5),
    "a wrong object": f("qwen_xml", qwen(("o", '{"a": "x\ny", "b": [1, 2,],}')), o={"a": "x\ny", "b": [1, 2]}),
    # ends of values
    "no end of the value": f(
        "qwen_xml", "<tool_call>\n<function=f>\n<parameter=code>\nls -la\n</function>\n</tool_call>", code="ls -la"
    ),
    "no end of the first value": f(
        "qwen_xml",
        "<tool_call>\n<function=f>\n<parameter=code>\nls\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        code="ls",
        a=1,
    ),
    "a wrong end of the value": f(
        "qwen_xml",
        "<tool_call>\n<function=f>\n<parameter=code>\nls -la\n</parameter/>\n</function>\n</tool_call>",
        code="ls -la",
    ),
    "half an end of the value": f(
        "qwen_xml",
        "<tool_call>\n<function=f>\n<parameter=code>\nls\n</parameter\n</function>\n</tool_call>",
        code="ls",
    ),
    "no end of the value in glm45": f(
        "glm45", "<tool_call>f\n<arg_key>code</arg_key>\n<arg_value>ls -la\n</tool_call>", code="ls -la"
    ),
    "no end of the first value in glm45": f(
        "glm45",
        "<tool_call>f\n<arg_key>code</arg_key>\n<arg_value>ls\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        code="ls",
        a=1,
    ),
    "no end of the value in minimax_m2": f("minimax_m2", minimax('<parameter name="code">x'), code="x"),
    "no end of the function": f("qwen_xml", qwen(("a", "1")).replace("</function>\n", ""), a=1),
    "the end within the value": f("qwen_xml", qwen(("code", "A </parameter> here.")), code="A </parameter> here."),
    "the end of the call within the value": f(
        "qwen_xml",
        qwen(("code", "A </function> here,\n</tool_call> there.")),
        code="A </function> here,\n</tool_call> there.",
    ),
    "another element within the value": f(
        "qwen_xml",
        qwen(("code", "the tag <parameter=a> is\n<parameter=path>\n</parameter> as")),
        code="the tag <parameter=a> is\n<parameter=path>\n</parameter> as",
    ),
    "the end within the value of glm45": f("glm45", glm(("code", "a</arg_value> b")), code="a</arg_value> b"),
    "the end within JSON": f(
        "qwen_xml", qwen(("o", '{"a": "</parameter>\\n</function>"}')), o={"a": "</parameter>\n</function>"}
    ),
    "quotes within the value of gemma4": f(
        "gemma4",
        '<|tool_call>call:f{code:<|"|>She said <|"|>hi<|"|> loudly<|"|>,a:1}<tool_call|>',
        code='She said <|"|>hi<|"|> loudly',
        a=1,
    ),
    "three quotes of Python": f("pythonic", '[f(code="""say "a, b" now""", a=1)]', code='say "a, b" now', a=1),
    "quotes within a string of Python": f(
        "lfm2", '<|tool_call_start|>[f(code="say "a", b now", a=1)]<|tool_call_end|>', code='say "a", b now', a=1
    ),
    "quotes within JSON": f("hermes", hermes('{"code": "say "hi" loudly", "a": 1}'), code='say "hi" loudly', a=1),
    "a line break in a string of Python": f("pythonic", "[f(code='a\n\"b\"\n', a=1)]", code='a\n"b"\n', a=1),
    "a line break in a string of lfm2": f(
        "lfm2", "<|tool_call_start|>[f(code='it\\'s\n\t\"b\"')]<|tool_call_end|>", code='it\'s\n\t"b"'
    ),
    # mistakes in JSON
    "raw control characters": f("hermes", hermes('{"code": "line1\nline2\tx\x00"}'), code="line1\nline2\tx\x00"),
    "raw control characters in harmony": f(
        "harmony",
        '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"code": "a\nb"}<|call|>',
        code="a\nb",
    ),
    "no arguments in harmony": f("harmony", "<|channel|>commentary to=functions.f<|message|><|call|>"),
    "unknown escapes": f("hermes", hermes(r'{"code": "it\'s \d\x41 \u12"}'), code="it's \\dA \\u12"),
    "words of Python in JSON": f(
        "hermes", hermes('{"a": 1, "b": True, "m": None, "n": FALSE}'), a=1, b=True, m=None, n=False
    ),
    "numbers that are not JSON": f(
        "hermes", hermes('{"a": +1, "l": [.5, 1., NaN, 007]}'), a=1, l=[0.5, 1.0, None, "007"]
    ),
    "commas at the end": f("hermes", hermes('{"a": 1, "l": [1, 2, ],}'), a=1, l=[1, 2]),
    "missing commas and colons": f("hermes", hermes('{"code": "x"\n"a" 1}'), code="x", a=1),
    "quotes of Python": Case(
        "hermes",
        "<tool_call>\n{'name': 'f', 'arguments': {'code': 'say \"it\\'s\"', 'b': True}}\n</tool_call>",
        (("f", {"code": 'say "it\'s"', "b": True}),),
    ),
    "keys without quotes": f("hermes", hermes("{a: 1, code: hello world}"), a=1, code="hello world"),
    "a key without a value": f("hermes", hermes('{"a": 1, "m"}'), a=1, m=None),
    "missing brackets": f(
        "hermes", '<tool_call>\n{"name": "f", "arguments": {"o": {"l": [1, 2\n</tool_call>', o={"l": [1, 2]}
    ),
    "one bracket too many": f("hermes", hermes('{"a": 1}}'), a=1),
    "two brackets in place of one": f("hermes", hermes('{{"a": 1}}'), a=1),
    "arguments as wrong text": f("hermes", hermes("\"{'a': 1,}\""), a=1),
    "a comma after the last call": Case(
        "granite", '<|tool_call|>[{"name": "f", "arguments": {"a": 1}},]', (("f", {"a": 1}),)
    ),
    "a comma after the last member": f("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1},}</tool_call>', a=1),
    # other shapes of calls
    "another name of the arguments": f(
        "hermes", '<tool_call>\n{"name": "f", "parameters": {"a": 1}}\n</tool_call>', a=1
    ),
    "unknown keys": Case(
        "hermes",
        '<tool_call>\n{"name": "f", "code": "x", "a": 1}\n</tool_call>',
        content='<tool_call>\n{"name": "f", "code": "x", "a": 1}\n</tool_call>',
    ),
    "a wrapped call of deepseek_v32": f(
        "deepseek_v32", dsml(("arguments", "false", '{"code": 5, "a": "3"}')), code="5", a=3
    ),
    "another wrapper": f(
        "deepseek_v4", dsml(("input", "false", '{"a": 3.0}')).replace("function_calls", "tool_calls"), a=3
    ),
    "values by the schema": f(
        "deepseek_v32", dsml(("a", "true", "5"), ("code", "false", "5"), ("x", "false", "5.0")), a=5, code="5", x=5.0
    ),
    "text in place of the marker": Case(
        "granite", '<tool_call>[{"name": "f", "arguments": {"a": 1}}]', (("f", {"a": 1}),)
    ),
    "plain tags of hy_v3": Case(
        "hy_v3",
        "<tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>\n</tool_calls>",
        (("f", {"a": 1}),),
    ),
    "a call after text": Case(
        "llama_json", 'Let me see: {"name": "f", "parameters": {"a": 1}} Done.', (("f", {"a": 1}),), "Let me see: Done."
    ),
    "a call of Python after text": Case("pythonic", "Let me see.\n[f(a=1)]", (("f", {"a": 1}),), "Let me see."),
    "data that looks like calls": Case(
        "llama_json",
        '{"calls": [{"name": "f", "parameters": {}}]}',
        content='{"calls": [{"name": "f", "parameters": {}}]}',
    ),
    "an array of calls": f("llama_json", '[{"name": "f", "parameters": {"a": 1}}]', a=1),
    "an array of data": Case(
        "llama_json", '[1, {"name": "f", "parameters": {}}]', content='[1, {"name": "f", "parameters": {}}]'
    ),
    "no word before the colon": f("gemma4", "<|tool_call>:f{a:1}<tool_call|>", a=1),
    "no marker in gemma4": f("gemma4", "call:f{a:1}<tool_call|>", a=1),
    "other brackets in gemma4": f("gemma4", "<|tool_call>call:f(a:1)<tool_call|>", a=1),
    "no bracket in gemma4": f("gemma4", '<|tool_call>call:f{code:<|"|>x<|"|><tool_call|>', code="x"),
    "no quote in gemma4": f("gemma4", '<|tool_call>call:f{code:<|"|>x<tool_call|>', code="x"),
    "noise in the section": f("kimi_k2", kimi(f" calling: {KIMI}noise"), a=1),
    "no arguments in kimi_k2": f("kimi_k2", kimi(KIMI.replace('{"a": 1}', ""))),
    "text after an unclosed section": Case(
        "kimi_k2", f"<|tool_calls_section_begin|>{KIMI}\nDone.", (("f", {"a": 1}),), "Done."
    ),
    "an object of all arguments": f("pythonic", '[f({"a": 1})]', a=1),
    "arguments without names": f("pythonic", "[f('x', 1)]", code="x", a=1),
    "no arguments, and then one": f("pythonic", "[f({}, a=1)]", a=1),
    "expanded arguments": f("pythonic", "[f(**{'a': 1})]", a=1),
    "a section of XML": f(
        "minicpm5",
        '<function name="f"><param name="code"><![CDATA[a\n</param>\n"]]></param></function>',
        code='a\n</param>\n"',
    ),
    "no parenthesis": f("pythonic", "[f(a=1]", a=1),
    # what is only said about calls
    "a tag in code": Case(
        "qwen_xml", "The tag `<function=f>` starts a call.", content="The tag `<function=f>` starts a call."
    ),
    "a tag in a line": Case(
        "qwen_xml", "The tag <function=f> starts a call.", content="The tag <function=f> starts a call."
    ),
    "a tag without arguments": Case(
        "qwen_xml", "The tag\n<function=f>\nstarts a call.", content="The tag\n<function=f>\nstarts a call."
    ),
    "a fenced example": Case(
        "qwen_xml",
        f"As in\n```xml\n{qwen(('a', '1'))}\n```\nDone.",
        content=f"As in\n```xml\n{qwen(('a', '1'))}\n```\nDone.",
    ),
    "a fenced example of JSON": Case(
        "hermes", f"As in\n```\n{hermes('{}')}\n```\n{hermes('{}')}", (("f", {}),), f"As in\n```\n{hermes('{}')}\n```"
    ),
    "a call in backticks": Case(
        "hermes", f"As in `{hermes('{}')}`.".replace("\n", ""), content=f"As in `{hermes('{}')}`.".replace("\n", "")
    ),
    "a tag in the thinking": Case(
        "qwen_xml",
        "I may use <function=f> later.\n</think>\n\nDone.",
        content="Done.",
        reasoning="I may use <function=f> later.",
        thinks=True,
    ),
    "a call in the thinking": Case(
        "hermes",
        f"I could send {hermes('{}')} but I should not.\n</think>\n\nI will not call it.",
        content="I will not call it.",
        reasoning=f"I could send {hermes('{}')} but I should not.",
        thinks=True,
    ),
    "a call in the thinking, and one after it": Case(
        "qwen_xml",
        f"Maybe\n{qwen(('a', '1'))}\n</think>\n\n{qwen(('a', '2'))}",
        (("f", {"a": 2}),),
        reasoning=f"Maybe\n{qwen(('a', '1'))}",
        thinks=True,
    ),
    "a call without an end in the thinking": Case(
        "qwen_xml",
        "Maybe\n<tool_call>\n<function=f>\n<parameter=code>\nls\n</think>\n\nDone.",
        content="Done.",
        reasoning="Maybe\n<tool_call>\n<function=f>\n<parameter=code>\nls",
        thinks=True,
    ),
    "thinking that ends with a call": Case(
        "hermes", f"Look.\n{hermes('{}')}", (("f", {}),), reasoning="Look.", thinks=True
    ),
    "halves of surrogate pairs": f(
        "hermes",
        hermes(r'{"code": "\ud83d \udc00 \ud83d\ude00 \\ud83d", "o": {"k": "\ud83d\n"}}'),
        code="\ufffd \ufffd \U0001f600 \\ud83d",
        o={"k": "\ufffd\n"},
    ),
    "half of a surrogate pair in an element": f(
        "qwen_xml", qwen(("o", r'{"k": "\ud83d", "p": "\\ud83d"}')), o={"k": "\ufffd", "p": "\\ud83d"}
    ),
    "half of a surrogate pair in arguments as text": f(
        "hermes", hermes(json.dumps(r'{"code": "\ud83d"}')), code="\ufffd"
    ),
    "comments": f(
        "hermes",
        hermes('{"a": 1 /* one */, // two, {three}\n "code": "x // y", /* four */ "l": [1, /* 5 */ true // 6\n]}'),
        a=1,
        code="x // y",
        l=[1, True],
    ),
    "numbers that are infinite": f("hermes", hermes('{"x": 1e999, "a": -1e999, "i": 1e9}'), x=None, a=None, i=1e9),
    "an infinite number in an element": f("qwen_xml", qwen(("o", '{"k": 1e999, "p": 1}')), o={"k": None, "p": 1}),
    "an integer with a comma": f(
        "glm45", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1,000</arg_value>\n</tool_call>", a="1,000"
    ),
    "keys in quotes where none are written": f(
        "gemma4", """<|tool_call>call:f{"code":<|"|>x<|"|>,'a':1}<tool_call|>""", code="x", a=1
    ),
    "a call without a name": Case(
        "hermes",
        '<tool_call>\n{"name": "", "arguments": {}}\n</tool_call>',
        content='<tool_call>\n{"name": "", "arguments": {}}\n</tool_call>',
    ),
    "an end of thinking that did not begin": Case("hermes", "Look.\n</think>\n\nDone.", content="Look.\n\n\nDone."),
    "a second end of the thinking": Case("hermes", f"{hermes('{}')}\n</think>\n\nDone.", (("f", {}),), "Done."),
}


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_read_as_it_was_meant(name: str):
    case = CASES[name]
    whole = joined(read(find(case.format), [case.text], TOOLS, case.thinks))
    assert with_values(whole) == (case.reasoning, case.content, list(case.calls))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.quick_cases(24)
def test_mistakes_are_read_alike_at_every_split(name: str):
    case = CASES[name]
    format = find(case.format)
    whole = joined(read(format, [case.text], TOOLS, case.thinks))
    assert joined(read(format, list(case.text), TOOLS, case.thinks)) == whole
    for place in range(len(case.text)):
        pieces = [case.text[:place], case.text[place:]]
        assert joined(read(format, pieces, TOOLS, case.thinks)) == whole, pieces


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_an_answer_with_mistakes_that_is_cut_is_read_alike_in_pieces(name: str):
    case = CASES[name]
    format = find(case.format)
    for end in range(len(case.text)):
        text = case.text[:end]
        assert joined(read(format, list(text), TOOLS, case.thinks)) == joined(
            read(format, [text], TOOLS, case.thinks)
        ), text


CUT = {
    "hermes": hermes('{"code": "a\\n\\u00e9", "x": -1.5e3, "o": {"k": [true, null]}}'),
    "qwen_xml": qwen(("code", "ls"), ("b", "True"), ("o", "{'k': [1, \"x\"]}"), ("i", "None")),
    "glm45": "<tool_call>f\n<arg_key>o</arg_key>\n<arg_value>{'k': True}</arg_value>\n</tool_call>",
    "pythonic": """[f(code='it', b=None, o={'k': [1, True]}, a=-1)]""",
    "gemma4": '<|tool_call>call:f{code:<|"|>ls<|"|>,a:1,o:{k:[true,<|"|>x<|"|>]}}<tool_call|>',
}


@pytest.mark.parametrize("name", CUT)
def test_arguments_that_are_cut_are_a_beginning_of_json(name: str):
    """Clients parse the arguments as they arrive. Before, `{code` or `{"b": Tr` made them raise."""
    for end in range(len(CUT[name])):
        for _, arguments in joined(read(find(name), [CUT[name][:end]], TOOLS)).calls:
            from_json(arguments.encode() or b"{}", partial_mode=True)


def test_valid_json_stays_as_it_was_written():
    written = '{"a" :\t1.0e+5 , "b":[ ] ,"c": {"d\\u00e9\\/": "x\\"}, {"},\r\n "e": -0}'
    assert joined(read(find("hermes"), list(hermes(written)), TOOLS)).calls == [("f", written)]
    json.loads(written)
