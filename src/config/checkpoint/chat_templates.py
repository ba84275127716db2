"""Chat templates as they are written: their texts, and the file or option that each was read from.

Read here only. src/text compiles and renders them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...input_file import read_file
from ..errors import ModelFilesError
from .gguf import read_gguf
from .model_files import MAX_TEMPLATE_BYTES, is_gguf, read_json, read_json_if_any

TEKKEN_JSON = "tekken.json"
_TEKKEN_TEMPLATES = {  # version -> file of this folder; mistral-common 1.13 formats conversations likewise
    "v3": "tekken_v3.jinja",
    "v7": "tekken_v7.jinja",
    "v11": "tekken_v7.jinja",
    "v13": "tekken_v7.jinja",
}
_MAX_VOCABULARY_BYTES = 1 << 28
_IN_HEADER = "tokenizer.chat_template"  # of a GGUF file; others are named after a point


@dataclass(frozen=True, slots=True)
class TemplateSource:
    text: str
    origin: str  # for messages


class TemplateUnreadable(Exception):
    """Neither a template nor a file that can be read."""


def is_template(value: str) -> bool:
    """Whether a text that may be a file name is a template."""
    return "{{" in value or "{%" in value


def template_of(value: str, origin: str, located: Callable[[str], str] = lambda name: name) -> TemplateSource:
    """The template that an option or an argument sets: its value, or the content of the file that it names.

    origin: the option or the argument. located: the path of a name. Raises TemplateUnreadable.
    """
    if is_template(value):
        return TemplateSource(value, origin)
    path = located(value)
    try:
        return TemplateSource(read_file(path, MAX_TEMPLATE_BYTES).decode(), path)
    except OSError as error:
        raise TemplateUnreadable(f"{path}: {(error.strerror or 'cannot be read').lower()}") from None
    except ValueError:  # also of a name with a null character
        raise TemplateUnreadable(f"{path!r}: not a text file in UTF-8") from None


def templates_in(folder: Path, tokenizer_config: Mapping[str, Any] | None = None) -> dict[str, TemplateSource]:
    """A model's own templates by name; a single one is named `default`. folder: or a GGUF file, whose header has them.

    chat_template.jinja and chat_templates/*.jinja override those of the JSON files.
    tokenizer_config: the content of tokenizer_config.json, if it has been read. Raises ModelFilesError.
    """
    if is_gguf(folder):
        return _in_header(folder)
    file = folder / "tokenizer_config.json"
    written = (read_json_if_any(file) if tokenizer_config is None else tokenizer_config).get("chat_template")
    if not written:
        file = folder / "chat_template.json"
        written = read_json_if_any(file).get("chat_template")
    templates: dict[str, TemplateSource] = {}
    if isinstance(written, str):
        templates["default"] = TemplateSource(written, str(file))
    elif isinstance(written, list):
        for entry in written:
            match entry:
                case {"name": str(name), "template": str(template)}:
                    templates[name] = TemplateSource(template, str(file))
                case _:
                    message = f"{file}: each entry of `chat_template` must have a name and a template"
                    raise ModelFilesError(message, code="M303")
    elif written is not None:
        message = f"{file}: `chat_template` must be a template, or a list of named templates"
        raise ModelFilesError(message, code="M303")
    for named in sorted((folder / "chat_templates").glob("*.jinja")):
        templates[named.stem] = _read(named)
    single = folder / "chat_template.jinja"
    if os.path.lexists(single):
        templates["default"] = _read(single)
    if not templates and (written := _of_tekken(folder / TEKKEN_JSON)) is not None:
        templates["default"] = written
    return templates


def _of_tekken(vocabulary: Path) -> TemplateSource | None:
    """Template of conversations without tools, for the version of Mistral AI's vocabulary; None for an unknown version.

    Their repositories have no template: the format of each version is a part of their library.
    """
    if not vocabulary.is_file():
        return None
    config = read_json(vocabulary, _MAX_VOCABULARY_BYTES).get("config")
    name = _TEKKEN_TEMPLATES.get(str(config.get("version"))) if isinstance(config, dict) else None
    return None if name is None else _read(Path(__file__).parent / name)


def _in_header(file: Path) -> dict[str, TemplateSource]:
    values = read_gguf(file).values
    named = {
        key.removeprefix(_IN_HEADER).removeprefix("."): values[key] for key in values if key.startswith(_IN_HEADER)
    }
    for name, text in named.items():
        if not isinstance(text, str) or len(text) > MAX_TEMPLATE_BYTES:
            at_most = f"a text of at most {MAX_TEMPLATE_BYTES} characters"
            key = f"{_IN_HEADER}.{name}" if name else _IN_HEADER
            raise ModelFilesError(f"{file}: `{key}` must be {at_most}", code="M303")
    return {name or "default": TemplateSource(text, str(file)) for name, text in named.items() if text}


def _read(file: Path) -> TemplateSource:
    try:
        return TemplateSource(read_file(file, MAX_TEMPLATE_BYTES).decode(), str(file))
    except OSError as error:
        raise ModelFilesError(f"{file}: cannot be read: {error.strerror}", code="M303") from None
    except UnicodeDecodeError:
        raise ModelFilesError(f"{file}: not UTF-8", code="M303") from None
