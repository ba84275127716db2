"""Answers as the models of each format write them, with the same two calls: the golden tests of the declarations.

Written by hand after the published formats. Each has reasoning if the format has any, content, and both calls.
"""

from __future__ import annotations

import re
from typing import Any

TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "units": {"enum": ["metric", "imperial"]},
            "options": {"type": "object", "properties": {"hourly": {"type": "boolean"}}},
        },
        "required": ["city"],
    },
    "note": {"type": "object", "properties": {"text": {"type": "string"}, "tags": {"type": "array"}}},
}
NOTE = 'a "b"\n<c> é'
CALLS: list[tuple[str, Any]] = [
    ("get_weather", {"city": "São Paulo", "days": 3, "options": {"hourly": True}}),
    ("note", {"text": NOTE, "tags": ["x", 1]}),
]
_WEATHER = '{"city": "São Paulo", "days": 3, "options": {"hourly": true}}'
_NOTE = '{"text": "a \\"b\\"\\n<c> é", "tags": ["x", 1]}'


def _objects(arguments: str = "arguments", name: str = "name") -> tuple[str, str]:
    return (
        f'{{"{name}": "get_weather", "{arguments}": {_WEATHER}}}',
        f'{{"{name}": "note", "{arguments}": {_NOTE}}}',
    )


def _array(arguments: str = "arguments", name: str = "name") -> str:
    return "[" + ", ".join(_objects(arguments, name)) + "]"


def _thinking(calls: str) -> str:
    return f"<think>\nLet me look.\n</think>\n\nOne moment.\n{calls}"


_HERMES = "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in _objects())
_QWEN_XML = f"""<tool_call>
<function=get_weather>
<parameter=city>
São Paulo
</parameter>
<parameter=days>
3
</parameter>
<parameter=options>
{{"hourly": true}}
</parameter>
</function>
</tool_call>
<tool_call>
<function=note>
<parameter=text>
{NOTE}
</parameter>
<parameter=tags>
["x", 1]
</parameter>
</function>
</tool_call>"""
_SEED = f"""<seed:tool_call>
<function=get_weather>
<parameter=city>São Paulo</parameter>
<parameter=days>3</parameter>
<parameter=options>{{"hourly": true}}</parameter>
</function>
</seed:tool_call>
<seed:tool_call>
<function=note>
<parameter=text>{NOTE}</parameter>
<parameter=tags>["x", 1]</parameter>
</function>
</seed:tool_call>"""
_GLM = f"""<tool_call>get_weather
<arg_key>city</arg_key>
<arg_value>São Paulo</arg_value>
<arg_key>days</arg_key>
<arg_value>3</arg_value>
<arg_key>options</arg_key>
<arg_value>{{"hourly": true}}</arg_value>
</tool_call>
<tool_call>note
<arg_key>text</arg_key>
<arg_value>{NOTE}</arg_value>
<arg_key>tags</arg_key>
<arg_value>["x", 1]</arg_value>
</tool_call>"""
_LONGCAT_XML = re.sub("(?<=<)(/?)(?=think|tool_call|arg_)", r"\1longcat_", _thinking(_GLM))
_GLM47 = (
    "<tool_call>get_weather<arg_key>city</arg_key><arg_value>São Paulo</arg_value><arg_key>days</arg_key>"
    '<arg_value>3</arg_value><arg_key>options</arg_key><arg_value>{"hourly": true}</arg_value></tool_call>'
    f"<tool_call>note<arg_key>text</arg_key><arg_value>{NOTE}</arg_value>"
    '<arg_key>tags</arg_key><arg_value>["x", 1]</arg_value></tool_call>'
)


def _hy(call: str) -> str:
    """The calls of Hy, without its suffix."""
    return _thinking(f"<tool_calls>\n{call}\n</tool_calls>")


def _kimi_k3_call(index: int, name: str, arguments: list[tuple[str, str, str]]) -> str:
    elements = "".join(
        f'<|open|>argument key="{key}" type="{type_}"<|sep|>{value}<|close|>argument<|sep|>'
        for key, type_, value in arguments
    )
    return f'<|open|>call tool="{name}" index="{index}"<|sep|>{elements}<|close|>call<|sep|>'


_KIMI_K3 = (
    "<|open|>think<|sep|>Let me look.<|close|>think<|sep|><|open|>response<|sep|>One moment.<|close|>response<|sep|>"
    "<|open|>tools<|sep|>"
    + _kimi_k3_call(
        1,
        "get_weather",
        [("city", "string", "São Paulo"), ("days", "number", "3"), ("options", "object", '{"hourly": true}')],
    )
    + _kimi_k3_call(2, "note", [("text", "string", NOTE), ("tags", "array", '["x", 1]')])
    + "<|close|>tools<|sep|><|close|>message<|sep|>"
)


def _suffixed(text: str) -> str:
    return re.sub(r"(?<=<)(/?(?:think|tool_calls?|tool_sep|arg_key|arg_value))>", r"\1:opensource>", text)


_HY3 = _hy(_GLM.replace("get_weather\n", "get_weather<tool_sep>\n").replace("note\n", "note<tool_sep>\n"))
_INVOKES = f"""<invoke name="get_weather">
<parameter name="city">São Paulo</parameter>
<parameter name="days">3</parameter>
<parameter name="options">{{"hourly": true}}</parameter>
</invoke>
<invoke name="note">
<parameter name="text">{NOTE}</parameter>
<parameter name="tags">["x", 1]</parameter>
</invoke>"""


def _dsml(section: str) -> str:
    calls = f"""<｜DSML｜{section}>
<｜DSML｜invoke name="get_weather">
<｜DSML｜parameter name="city" string="true">São Paulo</｜DSML｜parameter>
<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>
<｜DSML｜parameter name="options" string="false">{{"hourly": true}}</｜DSML｜parameter>
</｜DSML｜invoke>
<｜DSML｜invoke name="note">
<｜DSML｜parameter name="text" string="true">{NOTE}</｜DSML｜parameter>
<｜DSML｜parameter name="tags" string="false">["x", 1]</｜DSML｜parameter>
</｜DSML｜invoke>
</｜DSML｜{section}>"""
    return _thinking(f"\n{calls}")


def _plamo(name: str, arguments: str) -> str:
    def tag(word: str) -> str:
        return f"<|plamo:{word}:plamo|>"

    return (
        f"{tag('begin_tool_request')}{tag('begin_tool_name')}{name}{tag('end_tool_name')}{tag('begin_tool_arguments')}"
        f"<|plamo:constrain|>json<|plamo:msg|>{arguments}{tag('end_tool_arguments')}{tag('end_tool_request')}"
    )


_ON_ONE_LINE = re.sub(r"\n(?=<(?!c>)|$)", "", _INVOKES)


def _deepseek(before: str, after: str, between: str) -> str:
    def call(name: str, arguments: str) -> str:
        return f"<｜tool▁call▁begin｜>{before.format(name)}{arguments}{after}<｜tool▁call▁end｜>"

    calls = between.join((call("get_weather", _WEATHER), call("note", _NOTE)))
    return _thinking(f"<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>")


def _kimi(name: str, index: int, arguments: str) -> str:
    return f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


_PYTHON = (
    "get_weather(city='São Paulo', days=3, options={'hourly': True})",
    'note(text=\'a "b"\\n<c> é\', tags=["x", 1])',
)
_GEMMA = (
    "call:get_weather{{city:{q}São Paulo{q},days:3,options:{{hourly:true}}}}",
    'call:note{{text:{q}a "b"\n<c> é{q},tags:[{q}x{q},1]}}',
)


def _gemma(quote: str, begin: str, end: str) -> str:
    return "".join(begin + call.format(q=quote) + end for call in _GEMMA)


GOLDEN: dict[str, str] = {
    "hermes": _thinking(_HERMES),
    "ernie45": _thinking(_HERMES).replace("One moment.", "<response>\nOne moment.\n</response>"),
    "longcat": _thinking(_HERMES).replace("tool_call>", "longcat_tool_call>").replace("think>", "longcat_think>"),
    "llama_json": "; ".join(_objects("parameters")),
    "internlm": _thinking(
        "\n".join(f"<|action_start|><|plugin|>\n{each}\n<|action_end|>" for each in _objects("parameters"))
    ),
    "granite": f"One moment.<|tool_call|>{_array()}",
    "granite_20b_fc": "One moment.\n" + "\n".join(f"<function_call> {each}" for each in _objects()),
    "gigachat3": "One moment.\n" + "\n".join(f"function call<|role_sep|>\n{each}" for each in _objects()),
    "phi4_mini": f"One moment.functools{_array()}",
    "hunyuan_a13b": "<think>\nLet me look.\n</think>\n<answer>\nOne moment.\n"
    f"<tool_calls>\n{_array()}\n</tool_calls>\n</answer>",
    "jamba": f"One moment.\n<tool_calls>{_array()}</tool_calls>",
    "apertus": "<|inner_prefix|>Let me look.<|inner_suffix|>One moment."
    f'<|tools_prefix|>[{{"get_weather": {_WEATHER}}}, {{"note": {_NOTE}}}]<|tools_suffix|>',
    "xlam": _array(),
    "cohere_command3": "<|START_THINKING|>Let me look.<|END_THINKING|><|START_RESPONSE|>One moment.<|END_RESPONSE|>"
    f"<|START_ACTION|>\n{_array('parameters', 'tool_name')}\n<|END_ACTION|>",
    "qwen_xml": _thinking(_QWEN_XML),
    "seed_oss": f"<seed:think>Let me look.</seed:think>One moment.\n{_SEED}",
    "glm45": _thinking(_GLM),
    "glm47": f"<think>Let me look.</think>One moment.{_GLM47}",
    "longcat_xml": _LONGCAT_XML,
    "kimi_k3": _KIMI_K3,
    "hy_v3": _suffixed(_HY3),
    "hy_v3_preview": _HY3,
    "hy_v4": _suffixed(_hy(_GLM47.replace("><tool_call>", ">\n<tool_call>"))),
    "minimax_m2": _thinking(f"<minimax:tool_call>\n{_INVOKES}\n</minimax:tool_call>"),
    "deepseek_v32": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "deepseek_v41": _dsml("calls").replace("<｜DSML｜", "<｜DSML｜ ").replace("</｜DSML｜", "</｜DSML｜ "),
    "dots": _thinking(f"<dots_function_call>{_ON_ONE_LINE}</dots_function_call>"),
    "k2_horizon": re.sub(
        r"(?<=<)(/?)(?=think|tool_call|arg_)", r"\1ifm|", _thinking(f"<tool_calls>\n{_GLM}\n</tool_calls>")
    ),
    "minicpm5": _thinking(
        _ON_ONE_LINE.replace("invoke", "function").replace("parameter", "param").replace("n><f", "n>\n<f")
    ),
    "plamo3": "<|plamo:begin_think:plamo|>Let me look.<|plamo:end_think:plamo|>One moment."
    f"<|plamo:begin_tool_requests:plamo|>{_plamo('get_weather', _WEATHER)}{_plamo('note', _NOTE)}"
    "<|plamo:end_tool_requests:plamo|><|plamo:tag|>",
    "step3": "<think>Let me look.</think>One moment.<｜tool_calls_begin｜>"
    + "".join(
        f"<｜tool_call_begin｜>function<｜tool_sep｜>{call}<｜tool_call_end｜>"
        for call in _INVOKES.replace("<", "<steptml:")
        .replace("<steptml:/", "</steptml:")
        .replace("<steptml:c>", "<c>")
        .replace("</steptml:invoke>\n", "</steptml:invoke>\f")
        .split("\f")
    )
    + "<｜tool_calls_end｜>",
    "deepseek_v3": _deepseek("function<｜tool▁sep｜>{}\n```json\n", "\n```", "\n"),
    "deepseek_v31": _deepseek("{}<｜tool▁sep｜>", "", ""),
    "kimi_k2": "<think>Let me look.</think>One moment.<|tool_calls_section_begin|>"
    f"{_kimi('get_weather', 0, _WEATHER)}{_kimi('note', 1, _NOTE)}<|tool_calls_section_end|>",
    "mistral": f"[THINK]Let me look.[/THINK]One moment.[TOOL_CALLS]get_weather[ARGS]{_WEATHER}"
    f"[TOOL_CALLS]note[ARGS]{_NOTE}",
    "pythonic": f"[{', '.join(_PYTHON)}]",
    "olmo3": _thinking(f"<function_calls>\n{chr(10).join(_PYTHON)}\n</function_calls>"),
    "lfm2": _thinking(f"<|tool_call_start|>[{', '.join(_PYTHON)}]<|tool_call_end|>"),
    "gemma4": "<|channel>thought\nLet me look.\n<channel|>One moment."
    + _gemma('<|"|>', "<|tool_call>", "<tool_call|>"),
    "functiongemma": "One moment." + _gemma("<escape>", "<start_function_call>", "<end_function_call>"),
    "harmony": "<|channel|>analysis<|message|>Let me look.<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>One moment.<|end|>"
    f"<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{_WEATHER}<|call|>"
    f"<|start|>assistant to=functions.note<|channel|>commentary json<|message|>{_NOTE}<|call|>",
}
NO_CONTENT = {"llama_json", "xlam", "pythonic"}  # an answer is text or calls
