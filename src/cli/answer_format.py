"""The format of a deployment's answers, for commands that load neither tokenizer nor engine."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config.checkpoint.chat_templates import TemplateSource, templates_in
from ..config.checkpoint.gguf import read_gguf
from ..config.checkpoint.gguf_files import named_tokens
from ..config.checkpoint.model_files import is_gguf, read_json_if_any
from ..config.checkpoint.special_tokens import special_tokens
from ..config.errors import ModelFilesError
from ..config.resolve.values import Values
from ..formats.detect import Detection, Render
from ..isolated.isolation import IsolatedProcesses
from ..text.answer_format import decide_format
from ..text.chat_template import CannotCompile
from ..text.template import Rendering, Template
from ..text.template_jobs import TEMPLATE_JOBS


def templates_of(values: Values, folder: Path) -> dict[str, TemplateSource]:
    """The chat templates of a deployment by name: the one that is set, or the model's own."""
    if values.template is not None:
        return {"default": values.template}
    try:
        return {name: template for name, template in templates_in(folder).items() if template.text}
    except (OSError, ModelFilesError):
        return {}


def format_of_answers(values: Values, folder: Path, architecture: str) -> Detection:
    """Raises FormatProblem for a format that is set and cannot be used."""
    templates = templates_of(values, folder)
    text = "\n".join(template.text for template in templates.values())
    get = values.decisions.get
    plugin = get("server.tool_parser_plugin")
    return decide_format(
        get("server.tool_call_parser"),
        plugin and values.located("server.tool_parser_plugin"),
        get("structured_outputs.reasoning_parser"),
        text,
        architecture,
        render_of(values, folder, templates),
    )


def variables_of(templates: Mapping[str, TemplateSource]) -> frozenset[str]:
    """The variables that the template for conversations with tools reads."""
    name = "tool_use" if "tool_use" in templates else "default"
    try:
        return (
            Template.compile(_processes(), templates[name].text, "auto").variables if name in templates else frozenset()
        )
    except CannotCompile:
        return frozenset()


def render_of(values: Values, folder: Path, templates: Mapping[str, TemplateSource]) -> Render:
    """Renders as the server does, in a separate process."""

    @functools.cache
    def variables() -> dict[str, Any]:
        found: dict[str, Any] = {}
        try:
            if is_gguf(folder):
                found |= named_tokens(read_gguf(folder))
            else:
                for name in ("tokenizer_config.json", "special_tokens_map.json"):
                    found = special_tokens(read_json_if_any(folder / name)) | found
        except ModelFilesError as error:
            raise ValueError(str(error)) from None
        return {**found, **values.decisions.get("server.default_chat_template_kwargs")}

    @functools.cache
    def compiled(name: str) -> Template:
        try:
            return Template.compile(_processes(), templates[name].text, "auto")
        except CannotCompile as error:
            raise ValueError(error.message("the chat template")) from None

    def render(
        messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, add_generation_prompt: bool
    ) -> str:
        if not templates:
            raise ValueError("there is no chat template")
        name = "tool_use" if tools and "tool_use" in templates else next(iter(templates))
        given = {**variables(), "tools": tools, "documents": None, "add_generation_prompt": add_generation_prompt}
        return compiled(name if name in templates else "default").render(Rendering(messages, given))

    return render


@functools.cache
def _processes() -> IsolatedProcesses:
    return IsolatedProcesses(TEMPLATE_JOBS, 1)
