"""Quantised matrices of a checkpoint: their tensors are checked, and become one tensor with the name of the matrix.

Dtypes and shapes are checked here, from the headers; the values of scales when they are read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...input_file import open_file
from ...model.weight_methods import CheckpointMethod, WeightMethod
from ..errors import ModelFilesError
from .bounded_json import decode
from .stored import FLOAT_DTYPES, Packed, StoredTensor

_CODES = ("qweight", "weight_packed")  # ends of names that only quantised layers have
_CODE_DTYPES = ("I8", "U8", "F8_E4M3")  # of a `weight` that is quantised
_FLOATS, _EXPONENTS = tuple(FLOAT_DTYPES), ("U8", "F8_E8M0")
# Of activations, keys and values, which stay in the model's dtype: more exact than the checkpoint asks for.
_NOT_USED = (
    *("input_scale", "input_zero_point", "input_global_scale", "output_scale", "output_zero_point", "qscale_act"),
    *("k_scale", "v_scale", "q_scale", "kv_scale", "k_zero_point", "v_zero_point", "q_zero_point", "prob_scale"),
)
_BLOCKS, _SCALES = "_blocks", "_scales"  # of gpt-oss: all experts in one tensor
_OTHER_NAMES = {
    "torchao": {
        "_weight_qdata": "weight",
        "_weight_scale": "weight_scale",
        "_weight_zero_point": "weight_zero_point",
    },
    "quark": {"weight": "qweight", "weight_scale": "scales", "weight_zero_point": "qzeros"},
}
_MAX_STATE_BYTES = 4096


def unpacked(
    tensors: Mapping[str, StoredTensor], method: CheckpointMethod | None, dtype: str
) -> dict[str, StoredTensor]:
    """All tensors, each quantised matrix as one. Raises ModelFilesError, with the name of the tensor that is wrong.

    dtype: the model's, as `FLOAT_DTYPES` has it.
    """
    if method is None:
        return dict(tensors)
    tensors = _with_usual_names(tensors, method.name)
    found: dict[str, StoredTensor] = {}
    used: set[str] = set()
    stored_as = next(name for name, each in FLOAT_DTYPES.items() if each == dtype)
    for name, stored in tensors.items():
        layer, _, end = name.rpartition(".")
        if end in _CODES or (end == "weight" and stored.dtype in _CODE_DTYPES):
            parts = _Parts(tensors, layer, _of_layer(method, layer, stored, name))
            found[f"{layer}.weight"] = parts.matrix(stored_as)
            used |= {f"{layer}.{part}" for part in parts.used}
        elif name.endswith(_BLOCKS) and f"{name.removesuffix(_BLOCKS)}{_SCALES}" in tensors:
            module = name.removesuffix(_BLOCKS)
            own = _of_layer(method, module, stored, name)
            found |= _experts(module, stored, tensors[f"{module}{_SCALES}"], own, stored_as)
            used |= {name, f"{module}{_SCALES}"}
    rest = {
        name: stored
        for name, stored in tensors.items()
        if name not in used and name.rpartition(".")[2] not in _NOT_USED
    }
    if twice := next((name for name in rest if name in found), None):
        raise ModelFilesError(f"{rest[twice].file}: tensor `{twice}` is there quantised too", code="M306")
    return rest | found


def _with_usual_names(tensors: Mapping[str, StoredTensor], method: str) -> Mapping[str, StoredTensor]:
    """torchao names tensors after its own class's attributes; quark packs as AWQ does, under other names."""

    def usual(name: str) -> str:
        layer, _, end = name.rpartition(".")
        if method == "quark" and tensors.get(f"{layer}.weight", tensors[name]).dtype != "I32":
            return name
        return f"{layer}.{_OTHER_NAMES[method].get(end, end)}"

    return {usual(name): stored for name, stored in tensors.items()} if method in _OTHER_NAMES else tensors


def _of_layer(method: CheckpointMethod, layer: str, stored: StoredTensor, name: str) -> WeightMethod:
    own = method.of_layer(layer)
    if own is None:
        raise ModelFilesError(
            f"{stored.file}: tensor `{name}` is quantised, but the model's quantization_config says that `{layer}` is "
            "not",
            code="M306",
        )
    return own


class _Parts:
    """The tensors of one quantised matrix."""

    def __init__(self, tensors: Mapping[str, StoredTensor], layer: str, method: WeightMethod) -> None:
        self._tensors, self._layer, self._method = tensors, layer, method
        self.used: dict[str, StoredTensor] = {}

    def matrix(self, dtype: str) -> StoredTensor:
        outer: tuple[int, float] | None = None
        match self._method.kind:
            case "gptq":
                shape, block = self._gptq()
            case "awq":
                shape, block = self._awq()
            case "packed":
                shape, block = self._packed()
            case "integers":
                shape, block = self._integers()
            case "fp8":
                shape, block = self._fp8()
            case "mxfp4":
                shape, block = self._small_floats(_EXPONENTS)
            case "nvfp4":
                shape, block = self._small_floats(("F8_E4M3",))
                self._part(self._method.whole_scale, _FLOATS, (1,), ())
            case "bnb_int8":
                shape, block = self._bnb_int8()
            case "bnb_4bit":
                shape, block, outer = self._bnb_4bit()
        first = next(iter(self.used.values()))
        packed = Packed(self._method, self._layer, dict(self.used), shape, range(shape[0]), block, outer)
        return StoredTensor(first.file, dtype, shape, first.offset, packed=packed)

    def _gptq(self) -> tuple[tuple[int, int], tuple[int, int]]:
        bits = self._method.bits
        words, outputs = self._matrix("qweight", ("I32",))
        inputs = self._whole("qweight", words * 32, bits)
        block = self._block((outputs, inputs))
        groups = -(-inputs // block[1])
        self._part("scales", _FLOATS, (groups, outputs))
        self._part("qzeros", ("I32",), (groups, self._whole("qweight", outputs * bits, 32)))
        self._optional("g_idx", ("I32",), (inputs,))
        return (outputs, inputs), block

    def _awq(self) -> tuple[tuple[int, int], tuple[int, int]]:
        inputs, words = self._matrix("qweight", ("I32",))
        outputs = 8 * words
        block = self._block((outputs, inputs))
        groups = self._whole("qweight", inputs, block[1])
        self._part("scales", _FLOATS, (groups, outputs))
        self._part("qzeros", ("I32",), (groups, words))
        return (outputs, inputs), block

    def _packed(self) -> tuple[tuple[int, int], tuple[int, int]]:
        bits = self._method.bits
        outputs, words = self._matrix("weight_packed", ("I32",))
        inputs = self._whole("weight_packed", words * 32, bits)
        block = self._block((outputs, inputs))
        scales = self._scales("weight_scale", _FLOATS, (outputs, inputs), block)
        if not self._method.is_symmetric:
            self._part("weight_zero_point", ("I32",), (-(-scales[0] * bits // 32), scales[1]))
        self._optional("weight_g_idx", ("I32", "I64"), (inputs,))
        self._optional("weight_shape", ("I64", "I32"), (2,))
        return (outputs, inputs), block

    def _integers(self) -> tuple[tuple[int, int], tuple[int, int]]:
        shape = self._matrix("weight", ("I8",))
        block = self._block(shape, "weight_scale")
        self._scales("weight_scale", _FLOATS, shape, block)
        if not self._method.is_symmetric:
            self._scales("weight_zero_point", ("I8",), shape, block)
        else:
            self._optional("weight_zero_point", ("I8",), None)
        self._optional("weight_g_idx", ("I32", "I64"), (shape[1],))
        return shape, block

    def _fp8(self) -> tuple[tuple[int, int], tuple[int, int]]:
        shape = self._matrix("weight", ("F8_E4M3",))
        name = next((end for end in ("weight_scale_inv", "scale", "qscale_weight") if self._has(end)), "weight_scale")
        block = self._block(shape, name)
        self._scales(name, (*_FLOATS, *_EXPONENTS), shape, block)
        return shape, block

    def _small_floats(self, scale_dtypes: tuple[str, ...]) -> tuple[tuple[int, int], tuple[int, int]]:
        codes = self._method.codes
        outputs, half = self._matrix(codes, ("U8",))
        shape = outputs, 2 * half
        block = self._block(shape)
        self._whole(codes, shape[1], block[1])
        self._scales("weight_scale", scale_dtypes, shape, block)
        return shape, block

    def _bnb_int8(self) -> tuple[tuple[int, int], tuple[int, int]]:
        shape = self._matrix("weight", ("I8",))
        self._part("SCB", ("F32",), (shape[0],))
        if (form := self._optional("weight_format", ("U8",), None)) is not None:
            order = _first_bytes(form, 8)
            if any(order):
                raise self._wrong("weight_format", form, "names another order of elements than rows")
        return shape, (1, shape[1])

    def _bnb_4bit(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, float] | None]:
        codes = self._any("weight", ("U8",))
        kind = next((kind for kind in ("nf4", "fp4") if self._has(_state_of(kind))), "nf4")
        state = self._any(_state_of(kind), ("U8",))
        values = self._state(state, kind)
        shape, block = _sizes(values.get("shape")), values.get("blocksize")
        if len(shape) != 2 or type(block) is not int or not 1 <= block <= 1 << 16:
            raise self._wrong(_state_of(kind), state, "names no shape of a matrix and no size of blocks")
        count = math.prod(shape)
        if codes.num_elements != -(-count // 2):
            raise self._wrong("weight", codes, f"has {codes.num_elements} bytes; {list(shape)} needs {-(-count // 2)}")
        blocks = -(-count // block)
        self._part("weight.quant_map", ("F32",), (16,))
        if "nested_blocksize" not in values:
            self._part("weight.absmax", ("F32",), (blocks,))
            return shape, (1, block), None
        size, offset = values.get("nested_blocksize"), values.get("nested_offset", 0.0)
        if type(size) is not int or not 1 <= size <= 1 << 20 or not isinstance(offset, float | int):
            raise self._wrong(_state_of(kind), state, "names no size of the blocks of scales")
        self._part("weight.absmax", ("U8",), (blocks,))
        self._part("weight.nested_absmax", ("F32",), (-(-blocks // size),))
        self._part("weight.nested_quant_map", ("F32",), (256,))
        return shape, (1, block), (size, float(offset))

    def _state(self, state: StoredTensor, kind: str) -> dict[str, Any]:
        if state.num_bytes <= _MAX_STATE_BYTES:
            try:
                values = decode(_first_bytes(state, _MAX_STATE_BYTES))
            except (ValueError, json.JSONDecodeError):
                values = None
            if isinstance(values, dict):
                return values
        raise self._wrong(_state_of(kind), state, "is not a JSON object")

    def _block(self, shape: tuple[int, int], scales: str = "") -> tuple[int, int]:
        """Outputs and inputs of a block: 0 in the method means all. Without a block there, the scales decide."""
        block = self._method.block
        if block is None:
            stored = self._tensors.get(f"{self._layer}.{scales}")
            block = (0, 0) if stored is None or stored.num_elements == 1 else (1, 0)
        return block[0] or max(1, shape[0]), block[1] or max(1, shape[1])

    def _scales(
        self, end: str, dtypes: tuple[str, ...], shape: tuple[int, int], block: tuple[int, int]
    ) -> tuple[int, int]:
        """Returns the shape of the scales, which are stored with or without dimensions of size 1."""
        grid = -(-shape[0] // block[0]), -(-shape[1] // block[1])
        if block[0] == 1 and shape[1] % block[1]:
            raise self._wrong(
                end, self._any(end, dtypes), f"is for groups of {block[1]}, {shape[1]} inputs are no multiple"
            )
        stored = self._any(end, dtypes)
        if [size for size in stored.shape if size != 1] != [size for size in grid if size != 1]:
            raise self._wrong(end, stored, f"has shape {list(stored.shape)}; {list(shape)} needs {list(grid)}")
        return grid

    def _has(self, end: str) -> bool:
        return f"{self._layer}.{end}" in self._tensors

    def _any(self, end: str, dtypes: tuple[str, ...]) -> StoredTensor:
        """A part in one of these dtypes."""
        name = f"{self._layer}.{end}"
        if name not in self._tensors:
            first = next(iter(self.used.values()), None)
            where = f"{first.file.parent}: " if first is not None else ""
            raise ModelFilesError(
                f"{where}tensor `{name}` is not in any of its weight files; {self._method.shown} needs it", code="M302"
            )
        stored = self._tensors[name]
        if stored.dtype not in dtypes or stored.strides is not None:
            raise self._wrong(
                end, stored, f"has dtype {stored.dtype}; {self._method.shown} needs {' or '.join(dtypes)}"
            )
        self.used[end] = stored
        return stored

    def _matrix(self, end: str, dtypes: tuple[str, ...]) -> tuple[int, int]:
        stored = self._any(end, dtypes)
        if len(stored.shape) != 2 or not all(stored.shape):
            raise self._wrong(end, stored, f"has shape {list(stored.shape)}; it must be a matrix")
        return stored.shape[0], stored.shape[1]

    def _part(self, end: str, dtypes: tuple[str, ...], *shapes: tuple[int, ...]) -> None:
        stored = self._any(end, dtypes)
        if stored.shape not in shapes:
            raise self._wrong(
                end, stored, f"has shape {list(stored.shape)}; {self._method.shown} needs {list(shapes[0])}"
            )

    def _optional(self, end: str, dtypes: tuple[str, ...], shape: tuple[int, ...] | None) -> StoredTensor | None:
        if not self._has(end):
            return None
        if shape is not None:
            self._part(end, dtypes, shape)
        return self._any(end, dtypes)

    def _whole(self, end: str, number: int, divisor: int) -> int:
        if number % divisor:
            stored = self._tensors[f"{self._layer}.{end}"]
            raise self._wrong(end, stored, f"has shape {list(stored.shape)}, which {self._method.shown} cannot divide")
        return number // divisor

    def _wrong(self, end: str, stored: StoredTensor, what: str) -> ModelFilesError:
        return ModelFilesError(f"{stored.file}: tensor `{self._layer}.{end}` {what}", code="M306")


def _state_of(kind: str) -> str:
    return f"weight.quant_state.bitsandbytes__{kind}"


def _sizes(value: Any) -> tuple[int, int] | tuple[()]:
    is_shape = isinstance(value, list) and len(value) == 2 and all(type(size) is int and size > 0 for size in value)
    return (value[0], value[1]) if is_shape else ()


def _first_bytes(stored: StoredTensor, at_most: int) -> bytes:
    """First bytes of a small tensor."""
    try:
        with open_file(stored.file) as stream:
            stream.seek(stored.offset)
            return stream.read(min(at_most, stored.num_bytes))
    except OSError as error:
        raise ModelFilesError.unreadable(stored.file, error) from error


def _experts(
    module: str, blocks: StoredTensor, scales: StoredTensor, method: WeightMethod, dtype: str
) -> dict[str, StoredTensor]:
    """Split [experts, outputs, inputs / 32, 16], two codes a byte, into matrices. Rows of gates and ups alternate."""
    if blocks.dtype != "U8" or len(blocks.shape) != 4 or blocks.shape[3] != 16 or not all(blocks.shape):
        raise ModelFilesError(
            f"{blocks.file}: tensor `{module}{_BLOCKS}` is {blocks.dtype} of shape {list(blocks.shape)}; mxfp4 needs "
            "U8 of [experts, outputs, inputs / 32, 16]",
            code="M306",
        )
    count, outputs, groups, _ = blocks.shape
    if scales.dtype not in _EXPONENTS or scales.shape != (count, outputs, groups):
        raise ModelFilesError(
            f"{scales.file}: tensor `{module}{_SCALES}` is {scales.dtype} of shape {list(scales.shape)}; mxfp4 needs "
            f"U8 of {[count, outputs, groups]}",
            code="M306",
        )
    place, _, name = module.rpartition(".")
    names = ("gate_proj", "up_proj") if name == "gate_up_proj" else (name,)
    found: dict[str, StoredTensor] = {}
    for expert in range(count):
        parts = {
            "weight_packed": replace(
                blocks, shape=(outputs, groups * 16), offset=blocks.offset + expert * outputs * groups * 16
            ),
            "weight_scale": replace(scales, shape=(outputs, groups), offset=scales.offset + expert * outputs * groups),
        }
        for index, own in enumerate(names):
            rows = range(index, outputs, len(names))
            packed = Packed(method, module, parts, (outputs, 32 * groups), rows, (1, 32))
            found[f"{place}.{expert}.{own}.weight"] = StoredTensor(
                blocks.file, dtype, (len(rows), 32 * groups), parts["weight_packed"].offset, packed=packed
            )
    return found
