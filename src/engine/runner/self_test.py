"""Self-test: the speed of a model's linear layers, relative to what this machine can do (`device.self_test`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import cycle

import torch

from ..kernels import KernelSet, PackedLinear
from ..layers.linear import Linear
from ..models.model import Model

SECONDS = 0.125  # of each of the four measurements, which are made twice, in turns
IN_CACHES = 256 << 20  # bytes of weights that caches may hold
ROWS = 256  # of a prompt
_ROUNDS = 200  # of products between two looks at the clock


def self_test(
    model: Model, kernels: KernelSet, num_threads: int, clock: Callable[[], float] = time.perf_counter
) -> str:
    """The result, for the start-up table: how fast one row reads the weights, and how fast many rows multiply them."""
    speed = kernels.speed
    if speed is None:
        return "not measured: torch computes the linear layers"
    wholes = [each.packed for each in model.loadables() if isinstance(each, Linear)]
    linears = [each for whole in wholes for each in whole.pieces or (whole,)]
    layers = [each for each in linears if each.dtype == linears[0].dtype]  # a router may be float32

    def per_second(work: Callable[[PackedLinear], int]) -> float:
        """The sum of what work returns, for one layer after the other, per second."""
        work(layers[0])  # warms up
        began, total = clock(), 0
        for layer in cycle(layers):
            total += work(layer)
            if (seconds := clock() - began) >= SECONDS:
                return total / seconds
        raise AssertionError("a model has layers")

    def read(layer: PackedLinear) -> int:
        speed.read(layer.weight)
        return layer.weight.nbytes

    def multiply(layer: PackedLinear, x: torch.Tensor) -> int:
        kernels.linear(x, layer)
        return 2 * len(x) * layer.out_features * layer.in_features

    one, many = (
        {size: torch.ones(rows, size, dtype=layers[0].dtype) for size in _inputs(layers)} for rows in (1, ROWS)
    )

    def decode(layer: PackedLinear) -> int:
        multiply(layer, one[layer.in_features])
        return layer.weight.nbytes

    with torch.inference_mode():
        works: tuple[Callable[[PackedLinear], int], ...] = (
            read,
            decode,
            lambda _: num_threads * speed.multiply(_ROUNDS),
            lambda layer: multiply(layer, many[layer.in_features]),
        )
        rounds = [[per_second(work) for work in works] for _ in range(2)]
    memory, weights, peak, products = (max(found) for found in zip(*rounds, strict=True))
    num_bytes = sum(each.weight.nbytes for each in layers)
    share = f"{weights / memory:.0%} of what memory delivers" if num_bytes > IN_CACHES else "from the caches"
    return (
        f"linear layers: one row reads weights at {weights / 1e9:.1f} GB/s, {share}; {ROWS} rows multiply at "
        f"{products / 1e9:.0f} GFLOP/s, {products / peak:.0%} of what {speed.unit} do"
    )


def _inputs(layers: Sequence[PackedLinear]) -> set[int]:
    return {layer.in_features for layer in layers}
