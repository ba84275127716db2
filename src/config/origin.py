"""Origin of a value: the layer, and the place in it."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict


class Layer(StrEnum):
    """Layers of a deployment, weakest first."""

    DEFAULT = "default"  # the field's own declaration
    MODEL = "model"  # the model's own files, or model facts; only for what is `auto` or unset
    RULE = "rule"  # what follows from the machine and from other values; only for `auto`
    PRESET = "preset"
    FILE = "file"
    ENVIRONMENT = "environment"
    ARGUMENT = "argument"  # a keyword argument in Python
    COMMAND_LINE = "command line"


class Origin(BaseModel):
    """One place. `name` is the file, variable, flag, preset, model file or rule; line and column count from 1."""

    model_config = ConfigDict(frozen=True)

    layer: Layer
    name: str = ""
    line: int | None = None
    column: int | None = None
    width: int = 1  # columns that the value takes
    reason: str = ""  # for what was decided, not written

    def __str__(self) -> str:
        if self.layer is Layer.DEFAULT:
            return "default"
        if self.layer is Layer.FILE:
            return f"{self.name}:{self.line}:{self.column}" if self.line is not None else self.name
        if self.layer in (Layer.MODEL, Layer.RULE):
            return f"auto, {self.name}: {self.reason}"
        return f"{self.layer.value} {self.name}" + (f": {self.reason}" if self.reason else "")


DEFAULT = Origin(layer=Layer.DEFAULT)


class Overridden(BaseModel):
    """A value that a stronger layer replaced, as it is shown: secrets hidden."""

    model_config = ConfigDict(frozen=True)

    value: Any
    origin: Origin
