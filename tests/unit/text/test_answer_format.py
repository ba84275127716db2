"""The format of a deployment's answers: found, set, of a plugin, or off."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.formats.test_detect import rendering, source

from stoker.formats.detect import Detection
from stoker.formats.events import CallArguments, CallBegin, CallEnd, Content
from stoker.formats.parser import open_parser
from stoker.text.answer_format import FormatProblem, decide_format

HERMES = source("hermes")
DECLARATION = """
name: mine
reasoning: {begin: "<r>", end: "</r>"}
calls:
  style: {named_json: {name_end: "|"}}
  begin: "<mine>"
  end: "</mine>"
"""
CLASS = """
from stoker.formats.events import Content

class Loud:
    name = "loud"
    in_reasoning = False

    def __init__(self, format, **options):
        pass

    def feed(self, text):
        return [Content(text.upper())]

    def finish(self):
        return []
"""


def decided(
    wanted: str = "auto", plugin: Path | None = None, reasoning: str = "auto", template: str = HERMES
) -> Detection:
    return decide_format(wanted, plugin and str(plugin), reasoning, template, "", rendering(template))


@pytest.mark.effect("server.tool_call_parser")
def test_a_format_is_found_or_set_or_off():
    assert decided().calls == "hermes"
    assert decided("none").calls == "off"
    assert decided("none").reasoning == "<think>..</think>"
    found = decided("glm45")
    assert found.calls == "glm45"
    assert "the model's chat template writes another format" in found.warnings[0]
    with pytest.raises(FormatProblem, match="did you mean hermes"):
        decided("hermse")


@pytest.mark.effect("structured_outputs.reasoning_parser")
def test_reasoning_is_found_or_set_or_off():
    found = decided(reasoning="none").format
    assert found is not None
    assert found.reasoning is None
    found = decided("none", reasoning="seed_oss").format
    assert found is not None
    assert found.reasoning is not None
    assert found.reasoning.begin == "<seed:think>"
    assert decided("none", reasoning="none").format is None


@pytest.mark.effect("server.tool_parser_plugin")
def test_a_plugin_is_a_declaration_or_a_class(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text(DECLARATION)
    found = decided(plugin=tmp_path / "mine.yaml")
    assert found.calls == "mine"
    assert found.format is not None
    parser = open_parser(found.format, starts_in_reasoning=False, new_id=lambda: "1")
    assert [*parser.feed('<mine>f|{"a": 1}</mine>'), *parser.finish()] == [
        CallBegin(0, "1", "f"),
        CallArguments(0, '{"a": 1}'),
        CallEnd(0),
    ]
    (tmp_path / "loud.py").write_text(CLASS)
    found = decided("loud", plugin=tmp_path / "loud.py")
    assert found.format is not None
    assert open_parser(found.format, starts_in_reasoning=False).feed("hi") == [Content("HI")]
    assert decided("hermes", plugin=tmp_path / "loud.py").calls == "hermes"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "name: a\ncals: {}", "no such key `cals`"),
        ("a.yaml", "name: a\ncalls: {style: {xml: {nam: 1}}}", "no such key `calls.style.xml.nam`"),
        ("a.yaml", "name: a\ncalls: {style: {sgml: {}}}", "`calls.style` must have one of the keys json"),
        ("a.yaml", "name: 1", "`name`: input should be a valid string"),
        ("a.yaml", "[", "while parsing"),
        ("a.py", "import nothing_of_this_name", "importing it failed: ModuleNotFoundError"),
        ("a.py", "x = 1", "exactly one class"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path, name: str, text: str, message: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(FormatProblem, match=message):
        decided(plugin=tmp_path / name)


def test_a_plugin_that_does_not_exist_is_refused(tmp_path: Path):
    with pytest.raises(FormatProblem, match="no such file"):
        decided(plugin=tmp_path / "none.yaml")
