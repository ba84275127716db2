"""Roles that a template does not write, and arguments that are not an object."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.engine.api import InvalidRequest
from stoker.text.chat_template import ChatTemplate
from stoker.text.template_environment import TemplateEnvironment

USER = {"role": "user", "content": "Hi"}
CASES = (
    "{% for m in messages %}{% if m.role == 'system' %}S:{{ m.content }};{% elif m.role == 'user' %}U:{{ m.content }};"
    "{% elif m.role == 'assistant' %}A:{{ m.content }};{% endif %}{% endfor %}"
)
ABOUT_DEVELOPERS = "You assist a software developer.{{ ' or a developer' if false }} " + CASES
WITH_DEVELOPER = CASES.replace("m.role == 'system'", "m.role == 'system' or m.role == 'developer'").replace(
    "S:", "{{ m.role }}:"
)
TOOL_AFTER_CALL = CASES.replace(
    "{% endif %}{% endfor %}",
    "{% elif m.role == 'tool' %}{% if not messages[loop.index0 - 1].tool_calls %}{{ raise_exception('no call') }}"
    "{% endif %}T:{{ m.content }};{% endif %}{% endfor %}",
)


def rendered(template: str, *messages: dict[str, Any]) -> str:
    return ChatTemplate(TemplateEnvironment(60), template).render(messages, {"tools": None})


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        (CASES, "S:x;U:Hi;"),
        (ABOUT_DEVELOPERS, "You assist a software developer. S:x;U:Hi;"),
        (WITH_DEVELOPER, "developer:x;U:Hi;"),
    ],
)
def test_a_developer_message_is_written_as_system_unless_the_template_has_a_case_for_it(template: str, prompt: str):
    """Before, the word "developer" anywhere in the template was taken for such a case, and the message was lost."""
    assert rendered(template, {"role": "developer", "content": "x"}, USER) == prompt


@pytest.mark.parametrize("role", ["sytem", "tool"])
def test_a_role_that_the_template_leaves_out_is_an_error_with_the_roles_that_it_writes(role: str):
    """Before, such a message was missing in the prompt without a word."""
    with pytest.raises(InvalidRequest) as failed:
        rendered(CASES, USER, {"role": role, "content": "x", "tool_call_id": "c"})
    assert failed.value.param == "messages[1].role"
    assert f"is '{role}'" in str(failed.value)
    assert str(failed.value).endswith("it writes those of: assistant, developer, system, user")


def test_a_template_that_writes_every_role_takes_every_role():
    assert (
        rendered("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", {"role": "x", "content": "y"})
        == "[x]y"
    )
    assert rendered("{{ messages | length }}", {"role": "x", "content": "y"}) == "1"  # it writes no content at all


def test_a_role_with_a_rule_about_its_place_is_known():
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}],
    }
    result = {"role": "tool", "tool_call_id": "c", "content": "x"}
    assert rendered(TOOL_AFTER_CALL, USER, call, result) == "U:Hi;A:;T:x;"
    with pytest.raises(InvalidRequest, match="no call"):  # the template's own error
        rendered(TOOL_AFTER_CALL, USER, result)


def test_the_roles_that_clients_make_up_are_tried_a_limited_number_of_times():
    refusing = CASES.replace(
        "{% endif %}{% endfor %}", "{% else %}{{ raise_exception(m.role) }}{% endif %}{% endfor %}"
    )
    template = ChatTemplate(TemplateEnvironment(60), refusing)
    for number in range(100):
        with pytest.raises(InvalidRequest, match=f"r{number}"):
            template.render([USER, {"role": f"r{number}", "content": "x"}], {})
    assert len(template._probe._writes) == 64


LOOP = "{% for m in messages %}{% for c in m.tool_calls or [] %}ARGS{% endfor %}{% endfor %}"
TAKES_TEXT = LOOP.replace("ARGS", "{{ c.function.arguments | tojson }}")
NEEDS_OBJECT = LOOP.replace("ARGS", "{% for k, v in c.function.arguments | items %}{{ k }}={{ v }};{% endfor %}")
CALLS_ITEMS = LOOP.replace("ARGS", "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}")
LOSES_TEXT = LOOP.replace(
    "ARGS",
    "{% if c.function.arguments is mapping %}{% for k in c.function.arguments %}{{ k }}={{ c.function.arguments[k] }};"
    "{% endfor %}{% endif %}",
)
WRITES_TEXT = LOOP.replace("ARGS", "{{ c.function.arguments }}")
NOT_OBJECTS = ['{"code": "', "ls -la", "null", "[]", '"s"', "[" * 100, '{"a": "\\ud800"}', "9" * 5000, '{"a":1} {}']


def arguments(template: str, given: Any) -> str:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": given}}
    return rendered(template, USER, {"role": "assistant", "content": "", "tool_calls": [call]})


@pytest.mark.parametrize("template", [NEEDS_OBJECT, CALLS_ITEMS, LOSES_TEXT])
def test_arguments_that_are_no_object_are_one_where_the_template_needs_it(template: str):
    """Before, these templates refused the conversation with a TypeError, or lost the arguments."""
    for text in NOT_OBJECTS:
        assert arguments(template, text) == f"incomplete_arguments={text};", text


def test_arguments_that_are_no_object_are_the_text_that_the_model_wrote():
    for text in NOT_OBJECTS:
        assert arguments(WRITES_TEXT, text) == text, text
    assert arguments(TAKES_TEXT, "ls -la") == '"ls -la"'


@pytest.mark.parametrize("template", [TAKES_TEXT, NEEDS_OBJECT, CALLS_ITEMS, LOSES_TEXT])
def test_arguments_that_are_an_object_are_one_in_every_form(template: str):
    shown = '{"code": "a\\nb"}' if template == TAKES_TEXT else "code=a\nb;"
    for given in ('{"code": "a\\nb"}', '{"code": "a\nb"}', {"code": "a\nb"}):  # also with a line break as it is
        assert arguments(template, given) == shown
    for given in ("", " ", "{}", {}, None):
        assert arguments(template, given) == ("{}" if template == TAKES_TEXT else "")
