from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from stoker.engine.kernels.capture import NotCapturable
from stoker.engine.layers.step_input import StepInput
from stoker.engine.runner.decode_steps import DecodeSteps
from stoker.engine.runner.step_input import build_step_input
from stoker.engine.runner.step_part import Hidden
from stoker.engine.runner.step_shape import StepFlag

from .plans import ids, make_plan, make_table

CPU = torch.device("cpu")


class Graph:
    """What was captured: the same call, of the tensors that it was given."""

    def __init__(self, compute: Callable[[], Any]) -> None:
        self._compute = compute
        self.output = compute()
        self.num_replays = 0

    def replay(self) -> None:
        self.output = self._compute()
        self.num_replays += 1


class Captures:
    def __init__(self) -> None:
        self.graphs: list[Graph] = []

    def __call__(self, compute: Callable[[], Any]) -> Graph:
        self.graphs.append(Graph(compute))
        return self.graphs[-1]


def added(steps: Sequence[StepInput], received: Hidden | None) -> torch.Tensor:
    """Layers that add the position of each token to its hidden state, and the residual if there is one."""
    assert received is not None
    hidden, residual = received
    hidden = hidden + steps[0].positions[:, None]
    return hidden if residual is None else hidden + residual


def decode_steps(captures: Captures, max_tokens_per_row: int = 1) -> DecodeSteps:
    return DecodeSteps(added, captures, 4, 12, 4, 1, CPU, max_tokens_per_row=max_tokens_per_row)


def step_at(position: int) -> tuple[StepInput, ...]:
    plan = make_plan(slots=ids(0), num_computed=ids(position), num_tokens=ids(1))
    return build_step_input(plan, make_table(), CPU)


def test_steps_whose_shapes_differ_by_a_flag_are_captured_apart():
    """A captured graph with a residual reads one, also where the stage before has sent none."""
    captures = Captures()
    steps = decode_steps(captures)
    hidden, residual = torch.ones(1, 2), torch.full((1, 2), 100.0)
    for position in (3, 5):
        step = step_at(position)
        for received in ((hidden, None), (hidden, residual)):
            shape = steps.shape_of(step[0], received)
            assert shape is not None
            assert shape.flags == (0 if received[1] is None else StepFlag.RESIDUAL)
            found = steps.compute(shape, step, received)
            assert found.tolist() == added(step, received).tolist()
    assert [graph.num_replays for graph in captures.graphs] == [1, 1]


def test_replayed_steps_read_what_was_received():
    captures = Captures()
    steps = decode_steps(captures)
    for value in (1.0, 2.0, 3.0):
        received = torch.full((1, 2), value), None
        shape = steps.shape_of(step_at(3)[0], received)
        assert shape is not None
        assert steps.compute(shape, step_at(3), received).tolist() == [[value + 3] * 2]
    assert len(captures.graphs) == 1


def test_a_replayed_step_reads_the_fields_of_its_flags():
    """Positions of two kinds are one tensor more, and a shape of its own; a step without them is captured apart."""
    captures = Captures()
    steps = DecodeSteps(of_two_kinds, captures, 4, 12, 4, 1, CPU)
    for position in (3, 5, 7):
        for kinds in (None, torch.tensor([[position], [10 * position]])):
            step = tuple(replace(each, rope_positions=kinds) for each in step_at(position))
            shape = steps.shape_of(step[0])
            assert shape is not None
            assert shape.flags == (0 if kinds is None else StepFlag.ROPE_POSITIONS)
            assert steps.compute(shape, step).tolist() == ([position] if kinds is None else [11 * position])
    assert [graph.num_replays for graph in captures.graphs] == [2, 2]


def of_two_kinds(steps: Sequence[StepInput], received: Hidden | None) -> torch.Tensor:
    kinds = steps[0].rope_positions
    return steps[0].positions if kinds is None else kinds.sum(0)


def test_shapes_that_cannot_be_captured_because_of_a_flag_leave_the_others():
    """Ops of a feature that is not captured do not end the capture of all steps."""
    captures = Captures()

    def capture(compute: Callable[[], Any]) -> Graph:
        graph = captures(compute)
        if len(captures.graphs) == 1:
            raise NotCapturable("gather", graph.output)
        return graph

    steps = DecodeSteps(of_two_kinds, capture, 4, 12, 4, 1, CPU)  # type: ignore[arg-type]
    plain = step_at(3)
    kinds = tuple(replace(each, rope_positions=torch.tensor([[3], [30]])) for each in plain)
    shape = steps.shape_of(kinds[0])
    assert shape is not None
    assert steps.compute(shape, kinds).tolist() == [33]
    assert steps.shape_of(kinds[0]) is None
    shape = steps.shape_of(plain[0])
    assert shape is not None
    assert steps.compute(shape, plain).tolist() == steps.compute(shape, plain).tolist() == [3]
    assert captures.graphs[1].num_replays == 1
    assert steps.table == {}


def test_rows_of_the_same_number_of_tokens_are_captured():
    """Three tokens in each of two rows; rows that differ, or have more tokens, are not."""
    captures = Captures()
    steps = decode_steps(captures, max_tokens_per_row=3)
    hidden = torch.ones(6, 2)
    for computed in (3, 5):
        plan = make_plan(slots=ids(0, 2), num_computed=ids(computed, 1), num_tokens=ids(3, 3), num_outputs=ids(3, 3))
        step = build_step_input(plan, make_table(), CPU)
        shape = steps.shape_of(step[0], (hidden, None))
        assert shape == (6, 2, 3, 0, 0)
        found = steps.compute(shape, step, (hidden, None))
        assert found[:, 0].tolist() == [computed + 1, computed + 2, computed + 3, 2, 3, 4]
    assert [graph.num_replays for graph in captures.graphs] == [1]
    for counts in (ids(3, 2), ids(4, 4)):
        plan = make_plan(slots=ids(0, 2), num_computed=ids(3, 1), num_tokens=counts, num_outputs=ids(1, 1))
        assert steps.shape_of(build_step_input(plan, make_table(), CPU)[0]) is None


def test_a_step_with_a_prompt_or_with_too_many_rows_has_no_shape():
    steps = decode_steps(Captures())
    (prompt,) = build_step_input(make_plan(num_tokens=ids(2)), make_table(), CPU)
    assert steps.shape_of(prompt) is None
    rows = ids(0, 1, 2, 3, 0)
    wide = make_plan(
        slots=rows, num_computed=ids(1, 1, 1, 1, 2), num_tokens=ids(1, 1, 1, 1, 1), num_outputs=ids(*[1] * 5)
    )
    assert steps.shape_of(build_step_input(wide, make_table(), CPU)[0]) is None
    assert steps.shape_of(step_at(3)[0]) == (1, 1, 1, 0, 0)
