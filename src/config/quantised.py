"""Weights in fewer bits: which schemes there are, and how many bytes a quantised matrix takes. No torch: a plan asks.

int8 has one scale per output; int4 has 16 levels and one scale per 64 numbers of an output. A scheme says which of them
the layers are held in, and which the output layer: nothing behind that evens its errors out, and a tied one is the
embedding too.
"""

from __future__ import annotations

from typing import NamedTuple


class Scheme(NamedTuple):
    layers: str  # int8 or int4
    output: str


SCHEMES = {"int8": Scheme("int8", "int8"), "int4": Scheme("int4", "int8"), "int4_pure": Scheme("int4", "int4")}
PANEL_WIDTH = 16  # outputs that lie together; the last panel is filled up
GROUP = 64  # numbers that share a scale of int4
CODES_DEEP = 8  # codes of int4 in a word


def quantised_bytes(held: str, out_features: int, in_features: int) -> int:
    """Bytes of one matrix held in int8, int4 or TWELVE_BITS: codes and scales, or no exceptions."""
    if held == TWELVE_BITS:
        is_packed = in_features % TWELVE_BITS_STEP == 0
        return twelve_bit_bytes(out_features, in_features) if is_packed else 2 * out_features * in_features
    outputs = -(-out_features // PANEL_WIDTH) * PANEL_WIDTH
    if held == "int8":
        return outputs * (in_features + 4)
    return outputs * (-(-in_features // CODES_DEEP) * 4 + -(-in_features // GROUP) * 2)


TWELVE_BITS_STEP = 32  # in_features are a multiple
TWELVE_BITS = "12 bits"  # no scheme to be asked for: bfloat16 itself, exactly
PANEL_HEAD = 64  # bytes before the numbers of a panel
MAX_EXCEPTIONS = 1 / 200  # of a matrix's numbers may have exponents that 12 bits do not tell; else it stays as it is


def twelve_bit_bytes(out_features: int, in_features: int, num_exceptions: int = 0) -> int:
    """Bytes of a bfloat16 matrix in 12 bits (cpu/twelve_bits.h). A panel's list of exceptions has an end of its own."""
    panels = -(-out_features // PANEL_WIDTH)
    return panels * (PANEL_HEAD + PANEL_WIDTH * in_features * 3 // 2) + 8 * (num_exceptions + panels)


def held_in(dtype: str, quantization: str | None, keeps_twelve_bits: bool) -> str | None:
    """How the linear layers' weights are held: a scheme, TWELVE_BITS, or None for plain numbers of `dtype`."""
    if quantization is None and dtype == "bfloat16" and keeps_twelve_bits:
        return TWELVE_BITS
    return quantization


def shown(scheme: str) -> str:
    """What the start-up table says of the linear layers."""
    layers, output = (f"int4 by {GROUP}" if held == "int4" else held for held in SCHEMES[scheme])
    return f"weights in {layers}" + (f", the output layer in {output}" if output != layers else "")
