"""Chat templates: each text with the file or option that it was read from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.config import ModelFilesError
from stoker.config.checkpoint.chat_templates import TemplateSource, TemplateUnreadable, template_of, templates_in


def test_a_value_is_a_template_or_the_name_of_a_file(tmp_path: Path) -> None:
    """The text of a file is a template whatever is in it, also if it is the name of another file."""
    (tmp_path / "chat.jinja").write_text("other.txt")
    (tmp_path / "other.txt").write_text("secret")
    (tmp_path / "{{ x }}").write_text("a file whose name is a template")
    found = template_of("chat.jinja", "an option", lambda name: str(tmp_path / name))
    assert found == TemplateSource("other.txt", str(tmp_path / "chat.jinja"))
    assert template_of(str(tmp_path / "{{ x }}"), "an option") == TemplateSource(str(tmp_path / "{{ x }}"), "an option")
    (tmp_path / "latin").write_bytes(b"\xe9")
    for name, cause in (
        ("missing", f"{tmp_path / 'missing'}: no such file or directory"),
        ("latin", f"{str(tmp_path / 'latin')!r}: not a text file in UTF-8"),
        ("", f"{tmp_path}: is a directory"),
    ):
        with pytest.raises(TemplateUnreadable) as caught:
            template_of(str(tmp_path / name), "an option")
        assert str(caught.value) == cause


def test_the_templates_of_a_model_and_their_files(tmp_path: Path) -> None:
    config, older = tmp_path / "tokenizer_config.json", tmp_path / "chat_template.json"
    assert templates_in(tmp_path) == {}
    older.write_text(json.dumps({"chat_template": "older"}))
    assert templates_in(tmp_path) == {"default": TemplateSource("older", str(older))}
    config.write_text(
        json.dumps({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]})
    )
    assert templates_in(tmp_path) == {
        "default": TemplateSource("d", str(config)), "tool_use": TemplateSource("t", str(config)),
    }  # fmt: skip
    (tmp_path / "chat_templates").mkdir()
    jinja = tmp_path / "chat_templates" / "tool_use.jinja"
    jinja.write_text("T")
    single = tmp_path / "chat_template.jinja"
    single.write_text("D")
    assert templates_in(tmp_path) == {
        "default": TemplateSource("D", str(single)), "tool_use": TemplateSource("T", str(jinja)),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ({"chat_template": 7}, "`chat_template` must be a template, or a list of named templates"),
        ({"chat_template": [{"name": "x"}]}, "each entry of `chat_template` must have a name and a template"),
    ],
)
@pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.json"])
def test_an_error_names_the_file(tmp_path: Path, name: str, written: object, problem: str) -> None:
    """It named the folder."""
    (tmp_path / name).write_text(json.dumps(written))
    with pytest.raises(ModelFilesError) as caught:
        templates_in(tmp_path)
    assert str(caught.value) == f"{tmp_path / name}: {problem}"
