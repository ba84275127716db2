"""The text that `engine bench spec` uses without a file: documentation of options, which is written in another form.

It has what such work has: half of each line occurred before, and half did not.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ... import builtin
from ...config.schema.options import options_of
from ...text.tokenizer import Tokenizer

_SECTION, _NUM_OPTIONS = "scheduler", 10


class Sample(NamedTuple):
    prompt: str
    answer: str


def sample_text() -> Sample:
    chosen = [option for option in options_of(_SECTION) if option.status == "effective"][:_NUM_OPTIONS]
    rows = [f"| `{option.name}` | {option.default} | {option.description} |" for option in chosen]
    asked = f"Write the section `{_SECTION}` of a deployment with all of these options, each after its description."
    prompt = "\n".join([asked, "", "| option | default | meaning |", "|---|---|---|", *rows, "", ""])
    lines = [f"  # {option.description}\n  {option.name}: {option.default}" for option in chosen]
    return Sample(prompt, "\n".join([f"{_SECTION}:", *lines, ""]))


def tokenizer_of_sample() -> Tokenizer:
    """The tokenizer of builtin:tiny, for a model without one. Its ids are in the vocabulary of most models."""
    return Tokenizer.load(Path(str(builtin.__file__)).parent / "tiny")
