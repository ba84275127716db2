"""A tensor in a file: its name for numbers, its shape, and the place of its first byte."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

DTYPE_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
FLOAT_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}  # of weights that the engine reads


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """`dtype` as safetensors writes it. Strides are set only where the elements are not contiguous.

    factors: of the model's rows, with which they are multiplied: (number of rows, factor), for all rows in order.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file to the first element
    strides: tuple[int, ...] | None = None  # in elements
    factors: tuple[tuple[int, float], ...] = ()

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of the elements, wherever they lie."""
        return self.num_elements * DTYPE_BYTES[self.dtype]

    @property
    def span(self) -> int:
        """Elements from the first to the last, with those between them that belong to others."""
        if self.strides is None or self.num_elements == 0:
            return self.num_elements
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a tensor whose last dimension runs fastest."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
