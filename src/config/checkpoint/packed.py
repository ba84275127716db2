"""Quantised matrices of a checkpoint: the tensors of each become one tensor with the name of the matrix.

What comes in is all tensors of the files, by name; what goes out is the tensors that a model asks for:

    up.qweight, up.scales, up.qzeros, norm.weight  ->  up.weight (packed), norm.weight

Dtypes and shapes are checked here, from the headers (packed_layouts.py); the values of scales when they are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ...model.weight_methods import CheckpointMethod, WeightMethod
from ..errors import ModelFilesError
from .packed_layouts import layout_of
from .packed_parts import EXPONENTS, Parts
from .stored import FLOAT_DTYPES, Packed, StoredTensor

_CODES = ("qweight", "weight_packed")  # ends of names that only quantised layers have
_CODE_DTYPES = ("I8", "U8", "F8_E4M3")  # of a `weight` that is quantised
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
    "fp8": {"scale": "weight_scale"},
    "quark": {"weight": "qweight", "weight_scale": "scales", "weight_zero_point": "qzeros"},
}


def unpacked(
    tensors: Mapping[str, StoredTensor], method: CheckpointMethod | None, dtype: str
) -> dict[str, StoredTensor]:
    """All tensors, each quantised matrix as one. Raises ModelFilesError, with the name of the tensor that is wrong.

    dtype: the model's, as `FLOAT_DTYPES` has it.
    """
    if method is None:
        return dict(tensors)
    tensors = _with_usual_names(tensors, method.name)
    matrices: dict[str, StoredTensor] = {}
    used: set[str] = set()  # names of tensors that are parts of matrices
    stored_as = next(name for name, each in FLOAT_DTYPES.items() if each == dtype)
    for name, stored in tensors.items():
        layer, _, end = name.rpartition(".")
        module = name.removesuffix(_BLOCKS)
        if end in _CODES or (end == "weight" and stored.dtype in _CODE_DTYPES):
            parts = Parts(tensors, layer, _method_of(method, layer, stored, name))
            matrices[f"{layer}.weight"] = _matrix(parts, stored_as)
            used |= {f"{layer}.{part}" for part in parts.used}
        elif module != name and module + _SCALES in tensors:
            own_method = _method_of(method, module, stored, name)
            matrices.update(_experts(module, stored, tensors[module + _SCALES], own_method, stored_as))
            used |= {name, module + _SCALES}
    used |= {name for name in tensors if name.rpartition(".")[2] in _NOT_USED}
    rest = {name: stored for name, stored in tensors.items() if name not in used}
    for name, stored in rest.items():
        if name in matrices:
            raise ModelFilesError(f"{stored.file}: tensor `{name}` is there quantised too", code="M306")
    return rest | matrices


def _with_usual_names(tensors: Mapping[str, StoredTensor], method: str) -> Mapping[str, StoredTensor]:
    """torchao names tensors after its own class's attributes; quark packs as AWQ does, under other names; so do some
    files in fp8."""
    if method not in _OTHER_NAMES:
        return tensors

    def usual(name: str) -> str:
        layer, _, end = name.rpartition(".")
        codes = tensors.get(f"{layer}.weight", tensors[name]).dtype
        if (method == "quark" and codes != "I32") or (method == "fp8" and codes not in _CODE_DTYPES):
            return name
        return f"{layer}.{_OTHER_NAMES[method].get(end, end)}"

    return {usual(name): stored for name, stored in tensors.items()}


def _method_of(method: CheckpointMethod, layer: str, stored: StoredTensor, name: str) -> WeightMethod:
    own = method.of_layer(layer)
    if own is None:
        raise ModelFilesError(
            f"{stored.file}: tensor `{name}` is quantised, but the model's quantization_config says that `{layer}` is "
            "not",
            code="M306",
        )
    return own


def _matrix(parts: Parts, dtype: str) -> StoredTensor:
    layout = layout_of(parts)
    first = next(iter(parts.used.values()))
    packed = Packed(
        parts.method,
        parts.layer,
        dict(parts.used),
        layout.shape,
        rows=range(layout.shape[0]),
        block=layout.block,
        outer=layout.outer,
    )
    return StoredTensor(first.file, dtype, layout.shape, first.offset, packed=packed)


def _experts(
    module: str, blocks: StoredTensor, scales: StoredTensor, method: WeightMethod, dtype: str
) -> Iterator[tuple[str, StoredTensor]]:
    """The matrices of each expert of gpt-oss, whose gates and ups are alternating rows of one matrix.

    blocks: [experts, outputs, inputs / 32, 16], two codes a byte. scales: [experts, outputs, inputs / 32].
    """
    _check_experts(module, blocks, scales)
    num_experts, outputs, groups, _ = blocks.shape
    inputs = 32 * groups
    place, _, name = module.rpartition(".")
    names = ("gate_proj", "up_proj") if name == "gate_up_proj" else (name,)
    for expert in range(num_experts):
        codes_at = blocks.offset + expert * outputs * groups * 16
        scales_at = scales.offset + expert * outputs * groups
        parts = {
            "weight_packed": replace(blocks, shape=(outputs, groups * 16), offset=codes_at),
            "weight_scale": replace(scales, shape=(outputs, groups), offset=scales_at),
        }
        for index, own_name in enumerate(names):
            rows = range(index, outputs, len(names))
            packed = Packed(method, module, parts, (outputs, inputs), rows, block=(1, 32))
            matrix = StoredTensor(blocks.file, dtype, (len(rows), inputs), codes_at, packed=packed)
            yield f"{place}.{expert}.{own_name}.weight", matrix


def _check_experts(module: str, blocks: StoredTensor, scales: StoredTensor) -> None:
    if blocks.dtype != "U8" or len(blocks.shape) != 4 or blocks.shape[3] != 16 or not all(blocks.shape):
        raise ModelFilesError(
            f"{blocks.file}: tensor `{module}{_BLOCKS}` is {blocks.dtype} of shape {list(blocks.shape)}; mxfp4 needs "
            "U8 of [experts, outputs, inputs / 32, 16]",
            code="M306",
        )
    if scales.dtype not in EXPONENTS or scales.shape != blocks.shape[:3]:
        raise ModelFilesError(
            f"{scales.file}: tensor `{module}{_SCALES}` is {scales.dtype} of shape {list(scales.shape)}; mxfp4 needs "
            f"U8 of {list(blocks.shape[:3])}",
            code="M306",
        )
