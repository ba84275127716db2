"""Quantised weights: the schemes, and the bytes of a quantised matrix. Does not import torch: a plan needs it too.

int8 has one scale per output; int4 has 16 levels and one scale per 64 elements of an output. A scheme defines the
formats of the layers and of the output layer. The output layer can have more bits, since no later layer reduces its
errors, and since a tied output layer is the embedding too.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Scheme(NamedTuple):
    layers: str  # int8 or int4
    output: str


SCHEMES = {"int8": Scheme("int8", "int8"), "int4": Scheme("int4", "int8"), "int4_pure": Scheme("int4", "int4")}


def scheme_of(quantization: str | None) -> str | None:
    """The scheme that `model.quantization` selects; None for the method of a quantised checkpoint."""
    return quantization if quantization in SCHEMES else None


OWN_CODES = "codes"  # not a scheme that a user selects: those of a quantised checkpoint, as they are


class Accuracy(NamedTuple):
    """Accuracy over the held-out text of builtin:tiny, measured by benchmarks/quantised_accuracy.py."""

    largest_change: float  # of a logit, from that of float32
    perplexity: float  # of the answers


BFLOAT16_ACCURACY = Accuracy(0.18, 1.1948)
_ACCURACY = {
    ("int8", None): Accuracy(0.24, 1.1951),
    ("int8", "int8"): Accuracy(0.42, 1.1952),
    ("int4", None): Accuracy(2.18, 1.1928),
    ("int4", "int8"): Accuracy(2.23, 1.1933),
    ("int4_pure", None): Accuracy(2.87, 1.1940),
    ("int4_pure", "int8"): Accuracy(2.87, 1.1943),
}


def accuracy(scheme: str, activations: str | None) -> Accuracy:
    """activations: `model.activation_quantization`."""
    return _ACCURACY[scheme, activations]


PANEL_WIDTH = 16  # outputs that are stored together; the last panel is padded
GROUP = 64  # elements that share a scale of int4
CODES_DEEP = 8  # codes of int4 in a 32-bit word


def quantised_bytes(held: str, out_features: int, in_features: int) -> int:
    """Bytes of one matrix in int8, int4 or TWELVE_BITS: codes and scales; TWELVE_BITS without exceptions."""
    if held == TWELVE_BITS:
        is_packed = in_features % TWELVE_BITS_STEP == 0
        return twelve_bit_bytes(out_features, in_features) if is_packed else 2 * out_features * in_features
    outputs = -(-out_features // PANEL_WIDTH) * PANEL_WIDTH
    if held == "int8":
        return outputs * (in_features + 4)
    return outputs * (-(-in_features // CODES_DEEP) * 4 + -(-in_features // GROUP) * 2)


TWELVE_BITS_STEP = 32  # in_features must be a multiple
TWELVE_BITS = "12 bits"  # not a scheme that a user selects: bfloat16 compressed without loss
PANEL_HEAD = 64  # bytes before the elements of a panel
MAX_EXCEPTIONS = 1 / 200  # share of a matrix's elements that 12 bits cannot represent; above, it is not compressed


def twelve_bit_bytes(out_features: int, in_features: int, num_exceptions: int = 0) -> int:
    """Bytes of a bfloat16 matrix in 12 bits (cpu/twelve_bits.h). Each panel has one entry more than exceptions."""
    panels = -(-out_features // PANEL_WIDTH)
    return panels * (PANEL_HEAD + PANEL_WIDTH * in_features * 3 // 2) + 8 * (num_exceptions + panels)


class GroupLayout(NamedTuple):
    """A matrix with the codes and scales of its checkpoint, in the panels of CPUs (cpu/grouped.h) or in rows.

    bits: of a code: 4, 6 or 8. group: inputs that share a scale. scale: bytes of one. outer: bytes of a factor of
    scales, 0 without; outer_group: inputs that share it. offset: what is subtracted, if anything.
    """

    bits: int
    group: int
    scale: int
    outer: int = 0
    outer_group: int = 0
    offset: Literal["", "zeros", "minima"] = ""

    def block(self, in_features: int) -> int:
        """Inputs of a block, the part of a panel that has everything about them."""
        if self.outer:
            return self.outer_group
        return self.group * (2 if in_features // self.group % 2 == 0 else 1)  # two rows of 2-byte scales are a line

    def problem(self, in_features: int) -> str:
        """Why the kernels do not take it; empty if they do."""
        step = GROUP_STEPS[self.bits]
        if self.group % step:
            return f"groups of {self.group} inputs are not a multiple of {step}"
        if in_features % GROUPED_STEP or in_features % self.block(in_features):
            return f"{in_features} inputs are not a multiple of {max(GROUPED_STEP, self.block(in_features))}"
        return ""

    def num_bytes(self, out_features: int, in_features: int) -> int:
        """Bytes of a matrix in panels."""
        block = self.block(in_features)
        offset = {"": 0, "zeros": 2, "minima": self.scale}[self.offset]
        outers = self.outer * (2 if self.offset == "minima" else 1)
        numbers = PANEL_WIDTH * (block // self.group * (self.scale + offset) + outers)
        of_block = -(-(PANEL_WIDTH * block * self.bits // 8 + numbers) // _LINE) * _LINE
        return -(-out_features // PANEL_WIDTH) * (in_features // block) * of_block

    def row_bytes(self, out_features: int, in_features: int) -> int:
        """Bytes of a matrix in rows of packed codes, the layout of GPUs (engine/kernels/packed_codes.py)."""
        outers = in_features // self.outer_group * self.outer if self.outer else 0
        numbers = in_features // self.group * self.scale + outers
        offsets = {"": 0, "zeros": in_features // self.group * 2, "minima": numbers}[self.offset]
        return out_features * (in_features * self.bits // 8 + numbers + offsets)


EXPERT_STEP = 64  # the width inside an expert is padded to a multiple
GROUPED_STEP = 32  # in_features must be a multiple
GROUP_STEPS = {4: 8, 6: 16, 8: 4}  # bits of a code -> codes that are stored together
_LINE = 64  # bytes


def held_in(dtype: str, quantization: str | None, keeps_twelve_bits: bool) -> str | None:
    """The format of the linear layers' weights: a scheme, TWELVE_BITS, or None for elements of `dtype`."""
    quantization = scheme_of(quantization)
    if quantization is None and dtype == "bfloat16" and keeps_twelve_bits:
        return TWELVE_BITS
    return quantization


def shown(scheme: str, activations: str | None = None) -> str:
    """The description of a scheme in the start-up table. activations: `model.activation_quantization`."""
    if scheme == OWN_CODES:
        return "weights in the checkpoint's own codes"
    layers, output = (f"int4 by {GROUP}" if held == "int4" else held for held in SCHEMES[scheme])
    weights = f"weights in {layers}" + (f", the output layer in {output}" if output != layers else "")
    return weights + (f", multiplied as integers by activations in {activations}" if activations else "")
