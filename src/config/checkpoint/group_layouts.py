"""The layout in which kernels keep a quantised matrix with the checkpoint's own codes, from the headers of its files.

engine/runner/grouped_blocks.py and grouped_weights.py read the codes and scales themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...model.quantised import EXPERT_STEP, GroupLayout
from .stored import FLOAT_DTYPES, Packed, StoredTensor, bytes_of

_OF_BLOCKS = {
    "Q4_0": GroupLayout(4, 32, 2),
    "Q4_1": GroupLayout(4, 32, 2, offset="minima"),
    "Q5_0": GroupLayout(6, 32, 2),
    "Q5_1": GroupLayout(6, 32, 2, offset="minima"),
    "Q8_0": GroupLayout(8, 32, 2),
    "Q2_K": GroupLayout(4, 16, 1, 2, 256, "minima"),
    "Q3_K": GroupLayout(4, 16, 1, 2, 256),
    "Q4_K": GroupLayout(4, 32, 1, 2, 256, "minima"),
    "Q5_K": GroupLayout(6, 32, 1, 2, 256, "minima"),
    "Q6_K": GroupLayout(6, 16, 1, 2, 256),
    "IQ4_NL": GroupLayout(4, 32, 2),
    "IQ4_XS": GroupLayout(4, 32, 1, 2, 256),
    "MXFP4": GroupLayout(4, 32, 2),
}
_CODE_BITS = {2: 4, 3: 4, 4: 4, 8: 8}


def group_layout(stored: StoredTensor) -> GroupLayout | None:
    """Layout of a matrix in groups; None if its elements are computed when it is loaded."""
    if stored.factors or len(stored.shape) != 2:
        return None
    layout = _of_packed(stored.packed) if stored.packed is not None else _OF_BLOCKS.get(stored.dtype)
    return None if layout is None or layout.problem(stored.shape[1]) else layout


def keeps_expert(matrices: Sequence[Sequence[StoredTensor]]) -> bool:
    """Whether the matrices of an expert stay in their codes, all of them: parts of the first one, then the last one.

    The parts are stored in turns, so they must be alike, and the width between them is not padded.
    """
    kinds = [{(each.dtype, each.packed and each.packed.method, group_layout(each)) for each in one} for one in matrices]
    are_codes = all(len(own) == 1 and group_layout(parts[0]) for own, parts in zip(kinds, matrices, strict=True))
    return are_codes and matrices[-1][0].shape[1] % EXPERT_STEP == 0


def is_of_bfloat16(stored: StoredTensor) -> bool:
    """Whether its levels are rounded to bfloat16, so that models in other dtypes compute its numbers."""
    return stored.packed is not None and stored.packed.method.kind == "bnb_4bit"


def _of_packed(packed: Packed) -> GroupLayout | None:
    inputs, group, method = packed.shape[1], packed.block[1], packed.method
    if not group or inputs % group:
        return None
    match method.kind:
        case "gptq" | "awq":
            return GroupLayout(_CODE_BITS[method.bits], group, _bytes(packed, "scales"), offset="zeros")
        case "packed":
            layout = GroupLayout(_CODE_BITS[method.bits], group, _bytes(packed, "weight_scale"))
            return layout if method.is_symmetric and method.bits < 8 else layout._replace(offset="zeros")
        case "integers":
            layout = GroupLayout(8, group, _bytes(packed, "weight_scale"))
            return layout if method.is_symmetric else layout._replace(offset="zeros")
        case "fp8":
            return GroupLayout(8, group, _bytes(packed, next(name for name in packed.parts if name != "weight")))
        case "mxfp4":
            return GroupLayout(4, group, 2)
        case "nvfp4":
            return GroupLayout(4, group, 2, 4, inputs)
        case "bnb_int8":
            return GroupLayout(8, group, 4)
        case "bnb_4bit":
            return GroupLayout(4, group, 4)


def _bytes(packed: Packed, name: str) -> int:
    """Bytes of a scale; powers of two become float32."""
    dtype = packed.parts[name].dtype
    return bytes_of(dtype, 1) if dtype in FLOAT_DTYPES else 4
