"""Keyword arguments in Python as a layer: LLM(model="...", max_model_len=4096)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..diagnostics import Diagnostic, Label
from ..origin import Layer
from ..schema.options import options, section_flags, section_option
from ..source_text import SourceText, Span
from ..suggest import close, did_you_mean
from .flags import flat_options
from .layer import LayerSource, place
from .values import json_node, section_node


class ArgumentSource(LayerSource):
    """Names are an option's own (`max_num_seqs`), its path (`scheduler.max_num_seqs`), or those of the flags of a whole
    section (`speculative_config`); None unsets."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        for name, value in arguments.items():
            section = section_flags().get("--" + name.replace("_", "-"))
            option = section_option(section) if section else options().get(name) or flat_options().get(name)
            text = SourceText(Layer.ARGUMENT, name, [f"{name}={value!r}".replace("\n", " ")])
            if option is None or not (section or option.has_flag):
                text.lines = [name]
                suggestions = close(name, flat_options())
                label = Label(Span(text, 1, 1, 1, len(name) + 1), did_you_mean(suggestions))
                message = f"no such argument `{name}`"
                self.found.append(
                    Diagnostic(code="C103", message=message, labels=(label,), suggestions=tuple(suggestions))
                )
                continue
            span = Span(text, 1, len(name) + 2, 1, len(text.lines[0]) + 1)
            if option.is_secret:
                text.hide(span)
            node = json_node(value, span)
            if section is None or value is None:
                place(self.trees, option, node)
            elif known := section_node(section, node, name, self.found):
                place(self.trees, option, known)
