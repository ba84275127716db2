"""Pooled results: what callers do with the outputs of a model's pooling heads, in float32.

The engine returns what a head computes. The caller cuts vectors to fewer dimensions, applies the activation, compares
texts, and writes vectors as bytes or JSON. The HTTP server and `LLM` share these functions, so both return the same
numbers. All arrays are [number of vectors, elements of each] unless a docstring says otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic_core import to_json

from .engine.api import Vectors
from .model.pooling import PoolActivation, PoolHead, Pooling, Similarity

Floats = npt.NDArray[np.float32]
SmallIntegers = npt.NDArray[np.int8] | npt.NDArray[np.uint8]
Integers = Literal["int8", "uint8", "binary", "ubinary"]
ElementType = Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"]
Endianness = Literal["native", "big", "little"]
BITS_PER_BYTE = 8
_LARGEST_F16 = np.float32(65504)
_SHORTEST = 1e-12  # a vector that is shorter than this has no direction, and is not made longer


class SparseEntry(NamedTuple):
    """The weight of one token of the vocabulary."""

    token_id: int
    weight: float


def array_of(vectors: Vectors) -> Floats:
    """The outputs of a head as an array. All elements are finite: the engine returns an error instead of others."""
    return np.frombuffer(vectors.elements, "<f4").astype(np.float32, copy=False).reshape(-1, vectors.width)


def dimensions_problem(head: PoolHead, dimensions: int) -> str | None:
    """Why the vectors of a head cannot be cut to this number of elements; None if they can.

    Many clients always send the number of elements that the vectors have, which is allowed for every model.
    """
    if dimensions == head.width:
        return None
    if head.dimensions:
        if dimensions in head.dimensions:
            return None
        return f"this model's vectors can have {', '.join(map(str, head.dimensions))} dimensions, not {dimensions}"
    if not head.any_dimension:
        return f"this model was not trained for fewer dimensions than its {head.width} (Matryoshka)"
    if not 1 <= dimensions <= head.width:
        return f"this model's vectors can have 1 to {head.width} dimensions, not {dimensions}"
    return None


def standardised(values: Floats, mean: float, sigma: float) -> Floats:
    """Scores minus their mean, divided by their deviation: what some rerankers need before the activation."""
    found: Floats = ((values - np.float32(mean)) / np.float32(sigma)).astype(np.float32)
    return found


def activated(values: Floats, activation: PoolActivation) -> Floats:
    """Apply an activation to each vector: softmax over its elements, length 1, or a function of each element."""
    found: Floats
    match activation:
        case "none":
            found = values
        case "normalize":
            lengths = np.sqrt(np.einsum("ij,ij->i", values, values, dtype=np.float32))[:, None]
            found = values / np.maximum(lengths, np.float32(_SHORTEST))
        case "softmax":
            powers = np.exp(values - values.max(axis=1, keepdims=True))
            found = powers / powers.sum(axis=1, keepdims=True)
        case "sigmoid":  # both branches are exact for large values: exp never overflows
            powers = np.exp(-np.abs(values))
            found = np.where(values >= 0, 1 / (1 + powers), powers / (1 + powers)).astype(np.float32)
        case "relu":
            found = np.maximum(values, np.float32(0))
    return found


def finished(values: Floats, activation: PoolActivation, dimensions: int | None = None) -> Floats:
    """Cut vectors to `dimensions` elements, then apply the activation: a shorter vector gets length 1 again."""
    return activated(values if dimensions is None else values[:, :dimensions], activation)


def results_of(
    pooling: Pooling, head: PoolHead, found: Floats, dimensions: int | None = None, *, activates: bool = True,
    activation: PoolActivation | None = None,
) -> Floats:  # fmt: skip
    """The results of one text: without those of special tokens that the head leaves out, cut, and activated.

    dimensions: None for the number of elements of embeddings that the deployment names, if it names one.
    activation: in place of the head's, for APIs that always apply the same one.
    """
    if dimensions is None and head.task == "embed":
        dimensions = pooling.default_dimensions
    kept = found if head.modes else found[head.skips_first : len(found) - head.skips_last]
    if head.task in ("classify", "token_classify") and (pooling.logit_mean, pooling.logit_sigma) != (0.0, 1.0):
        kept = standardised(kept, pooling.logit_mean, pooling.logit_sigma)
    return finished(kept, (activation or head.activation) if activates else "none", dimensions)


def of_steps(pooling: Pooling, head: PoolHead, rows: Floats, token_ids: Sequence[int]) -> Floats:
    """The results of a process reward model's step tokens; of another model or task, all results of a text.

    rows: as `results_of` returns them. token_ids: of the text.
    """
    step = pooling.step_token
    if step is None or head.task != "token_classify":
        return rows
    kept: Floats = rows[_ids_of(head, rows, token_ids) == step]
    return kept


def compared(pooling: Pooling, head: PoolHead, rows: Floats, token_ids: Sequence[int]) -> Floats:
    """The vectors of a document without those of tokens that late interaction does not compare.

    rows, token_ids: as of `of_steps`.
    """
    kept: Floats = rows[~np.isin(_ids_of(head, rows, token_ids), pooling.skipped_tokens)]
    return kept


def _ids_of(head: PoolHead, rows: Floats, token_ids: Sequence[int]) -> npt.NDArray[np.int64]:
    """The token of each result of a head that has one for each token."""
    return np.array(token_ids, np.int64)[head.skips_first : head.skips_first + len(rows)]


def similarities(query: Floats, documents: Floats, kind: Similarity) -> Floats:
    """How similar each document is to the query; a larger number is more similar, also for distances.

    query: [elements]. documents: [documents, elements]. Returns [documents].
    """
    found: Floats
    match kind:
        case "cosine":
            found = activated(documents, "normalize") @ activated(query[None], "normalize")[0]
        case "dot":
            found = documents @ query
        case "euclidean":
            found = -np.sqrt(((documents - query) ** 2).sum(axis=1))
        case "manhattan":
            found = -np.abs(documents - query).sum(axis=1)
    return found


def max_sim(query: Floats, document: Floats) -> float:
    """Late interaction: the best product of each token of the query with a token of the document, summed.

    query: [tokens of the query, elements]. document: [tokens of the document, elements]; without tokens the sum is 0.
    """
    if not len(document):
        return 0.0
    return float((query @ document.T).max(axis=1).sum())


def sparse_entries(weights: Floats, token_ids: Sequence[int], *, leaves_out: Iterable[int] = ()) -> list[SparseEntry]:
    """Weights of tokens of the vocabulary, by ascending token id, without those that are zero.

    weights: [1, vocabulary], or [tokens of the text, 1]; a token that occurs several times then has its largest weight.
    token_ids: of the text. leaves_out: special tokens, which have no weight.
    """
    if weights.shape[1] > 1:
        found = np.flatnonzero(weights[0])
        return [SparseEntry(int(index), float(weights[0, index])) for index in found]
    largest: dict[int, float] = {}
    skipped = frozenset(leaves_out)
    for token_id, weight in zip(token_ids, weights[:, 0].tolist(), strict=True):
        if token_id not in skipped and weight > largest.get(token_id, 0.0):
            largest[token_id] = weight
    return [SparseEntry(index, largest[index]) for index in sorted(largest)]


def quantised(values: Floats, kind: Integers) -> SmallIntegers:
    """Vectors as small integers.

    int8, uint8: the largest element of each vector becomes 127, so that cosines stay as they are but for rounding;
        uint8 is int8 plus 128.
    binary, ubinary: one bit for each element, 1 if it is positive; the first is the highest bit of the first byte.
        binary is ubinary minus 128. Raises ValueError unless the number of elements is a multiple of 8.
    """
    if kind in ("binary", "ubinary"):
        if values.shape[1] % BITS_PER_BYTE:
            raise ValueError(f"vectors of {values.shape[1]} elements are not a whole number of bytes, as bits")
        packed: SmallIntegers = np.packbits(values > 0, axis=1)
        return packed if kind == "ubinary" else (packed.astype(np.int16) - 128).astype(np.int8)
    largest = np.maximum(np.abs(values).max(axis=1, keepdims=True), np.float32(_SHORTEST))
    steps = np.rint(values * (127 / largest)).astype(np.int16)
    small: SmallIntegers = (steps + 128).astype(np.uint8) if kind == "uint8" else steps.astype(np.int8)
    return small


def encoded(values: Floats, element: ElementType = "float32", endianness: Endianness = "little") -> bytes:
    """The elements as bytes, one vector after the other, rounded to the nearest value that the type has.

    A value beyond the largest of float16 or of an 8-bit type becomes that largest one.
    """
    order: Literal["<", ">"] = "<" if (sys.byteorder if endianness == "native" else endianness) == "little" else ">"
    match element:
        case "float32":
            return values.astype(f"{order}f4").tobytes()
        case "float16":
            return np.clip(values, -_LARGEST_F16, _LARGEST_F16).astype(f"{order}f2").tobytes()
        case "bfloat16":
            bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
            rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to the nearest; half-way cases to even
            return rounded.astype(f"{order}u2").tobytes()
        case "fp8_e4m3":
            return _to_8_bits(values, _E4M3).tobytes()
        case "fp8_e5m2":
            return _to_8_bits(values, _E5M2).tobytes()


def _positive_values(exponent_bits: int, num_codes: int) -> Floats:
    """The values of the first `num_codes` codes of an 8-bit float, which are ascending and not negative."""
    mantissa_bits = 7 - exponent_bits
    bias = (1 << (exponent_bits - 1)) - 1
    codes = np.arange(num_codes)
    exponents, mantissas = codes >> mantissa_bits, codes & ((1 << mantissa_bits) - 1)
    parts = mantissas / (1 << mantissa_bits) + (exponents > 0)
    found: Floats = (parts * 2.0 ** (np.maximum(exponents, 1) - bias)).astype(np.float32)
    return found


_E4M3 = _positive_values(4, 0x7F)  # up to 448; the last code is NaN
_E5M2 = _positive_values(5, 0x7C)  # up to 57344; the codes after them are infinity and NaN


def _to_8_bits(values: Floats, table: Floats) -> npt.NDArray[np.uint8]:
    """Codes of the nearest values in the table; half-way cases get the even code."""
    sizes = np.abs(values)
    above = np.minimum(np.searchsorted(table, sizes), len(table) - 1)  # the first value that is not smaller
    below = np.maximum(above - 1, 0)
    to_above, to_below = table[above] - sizes, sizes - table[below]
    takes_below = (to_below < to_above) | ((to_below == to_above) & (below % 2 == 0))
    codes = np.where(takes_below, below, above)
    found: npt.NDArray[np.uint8] = (codes | (np.signbit(values).astype(np.int64) << 7)).astype(np.uint8)
    return found


def as_json(values: npt.NDArray[np.generic]) -> bytes:
    """An array as JSON lists. float32 keeps all its digits. This is several times faster than the json module."""
    return to_json(values.tolist())
