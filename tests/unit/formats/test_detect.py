"""The format of a model, proved by its chat template. The templates are minimal ones in the shape of each family's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from stoker.formats.detect import Render, detect
from stoker.formats.registry import FORMATS
from stoker.text.chat_template import ChatTemplate
from stoker.text.template_environment import TemplateEnvironment

TEMPLATES = Path(__file__).parent / "templates"
NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))


def source(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text()


def rendering(source: str) -> Render:
    template = ChatTemplate(TemplateEnvironment(10.0), source)

    def render(
        messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, add_generation_prompt: bool
    ) -> str:
        return template.render(messages, {"tools": tools, "add_generation_prompt": add_generation_prompt})

    return render


@pytest.mark.parametrize("name", NAMES)
def test_the_format_of_a_template_is_found_and_proved(name: str):
    found = detect(source(name), "", rendering(source(name)))
    assert found.calls == name, found
    assert found.format is not None
    assert found.format.calls is FORMATS[name].calls
    assert not found.warnings
    assert "read back" in found.calls_why


@pytest.mark.parametrize(
    ("name", "reasoning"),
    [
        ("hermes", "<think>..</think>"),
        ("qwen_xml", "<think>..</think>"),
        ("harmony", "<|channel|>analysis<|message|>..<|end|>"),
        ("gemma4", "<|channel>thought..<channel|>"),
        ("llama_json", "off"),
    ],
)
def test_the_markers_of_reasoning_are_found(name: str, reasoning: str):
    found = detect(source(name), "", rendering(source(name)))
    assert found.reasoning == reasoning
    assert (found.format is not None and found.format.reasoning is not None) == (reasoning != "off")


def test_a_template_that_only_splits_at_the_end_of_reasoning_starts_within_it():
    found = detect(source("deepseek_v3"), "", rendering(source("deepseek_v3")))
    assert found.format is not None
    assert found.format.reasoning is not None
    assert found.format.reasoning.is_default


def test_a_format_that_does_not_read_the_calls_of_the_template_is_off_with_the_evidence():
    """A template of which one separator changed was resolved to a wrong parser, and no call was ever found."""
    changed = source("glm45").replace("</arg_key>\\n<arg_value>", "</arg_key> = <arg_value>")
    changed = changed.replace("<tool_call>' + call", "<tool_call>: ' + call")
    found = detect(changed, "", rendering(changed))
    assert found.calls == "off"
    assert found.format is None or found.format.calls is None
    assert "<tool_call>: get_weather" in found.warnings[0]
    assert "server.tool_call_parser" in found.warnings[0]


def test_a_template_without_tools_has_no_calls():
    plain = "{% for message in messages %}{{ message.content }}{% endfor %}"
    found = detect(plain, "LlamaForCausalLM", rendering(plain))
    assert (found.calls, found.format) == ("off", None)
