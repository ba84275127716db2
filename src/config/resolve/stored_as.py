"""How a quantised checkpoint stores its matrices, and what kernels can hold of it as it is."""

from __future__ import annotations

from ...model.record import Record


class StoredAs(Record):
    """Matrices that a quantised checkpoint stores in the same way."""

    method: str  # as WeightMethod.shown
    num_matrices: int
    num_bytes: int  # in the files


class OwnCodes(Record):
    """Matrices of the model that kernels can hold in the checkpoint's own codes."""

    outputs: int
    inputs: int
    num_matrices: int
    num_bytes: int  # of all of them, in the panels of CPUs
    row_bytes: int  # in the rows of GPUs
    is_of_bfloat16: bool = False  # only in models of this dtype
    are_of_experts: bool = False  # whose numbers GPUs compute
