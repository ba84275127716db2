"""A tensor in a file: its name for numbers, its shape, and the place of its first byte."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...model.weight_methods import WeightMethod

DTYPE_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
DTYPE_BYTES |= {"F8_E4M3": 1, "F8_E8M0": 1}  # of quantised checkpoints
INTEGER_DTYPES = ("I64", "I32")  # of tables of whole numbers
FLOAT_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}  # of weights that the engine reads
BLOCKS = {  # quantised dtypes of GGUF files -> elements of a block, which are consecutive in a row, and its bytes
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "IQ2_XXS": (256, 66),
    "IQ2_XS": (256, 74),
    "IQ2_S": (256, 82),
    "IQ3_XXS": (256, 98),
    "IQ3_S": (256, 110),
    "IQ1_S": (256, 50),
    "IQ1_M": (256, 56),
    "IQ4_NL": (32, 18),
    "IQ4_XS": (256, 136),
    "TQ1_0": (256, 54),
    "TQ2_0": (256, 66),
    "MXFP4": (32, 17),
}


def bytes_of(dtype: str, num_elements: int) -> int:
    """Bytes of consecutive elements, which are whole blocks."""
    elements, size = BLOCKS.get(dtype) or (1, DTYPE_BYTES[dtype])
    assert num_elements % elements == 0, (dtype, num_elements)
    return num_elements // elements * size


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """`dtype` as safetensors writes it, or one of BLOCKS. Strides are set only where the elements are not contiguous.

    factors: of the model's rows, with which they are multiplied: (number of rows, factor), for all rows in order.
    packed: of a quantised matrix, whose values are computed from several tensors. `dtype` is then the model's,
        `file` and `offset` are the first tensor's.
    pieces: contiguous, of which it consists, one after the other; `file` and `offset` are the first one's.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file to the first element
    strides: tuple[int, ...] | None = None  # in elements
    factors: tuple[tuple[int, float], ...] = ()
    packed: Packed | None = None
    pieces: tuple[StoredTensor, ...] = ()

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of the elements, wherever they lie."""
        if self.packed is not None:
            return sum(part.num_bytes for part in self.packed.parts.values()) * self.shape[0] // self.packed.shape[0]
        return bytes_of(self.dtype, self.num_elements)

    @property
    def is_quantised(self) -> bool:
        return self.dtype in BLOCKS

    @property
    def span(self) -> int:
        """Elements from the first to the last, with elements between them that belong to others."""
        if self.strides is None or self.num_elements == 0:
            return self.num_elements
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))


@dataclass(frozen=True, slots=True)
class Packed:
    """A quantised matrix. parts: its tensors, by the ends of their names. layer: its name in the files.

    rows: the rows of the matrix that the tensor has.
    block: outputs and inputs that share a scale; of bnb_4bit, consecutive elements of the matrix.
    outer: of bnb_4bit with quantised scales: how many of these share another scale, and what is added to them.
    """

    method: WeightMethod
    layer: str
    parts: Mapping[str, StoredTensor]
    shape: tuple[int, int]
    rows: range
    block: tuple[int, int]
    outer: tuple[int, float] | None = None


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a tensor whose last dimension runs fastest."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
