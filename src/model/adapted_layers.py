"""The matrices of a model to whose products adapters can add, by their names in tensors.py without `.weight`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from .spec import ModelSpec
from .tensors import EMBEDDING, FUSED, OUTPUT, model_tensors

_EXPERT = re.compile(r".*\.experts\.\d+\..*")


def linear_shapes(spec: ModelSpec) -> Iterator[tuple[str, tuple[int, int]]]:
    """Name and [outputs, inputs] of each, in the order of the model; those of experts too."""
    for tensor in model_tensors(spec):
        if tensor.is_matrix or tensor.name == OUTPUT:
            for copy in range(tensor.copies):
                name = tensor.name.replace("{}", str(copy)).removesuffix(".weight")
                yield name, (tensor.shape[0], tensor.shape[1])
    if spec.is_tied:
        yield OUTPUT.removesuffix(".weight"), (spec.vocab_size, spec.hidden_size)


def is_of_expert(name: str) -> bool:
    return _EXPERT.fullmatch(name) is not None


def is_adapted(name: str, chosen: Collection[str]) -> bool:
    """Whether `lora.lora_target_modules` has a matrix, by the end of its name or by that of a fused layer with it.

    chosen: all if it is empty.
    """
    if not chosen:
        return True
    place, _, last = name.rpartition(".")
    wholes = [f"{place}.{whole}" for whole, parts in FUSED.items() if last in parts]
    is_named = any(f".{own}".endswith(f".{each}") for own in (name, *wholes) for each in chosen)
    return is_named or (is_of_expert(name) and "experts" in chosen)


def embedding_shape(spec: ModelSpec, chosen: Collection[str]) -> list[tuple[int, int]]:
    """[outputs, inputs] of the embedding, whose inputs are the tokens, if an adapter can change it. chosen: as of
    `is_adapted`. Each device has all of what an adapter changes."""
    is_own = is_adapted(EMBEDDING.removesuffix(".weight"), chosen)
    return [(spec.hidden_size, spec.vocab_size)] if is_own else []


def computed_shapes(spec: ModelSpec, chosen: Collection[str], *, of_experts: bool) -> list[tuple[int, int]]:
    """[outputs, inputs] of all matrices that an adapter can change, of single experts or of linear layers.

    chosen: as of `is_adapted`.
    """
    shapes = [(name, shape) for name, shape in linear_shapes(spec) if is_of_expert(name) == of_experts]
    return [shape for name, shape in shapes if is_adapted(name, chosen)]
