"""Layers whose weights are in host memory, and are copied to the device in every step: `cache.cpu_offload_gb`."""

from __future__ import annotations

import math

from .record import Record
from .sizes import DTYPE_BYTES
from .spec import ModelSpec
from .tensors import outer_tensors

_GIB = 1 << 30


class WeightOffload(Record):
    layers: tuple[int, ...]  # ascending
    num_places: int  # of these layers that are on the device at a time
    layer_bytes: int  # of the weights of one, at the average of all layers

    @property
    def host_bytes(self) -> int:
        """Bytes in host memory, including layers that a step copies to the device."""
        return len(self.layers) * self.layer_bytes

    @property
    def saved_bytes(self) -> int:
        """Bytes saved on the device."""
        return (len(self.layers) - self.num_places) * self.layer_bytes


def weight_offload(
    spec: ModelSpec, dtype: str, weights_bytes: int, gibibytes: float, prefetch: int
) -> WeightOffload | None:
    """The fewest layers that have as many bytes, or all; each the last of as many groups of about the same size.

    So the layers before the first one compute while it is copied. None if that would save nothing.

    Args:
        weights_bytes: of the whole model.
        gibibytes: to keep in host memory.
        prefetch: layers that are copied in advance, each to its own place on the device.
    """
    outer = sum(tensor.size for tensor in outer_tensors(spec)) * DTYPE_BYTES[dtype]
    layer_bytes = (weights_bytes - min(outer, weights_bytes)) // spec.num_layers
    # Weights of several layers stay on the device, and layers of very different sizes: each place holds the largest.
    if gibibytes <= 0 or layer_bytes <= 0 or spec.blocks or spec.ngram_size:
        return None
    count, num_places = min(spec.num_layers, math.ceil(gibibytes * _GIB / layer_bytes)), prefetch + 1
    if count <= num_places:
        return None
    layers = tuple((number + 1) * spec.num_layers // count - 1 for number in range(count))
    return WeightOffload(layers=layers, num_places=num_places, layer_bytes=layer_bytes)
