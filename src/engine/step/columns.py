"""Encoding of results and log-probabilities: little-endian columns of numbers, in parts that msgpack can pack.

The messages to the API process and to the ranks of a model (transport) consist of these parts. Reading checks that
columns have whole numbers and fit together, and raises ColumnError otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from ..api import TokenLogprobs, Vectors
from .plan import Int32
from .result import StepResult

INT32 = np.dtype("<i4")
FLOAT32 = np.dtype("<f4")
FLOAT64 = np.dtype("<f8")  # exact for every float of the sampler


class ColumnError(ValueError):
    """The bytes are not the columns that were expected; the text says what was found."""


def int_bytes(numbers: Sequence[int] | Int32) -> bytes:
    """Raises OverflowError when a number does not fit 32 bits."""
    return np.asarray(numbers, INT32).tobytes()


def column(data: bytes, dtype: np.dtype[Any], what: str) -> npt.NDArray[Any]:
    """The numbers in `data`, which share its memory and cannot be written."""
    if type(data) is not bytes or len(data) % dtype.itemsize:
        raise ColumnError(f"{what} is not a column of {dtype.itemsize}-byte numbers")
    return np.frombuffer(data, dtype)


def ints(data: bytes, what: str) -> list[int]:
    numbers: list[int] = column(data, INT32, what).tolist()
    return numbers


def writable_ints(data: bytes, what: str) -> Int32:
    """A copy of the numbers: torch shares only memory that can be written."""
    return column(data, INT32, what).copy()


def write_logprobs(entries: Iterable[TokenLogprobs | None]) -> list[bytes]:
    """Four columns: ids of all positions, log-probabilities of all, entries per position (-1: none), rank of each."""
    ids: list[int] = []
    values: list[float] = []
    widths: list[int] = []
    ranks: list[int] = []
    for entry in entries:
        if entry is None:
            widths.append(-1)
            ranks.append(0)
            continue
        ids += entry.token_ids
        values += entry.logprobs
        widths.append(len(entry.token_ids))
        ranks.append(entry.rank)
    return [int_bytes(ids), np.asarray(values, FLOAT64).tobytes(), int_bytes(widths), int_bytes(ranks)]


def read_logprobs(raw_ids: bytes, raw_values: bytes, raw_widths: bytes, raw_ranks: bytes) -> list[TokenLogprobs | None]:
    """The positions that `write_logprobs` was given."""
    token_ids, widths, ranks = ints(raw_ids, "ids"), ints(raw_widths, "widths"), ints(raw_ranks, "ranks")
    values: list[float] = column(raw_values, FLOAT64, "log-probabilities").tolist()
    if len(token_ids) != len(values) or len(widths) != len(ranks) or any(width < -1 for width in widths):
        raise ColumnError("columns of log-probabilities do not fit together")
    if sum(width for width in widths if width > 0) != len(token_ids):
        raise ColumnError("widths of log-probabilities do not add up")
    entries: list[TokenLogprobs | None] = []
    start = 0
    for width, rank in zip(widths, ranks, strict=True):
        if width < 0:
            entries.append(None)
            continue
        entries.append(TokenLogprobs(token_ids[start : start + width], values[start : start + width], rank))
        start += width
    return entries


def write_vectors(found: Iterable[tuple[int, Mapping[str, Vectors]]]) -> list[Any]:
    """The vectors of some rows: for each task and width the rows, how many bytes each has, and the bytes of all."""
    groups: dict[tuple[str, int], tuple[list[int], list[int], list[bytes]]] = {}
    for row, by_task in found:
        for task, vectors in by_task.items():
            rows, lengths, elements = groups.setdefault((task, vectors.width), ([], [], []))
            rows.append(row)
            lengths.append(len(vectors.elements))
            elements.append(vectors.elements)
    return [
        [task, width, int_bytes(rows), int_bytes(lengths), b"".join(elements)]
        for (task, width), (rows, lengths, elements) in groups.items()
    ]


def read_vectors(groups: Iterable[Sequence[Any]]) -> dict[int, dict[str, Vectors]]:
    """Returns by row what `write_vectors` was given."""
    found: dict[int, dict[str, Vectors]] = {}
    for task, width, raw_rows, raw_lengths, elements in groups:
        rows, lengths = ints(raw_rows, "rows of vectors"), column(raw_lengths, INT32, "lengths of vectors")
        if type(task) is not str or type(width) is not int or width < 1:
            raise ColumnError("vectors without a task or a width")
        if len(rows) != len(lengths) or (lengths < 0).any() or (lengths % (FLOAT32.itemsize * width)).any():
            raise ColumnError(f"vectors of {width} elements are not complete")
        if type(elements) is not bytes or int(lengths.sum(dtype=np.int64)) != len(elements):
            raise ColumnError(f"lengths of vectors do not add up to {len(elements)} bytes")
        ends = lengths.cumsum(dtype=np.int64).tolist()
        for row, start, end in zip(rows, [0, *ends], ends, strict=False):
            found.setdefault(row, {})[task] = Vectors(width, elements[start:end])
    return found


def write_result(result: StepResult) -> list[Any]:
    """The parts of a result. Mappings are lists of pairs, because keys of msgpack are text."""
    prompts = result.prompt_logprobs
    return [
        int_bytes(result.token_ids),
        [int_bytes(list(result.logprobs)), *write_logprobs(result.logprobs.values())],
        [int_bytes(list(prompts)), int_bytes([len(each) for each in prompts.values()])],
        write_logprobs(chain.from_iterable(prompts.values())),
        list(result.errors.items()),
        result.complete,
        list(result.forced.items()),
        write_vectors(result.vectors.items()),
        None if result.num_valid is None else int_bytes(result.num_valid),
    ]


def read_result(parts: Sequence[Any]) -> StepResult:
    """The result that `write_result` was given."""
    token_ids, (places, *logprobs), (rows, lengths), prompt_logprobs, errors, complete, forced, vectors, valid = parts
    found, counts = _without_gaps(prompt_logprobs), ints(lengths, "lengths")
    if sum(counts) != len(found) or min(counts, default=0) < 0:
        raise ColumnError("log-probabilities of prompts do not add up")
    entries, prompts = iter(found), zip(ints(rows, "rows"), counts, strict=True)
    return StepResult(
        token_ids=writable_ints(token_ids, "tokens"),
        logprobs=dict(zip(ints(places, "places"), _without_gaps(logprobs), strict=True)),
        prompt_logprobs={row: [next(entries) for _ in range(length)] for row, length in prompts},
        errors=dict(errors),
        complete=complete,
        forced=dict(forced),
        vectors=read_vectors(vectors),
        num_valid=None if valid is None else writable_ints(valid, "numbers of tokens"),
    )


def _without_gaps(columns: Sequence[bytes]) -> list[TokenLogprobs]:
    return [entry for entry in read_logprobs(*columns) if entry is not None]
