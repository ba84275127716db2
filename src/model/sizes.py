"""Numbers of parameters, bytes of weights, and memory of a step, from the tensors of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from .feed_forwards import Experts
from .mixers import Keeps
from .quantised import SCHEMES, Scheme, quantised_bytes
from .spec import LayerSpec, ModelSpec
from .tensor import Tensor
from .tensors import EMBEDDING, FUSED, OUTPUT, head_tensors, layer_tensors, outer_tensors

DTYPE_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "int8": 1}
KV_SCALE_BYTES = 4  # of each head of a token, next to its int8 codes
_WHOLE = {f"{part}.weight": whole for whole, parts in FUSED.items() for part in parts}


class Parameters(NamedTuple):
    total: int
    active: int  # parameters used for one token; one row of the embedding, and of the table of the layers' inputs
    matrices: int  # part of the total: matrices of the layers and for them, which quantisation shrinks


@lru_cache(maxsize=16)
def count_parameters(spec: ModelSpec) -> Parameters:
    total = active = matrices = 0
    for layer, count in Counter(spec.layers).items():
        for tensor in layer_tensors(spec, layer):
            size = tensor.size * count
            total += tensor.copies * size
            active += tensor.used * size
            matrices += tensor.copies * size * tensor.is_matrix
    outer = {tensor.name: tensor for tensor in outer_tensors(spec)}
    total += sum(tensor.size for tensor in outer.values())
    active += outer.get(OUTPUT, outer[EMBEDDING]).size + 2 * spec.hidden_size
    of_outer = sum(tensor.size for tensor in outer.values() if tensor.is_matrix)
    if spec.layer_input is not None:
        active += of_outer + (spec.num_layers + 1) * spec.layer_input.width  # a row of the table, and a norm
    return Parameters(total, active, matrices + of_outer)


@lru_cache(maxsize=64)
def weights_bytes(spec: ModelSpec, dtype: str, held: str | None = None) -> int:
    """Bytes of all weights when held in `dtype`; linear layers are held as `quantised.held_in` says."""
    size = DTYPE_BYTES[dtype]
    of_heads = sum(tensor.size for tensor in head_tensors(spec))  # in float32
    total = count_parameters(spec).total - of_heads
    if held is None:
        return total * size + of_heads * DTYPE_BYTES["float32"]
    layers, output = SCHEMES.get(held) or Scheme(held, held)
    num_bytes, num_elements = (
        quantised_bytes(output, spec.vocab_size, spec.hidden_size),
        spec.vocab_size * spec.hidden_size,
    )
    if not spec.has_output:
        num_bytes, num_elements = 0, 0
    parts = [(layer_tensors(spec, layer), count) for layer, count in Counter(spec.layers).items()]
    for tensors, count in [*parts, (outer_tensors(spec), 1)]:
        for copies, outputs, inputs in _fused_matrices(tensors):
            num_bytes += count * copies * quantised_bytes(layers, outputs, inputs)
            num_elements += count * copies * outputs * inputs
    return num_bytes + (total - num_elements) * size + of_heads * DTYPE_BYTES["float32"]


def moving_bytes(spec: ModelSpec, dtype: str, held: str | None = None) -> int:
    """Bytes of the experts that can be on their way to a device: all that are new to it in one layer, and one that it
    sends or passes on. spec: of one device. dtype, held: as of `weights_bytes`."""
    return max((_arriving_bytes(spec, layer, dtype, held) for layer in dict.fromkeys(spec.layers)), default=0)


def _arriving_bytes(spec: ModelSpec, layer: LayerSpec, dtype: str, held: str | None) -> int:
    block = layer.feed_forward
    if not isinstance(block, Experts) or block.redundant is None or block.held in (None, block.count):
        return 0
    scheme = None if held is None else (SCHEMES.get(held) or Scheme(held, held)).layers
    matrices = _fused_matrices(tensor for tensor in layer_tensors(spec, layer) if ".experts." in tensor.name)
    one = sum(matrix_bytes(scheme, dtype, outputs, inputs) for _, outputs, inputs in matrices)
    return one * (1 + min(block.held, block.count - block.held))


def matrix_bytes(held: str | None, dtype: str, outputs: int, inputs: int) -> int:
    """Bytes of one matrix of a linear layer."""
    return DTYPE_BYTES[dtype] * outputs * inputs if held is None else quantised_bytes(held, outputs, inputs)


def fused_name(name: str) -> str:
    """Name, without `.weight`, of the matrix of which the engine makes this one a part."""
    place, _, own = name.removesuffix(".weight").rpartition(".")
    return f"{place}.{_WHOLE.get(f'{own}.weight', own)}"


def _fused_matrices(tensors: Iterator[Tensor]) -> Iterator[tuple[int, int, int]]:
    """Copies, outputs and inputs of each matrix of a layer, as the engine fuses them."""
    wholes: dict[str, tuple[int, int, int]] = {}
    for tensor in tensors:
        if tensor.is_matrix:
            outputs, inputs = tensor.shape
            whole = fused_name(tensor.name)
            before = wholes[whole][1] if whole in wholes else 0
            wholes[whole] = tensor.copies, before + outputs, inputs
    yield from wholes.values()


def state_bytes(spec: ModelSpec, dtype: str, sums_dtype: str = "float32") -> int:
    """Bytes of the recurrent states of one sequence. dtype: of the model, in which inputs of convolutions are kept."""
    kept = [state.keeps for state in spec.states if state is not None]
    return sum(kept_bytes(keeps, DTYPE_BYTES[dtype], DTYPE_BYTES[sums_dtype]) for keeps in kept)


def kept_bytes(keeps: Keeps, size: int, size_of_sums: int = 4) -> int:
    """Bytes that one layer keeps, per token or per sequence. size: bytes of an element that is not part of a sum."""
    return keeps.sums_width * size_of_sums + (keeps.width - keeps.sums_width) * size


def kv_bytes(keeps: Keeps, dtype: str) -> int:
    """Bytes of one layer that keeps tokens, per token."""
    scales = sum(heads for heads, _ in keeps.tensors) * KV_SCALE_BYTES if dtype == "int8" else 0
    return keeps.width * DTYPE_BYTES[dtype] + scales


def activation_elements(spec: ModelSpec) -> tuple[int, int]:
    """Elements per token of a step's tensors: of the model's width, and of the largest layer, which devices can share.

    The first: residual, a layer's input and its norm; with hyper-connections also the residual before a block's output
    was added to it; with gates of norms also a gate, and its product with the norm. The second, for attention and an
    MLP: queries, keys, values and the output of attention; gate, up and their product. They are never all live at the
    same time: the difference is room for the kernels' workspaces. The layers' own inputs of a token are computed before
    the first layer, as the sum of two tensors, and are live until the last one.
    """
    inputs = 0 if spec.layer_input is None else spec.num_layers * spec.layer_input.width
    of_layers = (
        sum(part.activations for part in (*layer.mixers, layer.feed_forward, layer.ngrams) if part)
        for layer in set(spec.layers)
    )
    copies = 2 if spec.hyper_connections is not None else 1 if spec.gated_residual is None else 3
    gates = 2 * spec.hidden_size if any(layer.norm_gates for layer in spec.layers) else 0
    return 2 * spec.hidden_size + copies * spec.stream_width + gates + inputs, max([2 * inputs, *of_layers])
