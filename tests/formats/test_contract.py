"""Parsers of tool calls and reasoning against the wire formats of the model families, as their templates write them.

Written from the formats alone, not from the declarations that the parsers are made of: a mistake in a declaration makes
its golden answers wrong too, but not these.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from stoker.formats.events import CallArguments, CallBegin, CallEnd, Content, Reasoning
from stoker.formats.parser import AnswerParser
from stoker.formats.registry import find, find_reasoning

from ..slow_cases import slow_but

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "where": {"type": "object"},
    },
}
TOOLS = {"get_weather": WEATHER, "now": {"type": "object", "properties": {}}}
PARIS = {"city": "Paris", "days": 3}
CALLS = [("get_weather", PARIS), ("now", {})]
ONE = CALLS[:1]
DEEPSEEK_FENCE = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"


@dataclass(frozen=True)
class Transcript:
    """What a model writes after its prompt, and what a client must get.

    reasoning, content: without the blank lines around them. thinks: the prompt ends within the reasoning.
    """

    name: str
    text: str
    calls: Sequence[tuple[str, dict[str, Any]]] = field(default_factory=list)
    reasoning: str = ""
    content: str = ""
    thinks: bool = False
    reasoning_parser: str | None = None

    def parser(self) -> AnswerParser:
        format = find(self.name)
        if self.reasoning_parser is not None:
            format = dataclasses.replace(format, reasoning=find_reasoning(self.reasoning_parser))
        return AnswerParser(format, tools=TOOLS, starts_in_reasoning=self.thinks)


def json_call(name: str, arguments: dict[str, Any], key: str = "arguments") -> str:
    return json.dumps({"name": name, key: arguments})


PLAIN = json_call("get_weather", PARIS)
NOW = json_call("now", {})
BOTH = f"[{PLAIN}, {NOW}]"

TRANSCRIPTS = {
    "hermes": Transcript(
        "hermes",
        f"<think>\nLook it up.\n</think>\n\nLet me see.\n<tool_call>\n{PLAIN}\n</tool_call>\n"
        f"<tool_call>\n{NOW}\n</tool_call>",
        CALLS,
        "Look it up.",
        "Let me see.",
        reasoning_parser="qwen3",
    ),
    "hermes-without-newlines": Transcript(
        "hermes", f"<tool_call>{PLAIN}</tool_call><tool_call>{NOW}</tool_call>", CALLS
    ),
    "hermes-in-unclosed-reasoning": Transcript(
        "hermes",
        f"Look it up.\n<tool_call>\n{PLAIN}\n</tool_call>",
        ONE,
        "Look it up.",
        thinks=True,
        reasoning_parser="qwen3",
    ),
    "qwen3_coder": Transcript(
        "qwen3_coder",
        "<think>\nLook it up.\n</think>\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        CALLS,
        "Look it up.",
        reasoning_parser="qwen3",
    ),
    "qwen3_coder-text-that-looks-like-a-number": Transcript(
        "qwen3_coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\n12\n</parameter>\n<parameter=exact>\ntrue\n</parameter>\n"
        '<parameter=where>\n{"lat": 1.5}\n</parameter>\n</function>\n</tool_call>',
        [("get_weather", {"city": "12", "exact": True, "where": {"lat": 1.5}})],
    ),
    "qwen3_coder-lines-and-marks-in-a-value": Transcript(
        "qwen3_coder",
        '<tool_call>\n<function=get_weather>\n<parameter=city>\na < b\n"c" \\ </d>\n</parameter>\n'
        "</function>\n</tool_call>",
        [("get_weather", {"city": 'a < b\n"c" \\ </d>'})],
    ),
    "deepseek_v3": Transcript(
        "deepseek_v3",
        "Look it up.\n</think>\n\n<｜tool▁calls▁begin｜>"
        + DEEPSEEK_FENCE.format("get_weather", json.dumps(PARIS))
        + "\n"
        + DEEPSEEK_FENCE.format("now", "{}")
        + "<｜tool▁calls▁end｜>",
        CALLS,
        "Look it up.",
        thinks=True,
        reasoning_parser="deepseek_r1",
    ),
    "deepseek_v31": Transcript(
        "deepseek_v31",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{json.dumps(PARIS)}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        CALLS,
    ),
    **{
        name: Transcript(
            name,
            f'<｜DSML｜{block}>\n<｜DSML｜invoke name="get_weather">\n'
            '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
            f'<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜{block}>',
            CALLS,
        )
        for name, block in (("deepseek_v32", "function_calls"), ("deepseek_v4", "tool_calls"))
    },
    "kimi_k2": Transcript(
        "kimi_k2",
        "Look it up.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        f"{json.dumps(PARIS)}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{{}}"
        "<|tool_call_end|><|tool_calls_section_end|>",
        CALLS,
        "Look it up.",
        thinks=True,
        reasoning_parser="kimi_k2",
    ),
    "glm45": Transcript(
        "glm45",
        "<think>Look it up.</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        CALLS,
        "Look it up.",
        reasoning_parser="glm45",
    ),
    "glm47": Transcript(
        "glm47",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value><arg_key>days</arg_key>"
        "<arg_value>3</arg_value></tool_call><tool_call>now</tool_call>",
        CALLS,
    ),
    "kimi_k3": Transcript(
        "kimi_k3",
        "Look it up.<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>Paris'
        '<|close|>argument<|sep|><|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|>'
        '<|close|>call<|sep|><|open|>call tool="now" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
        "<|close|>message<|sep|>",
        CALLS,
        "Look it up.",
        thinks=True,
    ),
    "cohere_command4": Transcript(
        "cohere_command4",
        "Look it up.<|END_THINKING|><|START_TEXT|>Let me see.<|END_TEXT|><|START_ACTION|>[\n"
        f'    {{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {json.dumps(PARIS)}}},\n'
        '    {"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]<|END_ACTION|>',
        CALLS,
        "Look it up.",
        "Let me see.",
        thinks=True,
    ),
    "hy_v3": Transcript(
        "hy_v3",
        "Look it up.</think:opensource><tool_calls:opensource>\n<tool_call:opensource>get_weather"
        "<tool_sep:opensource>\n<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Paris"
        "</arg_value:opensource>\n<arg_key:opensource>days</arg_key:opensource>\n<arg_value:opensource>3"
        "</arg_value:opensource>\n</tool_call:opensource>\n<tool_call:opensource>now<tool_sep:opensource>\n"
        "</tool_call:opensource>\n</tool_calls:opensource>",
        CALLS,
        "Look it up.",
        thinks=True,
    ),
    "hy_v4": Transcript(
        "hy_v4",
        "<tool_calls:opensource>\n<tool_call:opensource>get_weather<arg_key:opensource>city</arg_key:opensource>"
        "<arg_value:opensource>Paris</arg_value:opensource><arg_key:opensource>days</arg_key:opensource>\n"
        "<arg_value:opensource>3</arg_value:opensource></tool_call:opensource>\n<tool_call:opensource>now"
        "</tool_call:opensource>\n</tool_calls:opensource>",
        CALLS,
    ),
    "minimax_m3-reasoning": Transcript(
        "hermes", "Look.</mm:think>Sunny.", [], "Look.", "Sunny.", thinks=True, reasoning_parser="minimax-m3"
    ),
    "minimax_m2": Transcript(
        "minimax_m2",
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n'
        '<parameter name="days">3</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>',
        CALLS,
    ),
    "harmony": Transcript(
        "openai",
        "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant<|channel|>commentary"
        f" to=functions.get_weather <|constrain|>json<|message|>{json.dumps(PARIS)}<|call|>",
        ONE,
        "Look it up.",
    ),
    "harmony-recipient-before-the-channel": Transcript(
        "openai",
        "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant to=functions.get_weather"
        f"<|channel|>commentary json<|message|>{json.dumps(PARIS)}<|call|>",
        ONE,
        "Look it up.",
    ),
    "harmony-final": Transcript(
        "gpt-oss",
        "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>final<|message|>It is sunny.<|return|>",
        [],
        "Look.",
        "It is sunny.",
    ),
    "gemma4": Transcript(
        "gemma4",
        "<|tool_call>call:get_weather{days:3,exact:true}<tool_call|>",
        [("get_weather", {"days": 3, "exact": True})],
    ),
    "gemma4-reasoning": Transcript("gemma4", "<|channel>thought\nLook.<channel|>Sunny.", [], "Look.", "Sunny."),
    "functiongemma": Transcript(
        "functiongemma",
        "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:3}<end_function_call>",
        ONE,
    ),
    "mistral-list": Transcript("mistral", f"[TOOL_CALLS]{BOTH}", CALLS),
    "mistral-names": Transcript(
        "mistral", f"[TOOL_CALLS]get_weather[ARGS]{json.dumps(PARIS)}[TOOL_CALLS]now[ARGS]{{}}", CALLS
    ),
    "mistral-reasoning": Transcript(
        "mistral", "[THINK]Look.[/THINK]Sunny.", [], "Look.", "Sunny.", reasoning_parser="mistral"
    ),
    "llama3_json": Transcript("llama3_json", json_call("get_weather", PARIS, "parameters"), ONE),
    "mistral-ids": Transcript(
        "mistral",
        f"[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{json.dumps(PARIS)}[TOOL_CALLS]now[CALL_ID]bcdefghij[ARGS]{{}}",
        CALLS,
    ),
    "llama3_json-several": Transcript(
        "llama3_json", json_call("get_weather", PARIS, "parameters") + "; " + json_call("now", {}, "parameters"), CALLS
    ),
    "llama3_json-several-with-tag": Transcript(
        "llama3_json",
        f"<|python_tag|>{json_call('get_weather', PARIS, 'parameters')}; {json_call('now', {}, 'parameters')}",
        CALLS,
    ),
    "llama3_json-tag": Transcript("llama3_json", "<|python_tag|>" + json_call("get_weather", PARIS, "parameters"), ONE),
    "llama4_json": Transcript("llama4_json", json_call("get_weather", PARIS, "parameters"), ONE),
    "pythonic": Transcript("pythonic", "[get_weather(city='Paris', days=3), now()]", CALLS),
    "pythonic-values": Transcript(
        "llama4_pythonic",
        "[get_weather(city=\"it's [x], (y)\", exact=True, where={'lat': 1.5, 'name': None, 'all': [1, 'b']})]",
        [
            (
                "get_weather",
                {"city": "it's [x], (y)", "exact": True, "where": {"lat": 1.5, "name": None, "all": [1, "b"]}},
            )
        ],
    ),
    "olmo3": Transcript(
        "olmo3", '<function_calls>\nget_weather(city="Paris", days=3)\nnow()\n</function_calls>', CALLS
    ),
    "olmo3-json-literals": Transcript(
        "olmo3",
        "<function_calls>\nget_weather(exact=true, where=null)\n</function_calls>",
        [("get_weather", {"exact": True, "where": None})],
    ),
    "cohere": Transcript(
        "cohere_command3",
        "<|START_THINKING|>Look it up.<|END_THINKING|><|START_ACTION|>[\n"
        f'    {{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {json.dumps(PARIS)}}}\n]<|END_ACTION|>',
        ONE,
        "Look it up.",
    ),
    "internlm": Transcript(
        "internlm",
        "<|action_start|><|plugin|>\n" + json_call("get_weather", PARIS, "parameters") + "<|action_end|>",
        ONE,
    ),
    "internlm-space-between-markers": Transcript(
        "internlm",
        "Let me see.<|action_start|> <|plugin|>\n" + json_call("get_weather", PARIS, "parameters") + "\n<|action_end|>",
        ONE,
        content="Let me see.",
    ),
    "gigachat3": Transcript("gigachat3", f"function call<|role_sep|>\n{PLAIN}", ONE),
    "gigachat3-later-marker": Transcript("gigachat3", f"<|function_call|>{PLAIN}", ONE),
    "apertus": Transcript(
        "apertus",
        f'<|inner_prefix|>Look it up.<|inner_suffix|><|tools_prefix|>[{{"get_weather": {json.dumps(PARIS)}}}, '
        '{"now": {}}]<|tools_suffix|>',
        CALLS,
        "Look it up.",
    ),
    "hunyuan": Transcript("hunyuan_a13b", f"<tool_calls>{BOTH}</tool_calls>", CALLS),
    "hunyuan-reasoning": Transcript(
        "hunyuan_a13b",
        "<think>\nLook.\n</think>\n<answer>\nSunny.\n</answer>",
        [],
        "Look.",
        "Sunny.",
        reasoning_parser="hunyuan_a13b",
    ),
    "jamba": Transcript("jamba", f"<tool_calls>{BOTH}</tool_calls>", CALLS),
    "xlam": Transcript("xlam", BOTH, CALLS),
    "xlam-fenced": Transcript("xlam", f"Let me see.\n```json\n{BOTH}\n```", CALLS, content="Let me see."),
    "xlam-tool-calls": Transcript("xlam", f"[TOOL_CALLS]{BOTH}", CALLS),
    "xlam-tags": Transcript("xlam", f"<tool_call>{BOTH}</tool_call>", CALLS),
    "xlam-fenced-json-that-is-no-call": Transcript(
        "xlam", '```json\n[{"name": "Ann"}]\n```', content='```json\n[{"name": "Ann"}]\n```'
    ),
    "lfm2": Transcript("lfm2", '<|tool_call_start|>[get_weather(city="Paris", days=3), now()]<|tool_call_end|>', CALLS),
    "phi4": Transcript("phi4_mini_json", f"functools{BOTH}", CALLS),
    "seed_oss": Transcript(
        "seed_oss",
        "<seed:think>Look it up.</seed:think><seed:tool_call>\n<function=get_weather>\n"
        "<parameter=city>Paris</parameter>\n<parameter=days>3</parameter>\n</function>\n</seed:tool_call>",
        ONE,
        "Look it up.",
        reasoning_parser="seed_oss",
    ),
    "longcat": Transcript("longcat", f"<longcat_tool_call>\n{PLAIN}\n</longcat_tool_call>", ONE),
    "longcat_xml": Transcript(
        "longcat_xml",
        "<longcat_tool_call>get_weather\n<longcat_arg_key>city</longcat_arg_key>\n"
        "<longcat_arg_value>Paris</longcat_arg_value>\n<longcat_arg_key>days</longcat_arg_key>\n"
        "<longcat_arg_value>3</longcat_arg_value>\n</longcat_tool_call>",
        ONE,
    ),
    "poolside_v1": Transcript(
        "poolside_v1",
        "Look it up.</think><tool_call>get_weather\n<arg_key>city</arg_key><arg_value>Paris</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value></tool_call><tool_call>now</tool_call>",
        CALLS,
        "Look it up.",
        thinks=True,
        reasoning_parser="poolside_v1",
    ),
    "granite": Transcript("granite", f"<|tool_call|>{BOTH}", CALLS),
    "granite4": Transcript("granite4", f"<tool_call>\n{PLAIN}\n</tool_call>\n<tool_call>\n{NOW}\n</tool_call>", CALLS),
    "ernie45": Transcript("ernie45", f"<tool_call>\n{PLAIN}\n</tool_call>\n", ONE),
}
QUICK = ("hermes", "qwen3_coder", "kimi_k2", "harmony", "pythonic")


@dataclass
class Read:
    reasoning: str = ""
    content: str = ""
    ids: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    num_ended: int = 0


def read(transcript: Transcript, pieces: Sequence[str]) -> Read:
    """The answer as a client puts it together, and the order of events checked on the way."""
    parser, found = transcript.parser(), Read()
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
    for event in events:
        match event:
            case Reasoning(text):
                found.reasoning += text
            case Content(text):
                found.content += text
            case CallBegin(index, id, name):
                assert index == len(found.names), "calls are counted from 0, and each begins once"
                assert found.num_ended == index, "a call ends before the next begins"
                found.ids.append(id)
                found.names.append(name)
                found.arguments.append("")
            case CallArguments(index, text):
                assert index == len(found.names) - 1
                assert found.num_ended == index
                found.arguments[index] += text
            case CallEnd(index):
                assert index == found.num_ended == len(found.names) - 1
                found.num_ended += 1
    assert found.num_ended == len(found.names), "every call has an end"
    assert len(set(found.ids)) == len(found.ids)
    return found


def without_ids(found: Read) -> Read:
    return dataclasses.replace(found, ids=[])


@pytest.mark.parametrize("name", slow_but(TRANSCRIPTS, *QUICK))
def test_a_transcript_is_read_as_its_family_means_it(name: str) -> None:
    transcript = TRANSCRIPTS[name]
    found = read(transcript, [transcript.text])
    calls = [(called, json.loads(text)) for called, text in zip(found.names, found.arguments, strict=True)]
    assert calls == list(transcript.calls)
    assert (found.reasoning.strip(), found.content.strip()) == (transcript.reasoning, transcript.content)


@pytest.mark.parametrize("name", slow_but(TRANSCRIPTS, *QUICK))
def test_the_split_of_a_stream_changes_nothing(name: str) -> None:
    transcript = TRANSCRIPTS[name]
    text = transcript.text
    whole = without_ids(read(transcript, [text]))
    assert without_ids(read(transcript, list(text))) == whole
    for at in range(len(text) + 1):
        assert without_ids(read(transcript, [text[:at], text[at:]])) == whole, (text[:at], text[at:])
    for size in (2, 3, 5, 7, 11):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert without_ids(read(transcript, pieces)) == whole, size


@pytest.mark.parametrize("name", slow_but(TRANSCRIPTS, *QUICK))
def test_an_answer_that_is_cut_has_the_calls_that_were_complete(name: str) -> None:
    """At any place, as by max_tokens. The last call is as far as it was written, and ends too."""
    transcript = TRANSCRIPTS[name]
    whole = read(transcript, [transcript.text])
    for end in range(len(transcript.text)):
        cut = read(transcript, [transcript.text[:end]])
        assert cut.names == whole.names[: len(cut.names)], transcript.text[:end]
        assert cut.arguments[:-1] == whole.arguments[: len(cut.arguments)][:-1], transcript.text[:end]


NO_CALLS = [
    "",
    "Plain text.",
    "1 < 2 and <tool is not a marker, nor is < think >.",
    "An unfinished marker: <tool_cal",
    "[1, 2] is a list, {\"a\": 1} an object, f(x) a call on paper.",
    "日本語 😀 \u2028 end",
    "``` \n[not, a, call]\n```",
    "<",
    "<｜",
    "\n\n",
]  # fmt: skip
FAMILIES = sorted({transcript.name for transcript in TRANSCRIPTS.values()} - {"openai", "gpt-oss", "hunyuan_a13b"})


@pytest.mark.parametrize("name", slow_but(FAMILIES, "hermes", "pythonic"))
def test_text_without_calls_is_the_content_exactly(name: str) -> None:
    """The text that a parser holds back, because a marker could begin with it, is flushed at the end."""
    for text in NO_CALLS:
        for pieces in ([text], list(text)):
            found = read(Transcript(name, text), pieces)
            assert found.names == [], text
            assert found.content.strip() == text.strip()
            assert found.reasoning == "", text


@pytest.mark.parametrize("parser", ["qwen3", "deepseek_r1", "glm45", "kimi_k2"])
def test_the_prompt_decides_whether_an_answer_begins_with_reasoning(parser: str) -> None:
    """With `enable_thinking: false` the prompt has closed the reasoning; waiting for its end would swallow all."""
    plain = Transcript("hermes", "It is sunny.", reasoning_parser=parser)
    assert read(plain, list(plain.text)).content == "It is sunny."
    thinking = dataclasses.replace(plain, text="Look.</think>It is sunny.", thinks=True)
    found = read(thinking, list(thinking.text))
    assert (found.reasoning, found.content) == ("Look.", "It is sunny.")


def test_ids_follow_the_family() -> None:
    assert read(TRANSCRIPTS["kimi_k2"], [TRANSCRIPTS["kimi_k2"].text]).ids == [
        "functions.get_weather:0",
        "functions.now:1",
    ]
    assert read(TRANSCRIPTS["mistral-ids"], [TRANSCRIPTS["mistral-ids"].text]).ids == ["abcdefghi", "bcdefghij"]
    ids = read(TRANSCRIPTS["mistral-list"], [TRANSCRIPTS["mistral-list"].text]).ids
    assert all(len(each) == 9 and each.isalnum() for each in ids)


@pytest.mark.parametrize(
    "city",
    [
        "",
        'quotes " and \\ backslash',
        "line\nbreak\ttab",
        "日本語 😀",
        "</tool_call>",
        "<tool_call>",
        "}]}",
        "</think>",
        "\u2028",
    ],
)
def test_any_text_can_be_an_argument_of_a_json_call(city: str) -> None:
    arguments = {"city": city, "where": {"deep": [city, {city: None}]}}
    for ascii_only in (True, False):
        call = json.dumps({"name": "get_weather", "arguments": arguments}, ensure_ascii=ascii_only)
        transcript = Transcript("hermes", f"<tool_call>\n{call}\n</tool_call>")
        for pieces in ([transcript.text], list(transcript.text)):
            found = read(transcript, pieces)
            assert found.names == ["get_weather"]
            assert json.loads(found.arguments[0]) == arguments
            assert found.content.strip() == ""


def test_the_arguments_of_a_json_call_are_the_text_that_the_model_wrote() -> None:
    """Byte for byte: a client sends them back, and the prefix of the next prompt must be what the cache holds."""
    written = '{"city":  "Paris",\n "days": 3.0, "where": {"é": "\\u00e9"}}'
    transcript = Transcript("hermes", f'<tool_call>\n{{"name": "get_weather", "arguments": {written}}}\n</tool_call>')
    assert read(transcript, list(transcript.text)).arguments == [written]
