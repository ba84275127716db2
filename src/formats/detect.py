"""Detects which format a model writes: rules name candidates, and the model's own chat template is the proof.

The template renders a golden conversation; only a format that reads the calls back is accepted. The caller provides
the rendering: nothing here runs a template.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import golden
from .events import CallArguments, CallBegin, Content, Reasoning
from .format import Format, ReasoningMarkers
from .initial import starts_in_reasoning
from .parser import AnswerParser
from .registry import FORMATS

# messages, tools, whether the prompt of an answer follows -> text. Raises ValueError if the template refuses them.
Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None, bool], str]

# Marker in a template -> formats to try, the most specific marker first.
_RULES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("<|constrain|>", ("harmony",)),
    ("<|call|>", ("harmony",)),
    ("<｜DSML｜ calls>", ("deepseek_v41",)),
    ("<｜DSML｜tool_calls>", ("deepseek_v4",)),
    ("<｜DSML｜", ("deepseek_v32", "deepseek_v4")),
    ("<｜tool▁call▁begin｜>", ("deepseek_v31", "deepseek_v3")),
    ("<steptml:", ("step3",)),
    ("<dots_function_call>", ("dots",)),
    ("<ifm|tool_call>", ("k2_horizon",)),
    ("<|plamo:begin_tool_request", ("plamo3",)),
    ("<param name=", ("minicpm5",)),
    ("<|tool_call_argument_begin|>", ("kimi_k2",)),
    ("<minimax:tool_call>", ("minimax_m2",)),
    ("<seed:tool_call>", ("seed_oss",)),
    ("<|tools_prefix|>", ("apertus",)),
    ("<|open|>", ("kimi_k3",)),
    ("<tool_sep", ("hy_v3", "hy_v3_preview")),
    ("<arg_key{}>", ("hy_v4",)),  # the suffix is written into the marker as the template runs
    ("<arg_key:opensource>", ("hy_v4",)),
    ("<longcat_arg_key>", ("longcat_xml",)),
    ("<longcat_tool_call>", ("longcat",)),
    ("<start_function_call>", ("functiongemma",)),
    ("<tool_call|>", ("gemma4",)),
    ("<|START_ACTION|>", ("cohere_command3",)),
    ("<|action_start|>", ("internlm",)),
    ("<|tool_call_start|>", ("lfm2",)),
    ("<function_calls>", ("olmo3",)),
    ("</arg_key>\\n", ("glm45",)),
    ("</arg_key>\n", ("glm45",)),
    ("<arg_key>", ("glm47", "glm45")),
    ("<function=", ("qwen_xml",)),
    ("<tool_calls>", ("hunyuan_a13b", "jamba")),
    ("[TOOL_CALLS]", ("mistral",)),
    ("function call<|role_sep|>", ("gigachat3",)),
    ("<function_call>", ("granite_20b_fc",)),
    ("<|tool_call|>", ("granite",)),
    ("<tool_call>", ("hermes", "ernie45")),
    ("functools", ("phi4_mini",)),
    ("<|python_start|>", ("pythonic", "llama_json")),
    ("<|python_tag|>", ("llama_json", "pythonic")),
    ('"parameters":', ("llama_json",)),
)
# Architectures whose templates name no marker of their format.
_ARCHITECTURES: Mapping[str, tuple[str, ...]] = {
    "Llama4ForConditionalGeneration": ("pythonic", "llama_json"),
    "LlamaForCausalLM": ("llama_json", "pythonic"),
    "GptOssForCausalLM": ("harmony",),
    "DeepseekV32ForCausalLM": ("deepseek_v32",),
    "DeepseekV4ForCausalLM": ("deepseek_v4",),
}
REFUSED = "the template refuses it"  # as some refuse two calls: no fault of the format
_MAX_SHOWN = 160
_END_OF_TURN = re.compile(r"(\s|<[^<>]{1,40}>|\[[^\[\]]{1,20}\])*")  # special tokens and white space


@dataclass(frozen=True, slots=True)
class Trial:
    """One format against one template: problem is empty if the round trip holds."""

    format: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Detection:
    """format: of the answers, None if neither calls nor reasoning are read. why: of each part, for people."""

    format: Format | None
    calls: str
    calls_why: str
    reasoning: str
    reasoning_why: str
    warnings: tuple[str, ...] = ()
    trials: tuple[Trial, ...] = ()


def candidates(template: str, architecture: str = "") -> list[tuple[str, str]]:
    """Formats that a template may be of, with the reason: the first that a round trip proves is the one."""
    found: dict[str, str] = {}
    for marker, names in _RULES:
        for name in names if marker in template else ():
            found.setdefault(name, f"`{marker.strip()}` in the template")
    for name in _ARCHITECTURES.get(architecture, ()):
        found.setdefault(name, architecture)
    return list(found.items())


def detect(template: str, architecture: str, render: Render) -> Detection:
    """The format of a model, by its template."""
    trials: list[Trial] = []
    chosen: Format | None = None
    why = "no known format is in the template" if "tools" in template else "the template takes no tools"
    for name, reason in candidates(template, architecture):
        trial = try_format(FORMATS[name], render)
        trials.append(trial)
        if not trial.problem:
            chosen, why = FORMATS[name], f"{reason}; the template's own calls are read back"
            break
    warnings: list[str] = []
    if trials and chosen is None:
        why = f"the template's own calls are not read back as {trials[0].format}"
        warnings.append(
            f"tool calls stay in the text of answers: {why}: {trials[0].problem}. Set `server.tool_call_parser` if you "
            "know the format"
        )
    markers, reasoning_why = find_reasoning_markers(template, chosen, render)
    format = combined(chosen, markers)
    reasoning = f"{markers.begin.strip()}..{markers.end}" if markers else "off"
    return Detection(
        format, chosen.name if chosen else "off", why, reasoning, reasoning_why, tuple(warnings), tuple(trials)
    )


def combined(calls: Format | None, reasoning: ReasoningMarkers | None) -> Format | None:
    """The calls of one format and these markers of reasoning. None if there is neither."""
    if calls is not None:
        return replace(calls, reasoning=reasoning)
    if reasoning is None:
        return None
    return Format("text", "text with reasoning", reasoning=reasoning)


def find_reasoning_markers(template: str, calls: Format | None, render: Render) -> tuple[ReasoningMarkers | None, str]:
    """The markers of reasoning that the template writes or names, and why."""
    known = [calls.reasoning] if calls and calls.reasoning else []
    if calls and known and known[0].end not in template and not _reasoning_problem(calls, render):
        return known[0], "the template's own reasoning is read back"  # its markers are made as the template runs
    known += [format.reasoning for format in FORMATS.values() if format.reasoning]
    for markers in known:
        if markers.end not in template:
            continue
        if markers.begin.strip() not in template:
            return replace(markers, is_default=True), f"`{markers.end}` but not `{markers.begin}` in the template"
        format = combined(calls, markers)
        assert format is not None
        proof = "" if _reasoning_problem(format, render) else "; the template's own reasoning is read back"
        return markers, f"`{markers.begin.strip()}` in the template{proof}"
    return None, "no known marker of reasoning is in the template"


def try_format(format: Format, render: Render) -> Trial:
    """Whether the parser reads the golden calls that the template writes. The least that a template writes is enough:
    some refuse several calls, or leave the text before them out."""
    first = ""
    for num_calls, with_content in ((2, True), (1, True), (1, False)):
        for as_text in (False, True):
            message = golden.answer(num_calls, with_content=with_content, with_reasoning=False, as_text=as_text)
            problem = _problem(format, message, num_calls, render)
            if not problem:
                return Trial(format.name)
            first = first or problem
    return Trial(format.name, first)


def round_trips(format: Format, render: Render) -> list[Trial]:
    """Each golden conversation with this format, by its name. A template may refuse some of them."""
    cases: list[tuple[str, int, bool]] = [
        ("two calls after a text", 2, True),
        ("one call after a text", 1, True),
        ("one call", 1, False),
    ]
    found: list[Trial] = []
    for name, num_calls, with_content in cases if format.calls else ():
        problems = [
            _problem(
                format,
                golden.answer(num_calls, with_content=with_content, with_reasoning=False, as_text=as_text),
                num_calls,
                render,
            )
            for as_text in (False, True)
        ]
        found.append(Trial(name, "" if "" in problems else problems[0]))
    if format.reasoning is not None:
        problem = _reasoning_problem(format, render)
        found.append(Trial("reasoning before a text", problem))
    return found


def _reasoning_problem(format: Format, render: Render) -> str:
    message = golden.answer(0, with_content=True, with_reasoning=True)
    try:
        text, prompt = answer_text(format, message, None, render)
    except ValueError as error:
        return f"{REFUSED}: {error}"
    if golden.REASONING not in text:
        return f"{REFUSED}: it writes no reasoning of earlier answers"
    read = _read(format, text, prompt)
    if read.reasoning == golden.REASONING and read.content.startswith(golden.CONTENT):
        return ""
    return f"{read.reasoning!r} was read in {shown_text(text)}"


def _problem(format: Format, message: Mapping[str, Any], num_calls: int, render: Render) -> str:
    """What is wrong with the round trip of one message; empty if it holds."""
    try:
        text, prompt = answer_text(format, message, golden.tools(), render)
    except ValueError as error:
        return f"{REFUSED}: {error}"
    read = _read(format, text, prompt)
    wanted = [(name, dict(arguments)) for name, arguments in golden.CALLS[:num_calls]]
    if wanted[0][0] not in text:
        return "the template does not write the calls of a message"
    if read.calls != wanted:
        return f"{golden.shown(read.calls)} instead of {golden.shown(wanted)} was read in {shown_text(text)}"
    expected = message["content"] if message["content"] in text else ""
    if read.content.strip() != expected:
        return f"before the calls, {read.content[:_MAX_SHOWN]!r} was read in {shown_text(text)}"
    if not _END_OF_TURN.fullmatch(read.rest) and read.rest.strip() != _end_of_turn(format, render):
        return f"after the calls, {read.rest[:_MAX_SHOWN]!r} was read in {shown_text(text)}"
    return ""


def _end_of_turn(format: Format, render: Render) -> str:
    """What the template writes after an answer of text."""
    try:
        text, _ = answer_text(format, golden.answer(0, with_content=True, with_reasoning=False), None, render)
    except ValueError:
        return ""
    return text.partition(golden.CONTENT)[2].strip()


def answer_text(
    format: Format, message: Mapping[str, Any], tools: Sequence[Mapping[str, Any]] | None, render: Render
) -> tuple[str, str]:
    """The message as the template writes it, from where an answer begins, and the prompt before it.

    Raises ValueError if the template refuses the messages.
    """
    whole = render([*golden.question(), message], tools, False)
    prompt = render(golden.question(), tools, True)
    differing = (index for index, (one, other) in enumerate(zip(whole, prompt, strict=False)) if one != other)
    begin = next(differing, min(len(whole), len(prompt)))
    for marker in sorted(format.special_tokens, key=len, reverse=True):
        at = whole.find(marker, max(0, begin - len(marker) + 1))
        if 0 <= at < begin:  # both begin alike, with different markers
            begin = at
    return whole[begin:], whole[:begin]


@dataclass(slots=True)
class _Answer:
    """rest: text after calls. Arguments that are not JSON are None."""

    reasoning: str
    content: str
    rest: str
    calls: list[tuple[str, Any]]


def _read(format: Format, text: str, prompt: str) -> _Answer:
    parser = AnswerParser(
        format, tools=golden.schemas(), starts_in_reasoning=starts_in_reasoning(format, prompt), new_id=lambda: "1"
    )
    reasoning, content, rest = "", "", ""
    calls: list[tuple[str, str]] = []
    for event in [*parser.feed(text), *parser.finish()]:
        match event:
            case Reasoning(piece):
                reasoning += piece
            case Content(piece) if calls:
                rest += piece
            case Content(piece):
                content += piece
            case CallBegin(_, _, name):
                calls.append((name, ""))
            case CallArguments(_, piece):
                calls[-1] = (calls[-1][0], calls[-1][1] + piece)
    return _Answer(reasoning.strip(), content, rest, [(name, _value(arguments)) for name, arguments in calls])


def _value(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return None


def shown_text(text: str) -> str:
    """A short part of a text, for a message."""
    return repr(text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "...")
