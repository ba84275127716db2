"""Matrices of all experts of a layer in one pair of tensors, as one pair for each expert.

Adapters in use have experts in four layouts, and names and shapes say which it is. Pairs of a single expert need
nothing of this module. E experts, rank r:

- Two dimensions, A [r * E, inputs] and B [outputs, r * E], as PEFT's `target_parameters` writes them. A is (E, r,
  inputs), and B is (outputs, r, E): in B the expert runs fastest. Wrappers of two parameters of a module differ only by
  `base_layer` in their names, so shapes say which parameter it is. PEFT takes a parameter that is stored as [E, inputs,
  outputs] for [E, outputs, inputs] unless its class says so: A and B have changed places then.
- Three dimensions, A [E, r, inputs] and B [E, outputs, r].
- The same with 1 in place of E where all experts share a matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...model.adapter import StoredMatrix
from ...model.families import known_family
from ...model.feed_forwards import Experts
from ...model.spec import ModelSpec
from ..errors import ModelFilesError
from .adapter_tensors import Pair

_GATE_UP = ("gate_proj", "up_proj")


@dataclass(frozen=True, slots=True)
class _Form:
    """How a pair is stored: the parts of an expert that it adapts, and whether A and B have changed places.

    is_parameter: classes of transformers have a parameter of this name.
    """

    name: str
    parts: tuple[str, ...]
    inputs: int
    outputs: int  # of all parts
    has_changed_places: bool
    is_parameter: bool = True


@dataclass(frozen=True, slots=True)
class ExpertMatrices:
    """A and B of one part of one expert."""

    expert: int
    part: str  # such as `up_proj`
    a: StoredMatrix
    b: StoredMatrix


@dataclass(frozen=True, slots=True)
class StackedPair:
    """parameter: the name that rank and alpha patterns have for it."""

    parameter: str
    rank: int
    matrices: tuple[ExpertMatrices, ...]


def split_pair(file: Path, pair: Pair, spec: ModelSpec, experts: Experts, part: str | None) -> StackedPair:
    """The matrices of each expert of a pair of all.

    part: the parameter, if the name of the module says it.

    Raises ModelFilesError, code M311, for shapes that fit no layout.
    """
    dims = len(pair.a.shape)
    if dims not in (2, 3) or len(pair.b.shape) != dims or pair.bias is not None:
        raise _unfit(file, pair, spec, experts)
    form = _form(file, pair, spec, experts, part)
    rank = pair.a.shape[0] // experts.count if dims == 2 else pair.a.shape[1]
    is_interleaved = known_family(spec.architecture).fused_experts == "interleaved"
    make = _of_two_dimensions if dims == 2 else _of_three_dimensions
    return StackedPair(form.name, rank, tuple(make(pair, form, experts.count, rank, is_interleaved)))


def _form(file: Path, pair: Pair, spec: ModelSpec, experts: Experts, part: str | None) -> _Form:
    """The only form that the shapes fit, or what the family stores if a square matrix leaves it open."""
    forms = [form for form in _forms(spec, experts) if (form.name == part if part else form.is_parameter)]
    fitting = [form for form in forms if _fits(pair, form, experts.count)]
    if len(fitting) > 1:
        has_changed = known_family(spec.architecture).fused_experts == "columns"
        fitting = [form for form in fitting if form.has_changed_places == has_changed]
    if len(fitting) != 1:
        raise _unfit(file, pair, spec, experts)
    return fitting[0]


def _forms(spec: ModelSpec, experts: Experts) -> Iterator[_Form]:
    hidden, width = spec.hidden_size, experts.width
    for has_changed in False, True:
        if experts.is_gated:
            yield _Form("gate_up_proj", _GATE_UP, hidden, 2 * width, has_changed)
            yield _Form("gate_proj", ("gate_proj",), hidden, width, has_changed, is_parameter=False)
        yield _Form("up_proj", ("up_proj",), hidden, width, has_changed, is_parameter=not experts.is_gated)
        yield _Form("down_proj", ("down_proj",), width, hidden, has_changed)


def _fits(pair: Pair, form: _Form, count: int) -> bool:
    inputs, outputs = (form.outputs, form.inputs) if form.has_changed_places else (form.inputs, form.outputs)
    if len(pair.a.shape) == 2:
        (rows, columns), (outs, ranks) = pair.a.shape, pair.b.shape
        return (columns, outs, ranks) == (inputs, outputs, rows) and rows % count == 0 < rows
    (of_a, rank, columns), (of_b, outs, ranks) = pair.a.shape, pair.b.shape
    is_sized = of_a in (1, count) and of_b in (1, count)
    return not form.has_changed_places and is_sized and (columns, outs, ranks) == (inputs, outputs, rank)


def _of_two_dimensions(
    pair: Pair, form: _Form, count: int, rank: int, is_interleaved: bool
) -> Iterator[ExpertMatrices]:
    width = form.outputs // len(form.parts)
    for expert in range(count):
        for index, part in enumerate(form.parts):
            outs, chosen = _outputs(width, len(form.parts), index, is_interleaved)
            if form.has_changed_places:  # "A" is (E, r, outputs), "B" is (inputs, r, E)
                a_view, a_chosen = (form.inputs, rank, count), ((2, expert),)
                b_view, b_chosen = (count, rank, *outs), ((0, expert), *((2 + at, each) for at, each in chosen))
                a = StoredMatrix(pair.b_name, a_view, a_chosen, is_transposed=True)
                b = StoredMatrix(pair.a_name, b_view, b_chosen, is_transposed=True)
            else:
                a = StoredMatrix(pair.a_name, (count, rank, form.inputs), ((0, expert),))
                b = StoredMatrix(pair.b_name, (*outs, rank, count), (*chosen, (len(outs) + 1, expert)))
            yield ExpertMatrices(expert, part, a, b)


def _of_three_dimensions(
    pair: Pair, form: _Form, count: int, rank: int, is_interleaved: bool
) -> Iterator[ExpertMatrices]:
    width, of_a, of_b = form.outputs // len(form.parts), pair.a.shape[0], pair.b.shape[0]
    for expert in range(count):
        for index, part in enumerate(form.parts):
            outs, chosen = _outputs(width, len(form.parts), index, is_interleaved)
            a = StoredMatrix(pair.a_name, (of_a, rank, form.inputs), ((0, expert if of_a > 1 else 0),))
            at_expert = (0, expert if of_b > 1 else 0)
            b = StoredMatrix(pair.b_name, (of_b, *outs, rank), (at_expert, *((1 + at, each) for at, each in chosen)))
            yield ExpertMatrices(expert, part, a, b)


def _outputs(
    width: int, count: int, index: int, is_interleaved: bool
) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """The outputs of a pair as dimensions of a view, and the choice of one part among them."""
    if count == 1:
        return (width,), ()
    return ((width, count), ((1, index),)) if is_interleaved else ((count, width), ((0, index),))


def _unfit(file: Path, pair: Pair, spec: ModelSpec, experts: Experts) -> ModelFilesError:
    return ModelFilesError(
        f"{file}: tensors `{pair.a_name}` and `{pair.b_name}` have shapes {list(pair.a.shape)} and "
        f"{list(pair.b.shape)}; {experts.count} experts with {experts.width} of {spec.hidden_size} elements need A "
        "[rank * experts, inputs] and B [outputs, rank * experts], or A [experts, rank, inputs] and B [experts, "
        "outputs, rank]",
        code="M311",
    )
