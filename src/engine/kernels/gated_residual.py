"""Several residual streams of a token: [T, C * H], the elements of one stream after those of another."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .cpu.library import FLOAT, INT64, POINTER, CpuLibrary, pointer

NormStreams = Callable[[torch.Tensor, torch.Tensor, int, float], torch.Tensor]  # the arguments of the references
AverageStreams = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
AddToStreams = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]
GateStreams = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
_LEAST = 1e-6  # product of a key and a query, whose root is computed


def norm_streams_reference(streams: torch.Tensor, weight: torch.Tensor, count: int, eps: float) -> torch.Tensor:
    """Each stream divided by its root mean square, times the weight, [C * H] in float32.

    Returns [T, C * H] in the dtype of the streams; arithmetic in float32.
    """
    check_streams(streams.shape[1], count, len(weight))
    wide = streams.float().view(len(streams), count, streams.shape[1] // count)
    normed = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).view(streams.shape) * weight
    return normed.to(streams.dtype)


def average_streams_reference(gates: torch.Tensor, streams: torch.Tensor, count: int) -> torch.Tensor:
    """The mean over the streams of sigmoid(gates) * streams, both [T, C * H].

    Returns [T, H] in the dtype of the streams; arithmetic in float32.
    """
    check_streams(streams.shape[1], count, gates.shape[1])
    gated = gates.float().sigmoid() * streams.float()
    return gated.view(len(streams), count, streams.shape[1] // count).mean(1).to(streams.dtype)


def add_to_streams_reference(
    streams: torch.Tensor, added: torch.Tensor, weights: torch.Tensor, scale: float
) -> torch.Tensor:
    """Adds to each stream `added`, [T, H], times 2 * sigmoid(scale * weights), of which it has one: [T, C].

    Returns [T, C * H] in the dtype of the streams; arithmetic in float32.
    """
    count, width = weights.shape[1], added.shape[1]
    check_streams(streams.shape[1], count, count * width)
    factors = 2 * torch.sigmoid(scale * weights.float())
    sums = streams.float().view(len(streams), count, width) + factors[:, :, None] * added.float()[:, None]
    return sums.view(streams.shape).to(streams.dtype)


def gate_streams_reference(keys: torch.Tensor, queries: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The value of a token, [T, H], for each stream: times the sigmoid of the signed root of query * key / sqrt(H).

    keys, queries: [T, C * H]. Returns [T, C * H] in their dtype; arithmetic in float32.
    """
    width = values.shape[1]
    count = keys.shape[1] // width
    check_streams(keys.shape[1], count, queries.shape[1])
    products = (keys.float() * queries.float()).view(len(keys), count, width).sum(-1) * width**-0.5
    gates = torch.sigmoid(products.abs().clamp_min(_LEAST).sqrt() * products.sign())
    return (gates[:, :, None] * values.float()[:, None]).view(keys.shape).to(keys.dtype)


def norm_streams_cpu(library: CpuLibrary, dtype: torch.dtype) -> NormStreams:
    empty = library.memory.empty
    call = library.op("norm_streams", dtype, [*[POINTER] * 3, *[INT64] * 3, FLOAT])

    def norm_streams(streams: torch.Tensor, weight: torch.Tensor, count: int, eps: float) -> torch.Tensor:
        tokens, width = streams.shape
        check_streams(width, count, len(weight))
        out = empty(tokens, width, dtype=dtype)
        places = pointer(streams, dtype), pointer(weight, torch.float32), out.data_ptr()
        call(*places, tokens, count, width // count, eps)
        return out

    return norm_streams


def average_streams_cpu(library: CpuLibrary, dtype: torch.dtype) -> AverageStreams:
    empty = library.memory.empty
    call = library.op("average_streams", dtype, [*[POINTER] * 3, *[INT64] * 3])

    def average_streams(gates: torch.Tensor, streams: torch.Tensor, count: int) -> torch.Tensor:
        tokens, width = streams.shape
        check_streams(width, count, gates.shape[1])
        out = empty(tokens, width // count, dtype=dtype)
        call(pointer(gates, dtype), pointer(streams, dtype), out.data_ptr(), tokens, count, width // count)
        return out

    return average_streams


def add_to_streams_cpu(library: CpuLibrary, dtype: torch.dtype) -> AddToStreams:
    empty = library.memory.empty
    call = library.op("add_to_streams", dtype, [*[POINTER] * 4, *[INT64] * 3, FLOAT])

    def add_to_streams(streams: torch.Tensor, added: torch.Tensor, weights: torch.Tensor, scale: float) -> torch.Tensor:
        (tokens, width), size, count = streams.shape, added.shape[1], weights.shape[1]
        check_streams(width, count, size * count)
        out = empty(tokens, width, dtype=dtype)
        places = (pointer(each, dtype) for each in (streams, added, weights))
        call(*places, out.data_ptr(), tokens, count, size, scale)
        return out

    return add_to_streams


def gate_streams_cpu(library: CpuLibrary, dtype: torch.dtype) -> GateStreams:
    empty = library.memory.empty
    call = library.op("gate_streams", dtype, [*[POINTER] * 4, *[INT64] * 3])

    def gate_streams(keys: torch.Tensor, queries: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        (tokens, width), size = keys.shape, values.shape[1]
        check_streams(width, width // size, queries.shape[1])
        out = empty(tokens, width, dtype=dtype)
        places = (pointer(each, dtype) for each in (keys, queries, values))
        call(*places, out.data_ptr(), tokens, width // size, size)
        return out

    return gate_streams


def check_streams(width: int, count: int, other: int) -> None:
    """Raises ValueError unless `count` streams have `width` elements, as many as something else has."""
    if width % count or other != width:
        raise ValueError(f"{count} streams of {width} elements, with {other}")
