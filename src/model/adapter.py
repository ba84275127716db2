"""An adapter (LoRA): what its files add to the weights of a model, under the model's own names.

`config/checkpoint/adapter_files.py` reads it from the configuration and the headers of the files; `engine/lora`
computes with it. There is no torch here: a plan counts an adapter's bytes without loading it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# Names of adapters, which clients write: one or two parts, of which none is `.` or `..`
_PART = r"(?!\.{1,2}(?:/|$))[A-Za-z0-9._-]{1,128}"
NAME_PATTERN = rf"{_PART}(?:/{_PART})?"


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A matrix in the files of an adapter: a tensor, or a part of one.

    The tensor is seen with the shape `view`, `chosen` takes one index of some of its dimensions, and `rows` takes some
    rows of the matrix that is left. With `head_dim` the rows of each head, (2, head_dim / 2), are put in the order
    (head_dim / 2, 2): the weights of the model have the elements that are rotated together as neighbours.
    """

    name: str  # of the tensor in the file
    view: tuple[int, ...]
    chosen: tuple[tuple[int, int], ...] = ()  # a dimension of the view, and the index that is taken there
    rows: tuple[int, int] | None = None  # from, up to before; None: all
    head_dim: int | None = None  # after `rows`; None: they are in the order of the model
    is_transposed: bool = False  # after all of that


@dataclass(frozen=True, slots=True)
class LowRank:
    """scale * (x @ A.T) @ B.T, and scale * bias, added to the product of one weight."""

    target: str  # the weight's name in model/tensors.py, without `.weight`
    rank: int
    scale: float
    in_features: int
    out_features: int
    a: StoredMatrix  # [rank, in_features]
    b: StoredMatrix  # [out_features, rank]
    bias: StoredMatrix | None = None  # of B, [out_features, 1]
    magnitude: StoredMatrix | None = None  # DoRA: the length of each row of the sum of both matrices, [out_features, 1]

    @property
    def num_elements(self) -> int:
        vectors = (self.bias is not None) + (self.magnitude is not None)
        return self.rank * (self.in_features + self.out_features) + vectors * self.out_features


@dataclass(frozen=True, slots=True)
class Replaced:
    """Rows of a weight of the model, or its bias, that the adapter has in place of the model's.

    target: the weight's name in model/tensors.py, without `.weight`.
    shape: of the values; a bias has one column.
    rows: which the values are for, each once and in the order of the values; None: all.
    """

    target: str
    values: StoredMatrix
    shape: tuple[int, int]
    is_bias: bool = False
    rows: tuple[int, ...] | None = None

    @property
    def num_elements(self) -> int:
        return self.shape[0] * self.shape[1]


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    folder: Path
    digest: str  # of the contents of its configuration and its weights, hexadecimal
    weights: Path  # the file with the tensors
    deltas: tuple[LowRank, ...]  # by the layers of the model
    replaced: tuple[Replaced, ...] = ()  # of linear layers
    embedding: LowRank | Replaced | None = None  # of the rows that are looked up, not of an output layer that is tied
    base_model: str | None = None  # the name in its configuration
    left_out: tuple[str, ...] = ()  # names of weights that it changes too, and that the deployment does not adapt

    @property
    def max_rank(self) -> int:
        own = (self.embedding,) if isinstance(self.embedding, LowRank) else ()
        return max((delta.rank for delta in (*self.deltas, *own)), default=0)

    @property
    def num_elements(self) -> int:
        own = () if self.embedding is None else (self.embedding,)
        return sum(each.num_elements for each in (*self.deltas, *self.replaced, *own))

    @property
    def num_layers(self) -> int:
        """Matrices that it changes."""
        targets = {delta.target for delta in self.deltas} | {each.target for each in self.replaced}
        return len(targets) + (self.embedding is not None)

    @property
    def num_saved_elements(self) -> int:
        """Elements of whole weights and rows of weights, whose number no rank limits."""
        own = (self.embedding,) if isinstance(self.embedding, Replaced) else ()
        return sum(each.num_elements for each in (*self.replaced, *own) if not each.is_bias)
