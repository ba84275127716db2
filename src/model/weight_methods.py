"""How a quantised checkpoint stores the matrices of its linear layers, and which matrices.

config/checkpoint/packed.py compares it with the tensors in files; engine/kernels/dequantise_packed.py computes values.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

from .record import Record

# gptq, awq: codes of several elements in 32-bit words, with scales and zero points. packed: the same of
# compressed-tensors. integers: int8. fp8: float8. mxfp4, nvfp4: 4-bit floats in blocks. bnb_4bit, bnb_int8: of
# bitsandbytes
Kind = Literal["gptq", "awq", "packed", "integers", "fp8", "mxfp4", "nvfp4", "bnb_4bit", "bnb_int8"]
_NAMES = {"packed": "packed int", "integers": "int", "bnb_4bit": "bitsandbytes ", "bnb_int8": "bitsandbytes int"}


class WeightMethod(Record):
    """block: outputs and inputs that share a scale, 0 for all of them; None: as the shape of the scales implies."""

    kind: Kind
    bits: int
    block: tuple[int, int] | None = None
    is_symmetric: bool = True  # there are no zero points
    adds_one: bool = False  # gptq: zero points are stored less one
    rounds_rows: bool = False  # integers: each row of inputs is rounded to int8 too, with one scale
    codes: str = "weight_packed"  # mxfp4, nvfp4: the end of the name of the tensor of codes

    @property
    def whole_scale(self) -> str:
        """nvfp4: the end of the name of the scale of the whole matrix; compressed-tensors stores its reciprocal."""
        return "weight_global_scale" if self.divides_scale else "weight_scale_2"

    @property
    def divides_scale(self) -> bool:
        return self.codes == "weight_packed"

    @property
    def shown(self) -> str:
        """Text for the tables of plan and start."""
        match self.kind:
            case "gptq" | "awq":
                name = f"{self.kind} {self.bits}-bit"
            case "fp8" | "mxfp4" | "nvfp4":
                name = self.kind
            case "bnb_4bit":
                name = "bitsandbytes 4-bit"
            case kind:
                name = f"{_NAMES[kind]}{self.bits}"
        if self.kind in ("mxfp4", "nvfp4") or self.block is None:
            return name
        outputs, inputs = self.block
        if self.rounds_rows:
            return f"{name}, a scale per output; inputs in int8, a scale per token"
        if outputs > 1:
            return f"{name} in blocks of {outputs} x {inputs}"
        if outputs == 0:
            return f"{name}, a scale per matrix"
        return f"{name}, a scale per output" if not inputs else f"{name} in groups of {inputs}"


class Rule(Record):
    """Layers whose name a pattern matches. method: None if they are not quantised.

    kind: name is the name of a layer or of a module that it is in, also without the beginning; match is a regular
    expression for the beginning of the name; all is every layer.
    """

    kind: Literal["name", "match", "all"]
    pattern: str = ""
    method: WeightMethod | None = None

    def is_of(self, layer: str) -> bool:
        match self.kind:
            case "all":
                return True
            case "name":
                return f".{self.pattern}." in f".{layer}."
            case _:
                return _compiled(self.pattern).match(layer) is not None


class CheckpointMethod(Record):
    """name: of the method in config.json. rules: the first that matches a layer counts.

    problem: why the engine does not read it; empty if it does.
    """

    name: str
    bits: int  # of most weights
    rules: tuple[Rule, ...] = ()
    problem: str = ""

    def of_layer(self, name: str) -> WeightMethod | None:
        """name: of the layer in the files, without `.weight`. None: it is not quantised."""
        return next((rule.method for rule in self.rules if rule.is_of(name)), None)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def pattern_problem(pattern: str) -> str:
    """Why a regular expression of a model's file is not used; empty if it is.

    A repeated group, or many repetitions, can take longer than anyone waits.
    """
    if len(pattern) > 500 or len(re.findall(r"[*+{]", pattern)) > 4 or re.search(r"\)[*+{]", pattern):
        return "is too complex"
    try:
        _compiled(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"is not a regular expression: {error}"
    return ""
