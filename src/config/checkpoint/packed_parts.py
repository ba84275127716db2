"""The tensors of one quantised matrix, found by the ends of their names, and checks of their dtypes and shapes.

For a layer `mlp.up` of a GPTQ checkpoint, `matrix("qweight", ("I32",))` finds the tensor `mlp.up.qweight` and returns
its shape, for example (512, 11008). A tensor that is missing or has another form is a ModelFilesError with its name.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...model.weight_methods import WeightMethod
from ..errors import ModelFilesError
from .stored import FLOAT_DTYPES, StoredTensor

FLOATS = tuple(FLOAT_DTYPES)
EXPONENTS = ("U8", "F8_E8M0")  # of scales that are powers of two

MatrixShape = tuple[int, int]


class Parts:
    """The tensors of one matrix. used: those that were found by a check, by the ends of their names."""

    def __init__(self, tensors: Mapping[str, StoredTensor], layer: str, method: WeightMethod) -> None:
        self.layer = layer
        self.method = method
        self.used: dict[str, StoredTensor] = {}
        self._tensors = tensors

    def has(self, end: str) -> bool:
        return f"{self.layer}.{end}" in self._tensors

    def stored(self, end: str, dtypes: tuple[str, ...]) -> StoredTensor:
        """The tensor, which has one of these dtypes."""
        name = f"{self.layer}.{end}"
        if name not in self._tensors:
            first = next(iter(self.used.values()), None)
            where = f"{first.file.parent}: " if first is not None else ""
            raise ModelFilesError(
                f"{where}tensor `{name}` is not in any of its weight files; {self.method.shown} needs it", code="M302"
            )
        stored = self._tensors[name]
        if stored.dtype not in dtypes or stored.strides is not None:
            raise self.error(end, stored, f"has dtype {stored.dtype}; {self.method.shown} needs {' or '.join(dtypes)}")
        self.used[end] = stored
        return stored

    def matrix(self, end: str, dtypes: tuple[str, ...]) -> MatrixShape:
        """Shape of a tensor that is a matrix."""
        stored = self.stored(end, dtypes)
        if len(stored.shape) != 2 or not all(stored.shape):
            raise self.error(end, stored, f"has shape {list(stored.shape)}; it must be a matrix")
        return stored.shape[0], stored.shape[1]

    def check(self, end: str, dtypes: tuple[str, ...], *shapes: tuple[int, ...]) -> None:
        """Check that the tensor has one of these shapes."""
        stored = self.stored(end, dtypes)
        if stored.shape not in shapes:
            raise self.error(
                end, stored, f"has shape {list(stored.shape)}; {self.method.shown} needs {list(shapes[0])}"
            )

    def optional(self, end: str, dtypes: tuple[str, ...], shape: tuple[int, ...] | None) -> StoredTensor | None:
        """The tensor, or None if it is missing. shape: None allows any."""
        if not self.has(end):
            return None
        if shape is not None:
            self.check(end, dtypes, shape)
        return self.stored(end, dtypes)

    def block(self, shape: MatrixShape, scales_end: str = "") -> MatrixShape:
        """Outputs and inputs that share a scale. If the method does not say, the number of scales does."""
        block = self.method.block
        if block is None:
            scales = self._tensors.get(f"{self.layer}.{scales_end}")
            has_one_scale = scales is None or scales.num_elements == 1
            block = (0, 0) if has_one_scale else (1, 0)
        outputs, inputs = block  # 0 means all
        return outputs or max(1, shape[0]), inputs or max(1, shape[1])

    def check_scales(self, end: str, dtypes: tuple[str, ...], shape: MatrixShape, block: MatrixShape) -> MatrixShape:
        """Check that there is a scale for each block. Returns their shape, which is stored with or without ones."""
        grid = ceil_div(shape[0], block[0]), ceil_div(shape[1], block[1])
        stored = self.stored(end, dtypes)
        if block[0] == 1 and shape[1] % block[1]:
            raise self.error(end, stored, f"is for groups of {block[1]}, {shape[1]} inputs are no multiple")
        if _without_ones(stored.shape) != _without_ones(grid):
            raise self.error(end, stored, f"has shape {list(stored.shape)}; {list(shape)} needs {list(grid)}")
        return grid

    def divide(self, end: str, size: int, divisor: int) -> int:
        """Divide a size that follows from the shape of a tensor, which is wrong if there is a remainder."""
        if size % divisor:
            stored = self._tensors[f"{self.layer}.{end}"]
            raise self.error(end, stored, f"has shape {list(stored.shape)}, which {self.method.shown} cannot divide")
        return size // divisor

    def error(self, end: str, stored: StoredTensor, what: str) -> ModelFilesError:
        return ModelFilesError(f"{stored.file}: tensor `{self.layer}.{end}` {what}", code="M306")


def ceil_div(size: int, divisor: int) -> int:
    return -(-size // divisor)


def _without_ones(shape: tuple[int, ...]) -> list[int]:
    return [size for size in shape if size != 1]
