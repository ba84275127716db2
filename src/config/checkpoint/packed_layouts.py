"""How each quantisation method stores a matrix: which tensors there are, and what follows from their shapes.

What comes in is the tensors of one matrix; what goes out is its shape and the block of elements that share a scale.
GPTQ with 4 bits in groups of 128 stores a matrix of 11008 outputs and 4096 inputs as

    qweight int32 [512, 11008]   8 codes of a column in a word     ->  Layout(shape=(11008, 4096), block=(1, 128))
    scales  float [32, 11008]    qzeros int32 [32, 1376]

Only headers are read here, except for the descriptions that bitsandbytes stores as JSON in tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from ...input_file import open_file
from ..errors import ModelFilesError
from .bounded_json import decode
from .packed_parts import EXPONENTS, FLOATS, MatrixShape, Parts, ceil_div
from .stored import StoredTensor

_STATES = ("weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4")  # ends of names
_MAX_STATE_BYTES = 4096
_MAX_BLOCK, _MAX_OUTER_BLOCK = 1 << 16, 1 << 20


@dataclass(frozen=True, slots=True)
class Layout:
    """What the tensors of a matrix say about it. The fields are those of Packed."""

    shape: MatrixShape
    block: MatrixShape
    outer: tuple[int, float] | None = None


def layout_of(parts: Parts) -> Layout:
    """Check all tensors of a matrix. Raises ModelFilesError."""
    match parts.method.kind:
        case "gptq":
            return _gptq(parts)
        case "awq":
            return _awq(parts)
        case "packed":
            return _packed(parts)
        case "integers":
            return _integers(parts)
        case "fp8":
            return _fp8(parts)
        case "mxfp4":
            return _small_floats(parts, EXPONENTS)
        case "nvfp4":
            layout = _small_floats(parts, ("F8_E4M3",))
            parts.check(parts.method.whole_scale, FLOATS, (1,), ())
            return layout
        case "bnb_int8":
            return _bnb_int8(parts)
        case "bnb_4bit":
            return _bnb_4bit(parts)


def _gptq(parts: Parts) -> Layout:
    bits = parts.method.bits
    words, outputs = parts.matrix("qweight", ("I32",))
    inputs = parts.divide("qweight", words * 32, bits)
    block = parts.block((outputs, inputs))
    groups = ceil_div(inputs, block[1])
    parts.check("scales", FLOATS, (groups, outputs))
    parts.check("qzeros", ("I32",), (groups, parts.divide("qweight", outputs * bits, 32)))
    parts.optional("g_idx", ("I32",), (inputs,))
    return Layout((outputs, inputs), block)


def _awq(parts: Parts) -> Layout:
    inputs, words = parts.matrix("qweight", ("I32",))
    outputs = 8 * words
    block = parts.block((outputs, inputs))
    groups = parts.divide("qweight", inputs, block[1])
    parts.check("scales", FLOATS, (groups, outputs))
    parts.check("qzeros", ("I32",), (groups, words))
    return Layout((outputs, inputs), block)


def _packed(parts: Parts) -> Layout:
    bits = parts.method.bits
    outputs, words = parts.matrix("weight_packed", ("I32",))
    inputs = parts.divide("weight_packed", words * 32, bits)
    shape = outputs, inputs
    block = parts.block(shape)
    scales = parts.check_scales("weight_scale", FLOATS, shape, block)
    if not parts.method.is_symmetric:
        parts.check("weight_zero_point", ("I32",), (ceil_div(scales[0] * bits, 32), scales[1]))
    parts.optional("weight_g_idx", ("I32", "I64"), (inputs,))
    parts.optional("weight_shape", ("I64", "I32"), (2,))
    return Layout(shape, block)


def _integers(parts: Parts) -> Layout:
    shape = parts.matrix("weight", ("I8",))
    block = parts.block(shape, "weight_scale")
    parts.check_scales("weight_scale", FLOATS, shape, block)
    if parts.method.is_symmetric:
        parts.optional("weight_zero_point", ("I8",), None)
    else:
        parts.check_scales("weight_zero_point", ("I8",), shape, block)
    parts.optional("weight_g_idx", ("I32", "I64"), (shape[1],))
    return Layout(shape, block)


def _fp8(parts: Parts) -> Layout:
    shape = parts.matrix("weight", ("F8_E4M3",))
    other_names = ("weight_scale_inv", "scale", "qscale_weight")
    scale = next((name for name in other_names if parts.has(name)), "weight_scale")
    block = parts.block(shape, scale)
    parts.check_scales(scale, (*FLOATS, *EXPONENTS), shape, block)
    return Layout(shape, block)


def _small_floats(parts: Parts, scale_dtypes: tuple[str, ...]) -> Layout:
    """mxfp4 and nvfp4: two codes a byte."""
    codes = parts.method.codes
    outputs, num_bytes = parts.matrix(codes, ("U8", "I8"))
    parts.used[codes] = replace(parts.used[codes], dtype="U8")
    shape = outputs, 2 * num_bytes
    block = parts.block(shape)
    parts.divide(codes, shape[1], block[1])
    parts.check_scales("weight_scale", scale_dtypes, shape, block)
    return Layout(shape, block)


def _bnb_int8(parts: Parts) -> Layout:
    shape = parts.matrix("weight", ("I8",))
    parts.check("SCB", ("F32",), (shape[0],))
    order = parts.optional("weight_format", ("U8",), None)
    if order is not None and any(_first_bytes(order, 8)):
        raise parts.error("weight_format", order, "names another order of elements than rows")
    return Layout(shape, (1, shape[1]))


def _bnb_4bit(parts: Parts) -> Layout:
    codes = parts.stored("weight", ("U8",))
    name = next((name for name in _STATES if parts.has(name)), _STATES[0])
    state = parts.stored(name, ("U8",))
    values = _read_state(parts, name, state)
    shape, block = _matrix_shape(values.get("shape")), values.get("blocksize")
    if shape is None or not _is_size(block, _MAX_BLOCK):
        raise parts.error(name, state, "names no shape of a matrix and no size of blocks")
    num_elements = math.prod(shape)
    num_bytes = ceil_div(num_elements, 2)
    if codes.num_elements != num_bytes:
        raise parts.error("weight", codes, f"has {codes.num_elements} bytes; {list(shape)} needs {num_bytes}")
    num_blocks = ceil_div(num_elements, block)
    parts.check("weight.quant_map", ("F32",), (16,))
    if "nested_blocksize" not in values:
        parts.check("weight.absmax", ("F32",), (num_blocks,))
        return Layout(shape, (1, block))
    outer_block, offset = values.get("nested_blocksize"), values.get("nested_offset", 0.0)
    if not _is_size(outer_block, _MAX_OUTER_BLOCK) or not isinstance(offset, float | int):
        raise parts.error(name, state, "names no size of the blocks of scales")
    parts.check("weight.absmax", ("U8",), (num_blocks,))
    parts.check("weight.nested_absmax", ("F32",), (ceil_div(num_blocks, outer_block),))
    parts.check("weight.nested_quant_map", ("F32",), (256,))
    return Layout(shape, (1, block), (outer_block, float(offset)))


def _read_state(parts: Parts, name: str, state: StoredTensor) -> dict[str, Any]:
    """The description of a matrix, which bitsandbytes stores as the bytes of a JSON object."""
    values = None
    if state.num_bytes <= _MAX_STATE_BYTES:
        try:
            values = decode(_first_bytes(state, _MAX_STATE_BYTES))
        except ValueError:
            values = None
    if not isinstance(values, dict):
        raise parts.error(name, state, "is not a JSON object")
    return values


def _matrix_shape(value: Any) -> MatrixShape | None:
    is_shape = isinstance(value, list) and len(value) == 2 and all(type(size) is int and size > 0 for size in value)
    return (value[0], value[1]) if is_shape else None


def _is_size(value: Any, maximum: int) -> TypeGuard[int]:
    return type(value) is int and 1 <= value <= maximum


def _first_bytes(stored: StoredTensor, at_most: int) -> bytes:
    """First bytes of a small tensor."""
    try:
        with open_file(stored.file) as stream:
            stream.seek(stored.offset)
            return stream.read(min(at_most, stored.num_bytes))
    except OSError as error:
        raise ModelFilesError.unreadable(stored.file, error) from error
