"""Hyper-connections of a layer: what its blocks read of the residual streams, and how their outputs are added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from ...model.hyper_connections import HyperConnections as HyperSpec
from ..kernels import Connection, KernelSet
from .linear import Mix
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
        self._values = [vector.values for vector in self._vectors]  # those that move with their views in `weights`
        matrix, base, scale = (values.view(shape) for values, shape in zip(self._values, shapes.values(), strict=True))
        of_output = spec.output_scale, spec.output_eps
        self.weights = Connection(
            matrix, base, scale, spec.num_streams, norm_eps, spec.eps, *of_output, spec.iterations
        )


class StreamsNorm:
    """The norm of a weighted sum of the streams: what the heads of a model read."""

    def __init__(self, norm: Norm, connection: HyperConnection) -> None:
        self._norm, self._connection = norm, connection

    def loadables(self) -> Iterator[Loadable]:
        yield self._connection
        yield self._norm

    def __call__(
        self, kernels: KernelSet, x: torch.Tensor, residual: torch.Tensor | None = None, mix: Mix | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x: [T, n * H], the streams. Returns the norm of the sum, and the sum."""
        assert residual is None, "streams have no residual beside them"
        total, _ = kernels.read_streams(x, self._connection.weights)
        return self._norm(kernels, total)
