"""Hyper-connections of a layer: what its blocks read of the residual streams, and how their outputs are added."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch

from ...model.hyper_connections import HyperConnections as HyperSpec
from ..kernels import Connection, KernelSet
from .loading import Loadable
from .norm import Norm
from .vector import HasVectors, Vector


class HyperConnection(HasVectors):
    """The weights of one connection. They are not rounded: most checkpoints have them in float32."""

    def __init__(
        self,
        prefix: str,
        shapes: Mapping[str, tuple[int, ...]],
        spec: HyperSpec,
        norm_eps: float,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """shapes: of the matrix, the bases and the factors, by their names in the checkpoint after `prefix`."""
        self._vectors = [
            Vector(f"{prefix}.{name}", shape, dtype, device, is_exact=True) for name, shape in shapes.items()
        ]
        matrix, base, scale = (
            vector.values.view(shape) for vector, shape in zip(self._vectors, shapes.values(), strict=True)
        )
        self.weights = _connection(matrix, base, scale, spec, norm_eps)


def mean_of_streams(spec: HyperSpec, hidden: int, norm_eps: float, device: torch.device) -> Connection:
    """The connection whose weights are the same for every token and stream. hidden: elements of a stream."""
    count = spec.num_streams
    share = 1 / count - spec.eps
    matrix, scale = torch.zeros(count, count * hidden, device=device), torch.zeros(1, device=device)
    base = torch.full((count,), math.log(share / (1 - share)), device=device)
    return _connection(matrix, base, scale, spec, norm_eps)


def _connection(
    matrix: torch.Tensor, base: torch.Tensor, scale: torch.Tensor, spec: HyperSpec, norm_eps: float
) -> Connection:
    count, of_output = spec.num_streams, (spec.output_scale, spec.output_eps)
    return Connection(matrix, base, scale, count, norm_eps, spec.eps, *of_output, spec.iterations)


class StreamsNorm:
    """The norm of a weighted sum of the streams: what the heads of a model read."""

    def __init__(self, norm: Norm, connection: HyperConnection | Connection) -> None:
        """connection: with weights of its own, or without."""
        self._norm, self._own = norm, connection if isinstance(connection, HyperConnection) else None
        self._connection = connection.weights if isinstance(connection, HyperConnection) else connection

    def loadables(self) -> Iterator[Loadable]:
        if self._own is not None:
            yield self._own
        yield self._norm

    def __call__(
        self, kernels: KernelSet, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x: [T, n * H], the streams. Returns the norm of the sum, and the sum."""
        assert residual is None, "streams have no residual beside them"
        total, _ = kernels.read_streams(x, self._connection)
        return self._norm(kernels, total)
