"""Pipeline stages, each of which has consecutive layers.

The first has the embedding and the output layer too, to which the last one sends its results: where both are one
matrix, it is held once, and the process that samples has the logits.
"""

from __future__ import annotations

import sys
from fractions import Fraction
from itertools import accumulate

from .feed_forwards import Experts
from .mixers import LatentAttention
from .sizes import count_parameters, state_bytes
from .spec import ModelSpec
from .state_inputs import state_input_bytes
from .tensor_parallel import of_one_device, tensor_parallel_problem
from .tensors import EMBEDDING, layer_tensors, outer_tensors

_NONE = (sys.maxsize, 0)  # no stages are possible


def pipeline_problem(spec: ModelSpec, num_stages: int) -> str | None:
    """Why a pipeline of this number of stages is impossible; None if it is possible."""
    if num_stages > len(_starts(spec)):
        are_bound = ", some of which use what the one before has chosen," * (len(_starts(spec)) < spec.num_layers)
        return f"{spec.num_layers} layers{are_bound} cannot be {num_stages} stages"
    if num_stages > 1 and any(source is not None for source in spec.keys_of):
        return "some layers read the keys and values of others"
    if num_stages > 1 and spec.layer_input is not None:
        return "each layer has an input of its own"
    if num_stages > 1 and spec.blocks:
        return "some layers share weights"
    if num_stages > 1 and (spec.ngram_size or _lists_later(spec, num_stages)):
        return "some layers read token ids, which only the first stage has"
    return None


def _lists_later(spec: ModelSpec, num_stages: int) -> bool:
    """Whether a table lists the experts of token ids in a layer of a later stage."""
    listed = {
        index
        for index, layer in enumerate(spec.layers)
        if isinstance(layer.feed_forward, Experts) and layer.feed_forward.listed_tokens
    }
    return bool(listed) and max(listed) >= stages(spec, num_stages)[0].stop


def _starts(spec: ModelSpec) -> set[int]:
    """The layers that a stage may begin with: none that attends to the tokens that the layer before has chosen."""
    return {
        index
        for index, layer in enumerate(spec.layers)
        if not (isinstance(layer.mixer, LatentAttention) and layer.mixer.shares_index)
    }


def division_problem(spec: ModelSpec, num_devices: int, num_stages: int) -> str | None:
    """Why stages of this number of devices each are impossible; None if they are possible."""
    return tensor_parallel_problem(spec, num_devices) or pipeline_problem(spec, num_stages)


def stages(spec: ModelSpec, num_stages: int) -> list[range]:
    """The layers of each stage, at least one, so that the largest stage is smallest, in elements of weights
    that a step reads. Of the first that includes the output layer, and not an embedding beside it."""
    costs = _layer_parameters(spec)
    outer = {tensor.name: tensor.size for tensor in outer_tensors(spec)}
    ends = sum(outer.values()) - (0 if spec.is_tied else outer[EMBEDDING])
    sums = [0, *accumulate(costs)]
    # Elements of the largest stage so far, by the number of layers in all of them. No stage is without layers.
    largest = [sys.maxsize, *(ends + total for total in sums[1:])]
    cuts: list[list[int]] = []
    possible = sorted(_starts(spec) - {0})
    for _ in range(1, num_stages):
        best = [
            min(
                ((max(largest[start], sums[stop] - sums[start]), start) for start in possible if start < stop),
                default=_NONE,
            )
            for stop in range(len(sums))
        ]
        largest = [size for size, _ in best]
        cuts.append([start for _, start in best])
    parts: list[range] = []
    stop = spec.num_layers
    for start_of in reversed(cuts):
        parts.append(range(start_of[stop], stop))
        stop = start_of[stop]
    return [range(stop), *reversed(parts)]


def stage_parameters(spec: ModelSpec, num_stages: int) -> list[int]:
    """Elements of the weights of each stage."""
    costs = _layer_parameters(spec)
    found = [sum(costs[layers.start : layers.stop]) for layers in stages(spec, num_stages)]
    found[0] += count_parameters(spec).total - sum(costs)
    return found


def largest_share(spec: ModelSpec, num_stages: int) -> Fraction:
    """Share of all weights in the stage that has most."""
    return Fraction(max(stage_parameters(spec, num_stages)), count_parameters(spec).total)


def rank_share(spec: ModelSpec, num_ranks: int) -> Fraction:
    """Share of all weights that each of several ranks has, which divide every layer."""
    return Fraction(count_parameters(of_one_device(spec, num_ranks)).total, count_parameters(spec).total)


def of_stages(spec: ModelSpec, num_stages: int) -> list[ModelSpec]:
    """The model with the layers of each stage. Only the first has what is before and after the layers."""
    if num_stages == 1:
        return [spec]
    return [
        spec.model_copy(update={"layers": spec.layers[layers.start : layers.stop]})
        for layers in stages(spec, num_stages)
    ]


def most_state_bytes(spec: ModelSpec, num_stages: int, dtype: str, sums_dtype: str) -> int:
    """Bytes of the recurrent states of one sequence, in the stage that has most; 0 if there are none."""
    return max(state_bytes(part, dtype, sums_dtype) for part in of_stages(spec, num_stages)) if spec.has_states else 0


def most_state_input_bytes(spec: ModelSpec, num_stages: int, dtype: str) -> int:
    """Bytes that the stage with most of them keeps of a token that may be taken back."""
    return max(state_input_bytes(part, dtype) for part in of_stages(spec, num_stages)) if spec.has_states else 0


def _layer_parameters(spec: ModelSpec) -> list[int]:
    sizes = {
        layer: sum(tensor.copies * tensor.size for tensor in layer_tensors(spec, layer))
        for layer in dict.fromkeys(spec.layers)
    }
    return [sizes[layer] for layer in spec.layers]
