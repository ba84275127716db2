"""Every kind of inputs fills every field of StepInput, or this file says why it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from stoker.engine.kernels.capture import CapturedGraph
from stoker.engine.layers.step_input import GivenRows, StepInput
from stoker.engine.runner.context_part import ContextPart
from stoker.engine.runner.decode_steps import DecodeSteps
from stoker.engine.runner.divided_step import DividedSteps
from stoker.engine.runner.earlier_ids import earlier_ids
from stoker.engine.runner.inputs import HostInputs
from stoker.engine.runner.kv_cache import KVCache
from stoker.engine.runner.shared_step import SharedSteps
from stoker.engine.runner.slot_columns import SECOND_TEXT, SLOT_COLUMNS, SlotColumn
from stoker.engine.runner.slot_table import SlotTable
from stoker.engine.runner.step_features import TOKEN_IDS, Columns, StepFeature, fields_of, flags_of
from stoker.engine.runner.step_part import Hidden, StepPart
from stoker.engine.runner.step_shape import StepFlag, StepShape
from stoker.engine.runner.token_types import token_types
from stoker.engine.sampling.sampling_table import SamplingTable
from stoker.engine.step.plan import StepPlan
from stoker.model.cache_groups import cache_groups

from .plans import admission, ids, make_plan

CPU = torch.device("cpu")
NUM_SLOTS, MODEL_LEN, BLOCK_SIZE = 4, 16, 4
COLUMNS = (*SLOT_COLUMNS, SlotColumn("delta", np.int64, lambda each, _: 10 * each.num_prompt_tokens))
# Row 0 decodes its fourth token, row 1 computes the tokens 1 to 4 of a prompt of five.
PLAN = make_plan(
    admissions=[admission(3, [5, 6, 7, 8], [1]), admission(1, [9, 10, 11, 12, 13], [2, 3])],
    slots=ids(3, 1), num_computed=ids(3, 1), num_tokens=ids(1, 4), num_outputs=ids(1, 1),
)  # fmt: skip
FLAGS = StepFlag.MIX | StepFlag.ROPE_POSITIONS | StepFlag.GIVEN | StepFlag.EARLIER_IDS | StepFlag.TOKEN_TYPES

# Fields that have their default because they are of another kind of inputs.
BY_RANK, VISIBLE = "by_rank", "visible"  # of steps that ranks share, and of ranks that keep some tokens of a context
FROM_LAYERS = {"state_inputs"}  # no input of the layers: the body gives them a list that they fill


@dataclass
class OfTokens:
    """A mix: a number of each token."""

    values: torch.Tensor

    def of_tokens(self, tokens: torch.Tensor) -> OfTokens:
        return OfTokens(self.values[tokens])

    def clone(self) -> OfTokens:
        return OfTokens(self.values.clone())

    def copy_(self, other: OfTokens) -> None:
        self.values.copy_(other.values)


def by_token(step: StepInput, columns: Columns) -> torch.Tensor:
    rows = torch.searchsorted(step.query_start, torch.arange(step.num_tokens, dtype=torch.int32), right=True) - 1
    return columns["delta"][step.seq_slots[rows.clamp(max=step.num_rows - 1)].long()]


def has_delta(plan: StepPlan, slots: SlotTable) -> bool:
    return bool(slots.columns["delta"][plan.slots].any())


FEATURES = (
    StepFeature(StepFlag.MIX, has_delta, lambda step, columns: OfTokens(by_token(step, columns))),
    StepFeature(
        StepFlag.ROPE_POSITIONS,
        has_delta,
        lambda step, columns: torch.stack((step.positions, step.positions + by_token(step, columns))),
    ),
    StepFeature(StepFlag.GIVEN, has_delta, lambda step, columns: GivenRows(step.positions[:1], torch.ones(1, 8))),
    StepFeature(StepFlag.EARLIER_IDS, has_delta, lambda step, columns: earlier_ids(step, columns[TOKEN_IDS], 2)),
    StepFeature(StepFlag.TOKEN_TYPES, has_delta, lambda step, columns: token_types(step, columns[SECOND_TEXT])),
)


def left_out(step: StepInput) -> set[str]:
    """The fields that have their defaults."""
    optional = [each for each in fields(step) if each.init and each.default is not MISSING]
    return {each.name for each in optional if getattr(step, each.name) is each.default} - FROM_LAYERS


def make_cache(part: ContextPart | None = None) -> KVCache:
    return KVCache(cache_groups([None], [1]), 8, BLOCK_SIZE, [(1, 8)], torch.float32, zeros=torch.zeros, part=part)


def host_inputs(part: ContextPart | None = None, features: tuple[StepFeature, ...] = FEATURES) -> HostInputs:
    slots = SlotTable(NUM_SLOTS, MODEL_LEN, BLOCK_SIZE, SamplingTable(NUM_SLOTS, 50, (2,)), columns=COLUMNS)
    loaded: Any = SimpleNamespace(cache=make_cache(part), device=CPU)
    made: Any = SimpleNamespace(slots=slots, loaded=loaded, features=features)
    inputs = HostInputs(made)
    inputs.apply(PLAN)
    return inputs


class Ranks:
    """Rank 0 of two, which exchanges nothing."""

    rank, size = 0, 2

    def of_all(self, values: torch.Tensor) -> list[torch.Tensor]:
        return [values, values]


def parts_of(division: Callable[[HostInputs], Any]) -> list[StepInput]:
    inputs = host_inputs()
    steps: list[StepInput] = []

    def forward(part: StepPart) -> Hidden:
        (step,) = inputs.views(part.plan, part.slots_by_rank)
        steps.append(step)
        return torch.zeros(step.num_tokens, 1), None

    division(inputs).compute(PLAN, None, forward)
    return steps


def whole() -> StepInput:
    (step,) = host_inputs().views(PLAN)
    return step


def of_device() -> StepInput:
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("needs Triton's interpreter")
    from stoker.engine.runner.cuda.device_step import DeviceStep
    from stoker.engine.runner.cuda.slot_arena import SlotArena

    class Model:
        """Records the step of its layer."""

        model_spec = SimpleNamespace(vocab_size=50)

        def forward(self, steps: list[StepInput], caches: Any, rows: Any) -> tuple[torch.Tensor, None]:
            self.step, self.wanted = steps[0], rows
            return torch.zeros(steps[0].num_rows, 50), None

        def logits(self, hidden: torch.Tensor, residual: None, mix: OfTokens) -> torch.Tensor:
            assert torch.equal(mix.values, self.step.mix.of_tokens(self.wanted).values)  # type: ignore[union-attr, arg-type]
            return hidden

    slots = SlotTable(NUM_SLOTS, MODEL_LEN, BLOCK_SIZE, SamplingTable(NUM_SLOTS, 50, (2,)), columns=COLUMNS)
    arena = SlotArena(NUM_SLOTS, MODEL_LEN, BLOCK_SIZE, 50, CPU, columns=COLUMNS)
    arena.apply(PLAN, slots.sampling, *slots.apply(PLAN))
    model: Any = Model()
    made = DeviceStep(
        model, make_cache(), arena, NUM_SLOTS, 8, MODEL_LEN, BLOCK_SIZE, CPU, has_guides=False, features=FEATURES
    )
    shape = StepShape(8, 3, 0, flags_of(FEATURES, PLAN, slots))
    made.send(PLAN, shape, ids())
    made.compute(shape)
    return model.step


def test_a_step_of_the_host():
    assert left_out(whole()) == {BY_RANK, VISIBLE}


def test_the_parts_of_a_divided_step():
    found = parts_of(lambda _: DividedSteps(2, 1, 1))
    assert [left_out(step) for step in found] == [{BY_RANK, VISIBLE}] * 2
    expected = whole().rope_positions
    assert expected is not None
    assert expected[1].tolist() == [3 + 40, 1 + 50, 2 + 50, 3 + 50, 4 + 50]
    assert torch.equal(torch.cat([step.rope_positions for step in found], dim=1), expected)


def test_the_ids_before_each_token_are_those_of_its_sequence():
    """Row 0 decodes. The parts of a divided step and the steps of a device have the same ids as a whole step."""
    expected = [[7, 9, 10, 11, 12], [6, -1, 9, 10, 11]]
    divided = parts_of(lambda _: DividedSteps(2, 1, 1))
    of_parts = torch.cat([step.earlier_ids for step in divided if step.earlier_ids is not None], dim=1)
    for found in (whole().earlier_ids, of_parts, of_device().earlier_ids):
        assert found is not None
        assert found[:, :5].tolist() == expected


def test_the_part_of_a_rank_in_a_shared_step():
    (found,) = parts_of(lambda inputs: SharedSteps(Ranks(), inputs.slots))  # type: ignore[arg-type]
    assert left_out(found) == {VISIBLE}


def test_a_step_of_a_rank_that_keeps_a_part_of_each_context():
    (found,) = host_inputs(ContextPart(0, 2, 1, BLOCK_SIZE)).views(PLAN)
    assert left_out(found) == {BY_RANK}


def test_a_step_of_some_tokens():
    """Layers after the first read no embedding, and those for which a step is narrowed keep no state."""
    assert left_out(whole().of_tokens(torch.tensor([0, 4]))) == {BY_RANK, VISIBLE, "given", "seq_slots"}


def test_a_step_of_a_device():
    found, expected = of_device(), whole()
    assert left_out(found) == {BY_RANK, VISIBLE}
    assert found.rope_positions is not None
    assert expected.rope_positions is not None
    assert torch.equal(found.rope_positions[:, : expected.num_tokens], expected.rope_positions)


def test_a_captured_step():
    """Rows that the embedding is given are not captured: each step has another number of them."""
    views: list[StepInput] = []

    def capture(compute: Callable[[], Any]) -> CapturedGraph:
        return CapturedGraph(compute(), lambda: None)

    def compute(steps: Sequence[StepInput], received: Hidden | None) -> None:
        views.extend(steps)

    inputs = host_inputs(features=tuple(each for each in FEATURES if each.flag != StepFlag.GIVEN))
    plan = make_plan(slots=ids(3, 1), num_computed=ids(3, 4), num_tokens=ids(1, 1), num_outputs=ids(1, 1))
    steps = inputs.views(plan)
    decode = DecodeSteps(compute, capture, NUM_SLOTS, MODEL_LEN, BLOCK_SIZE, 1, CPU)
    shape = decode.shape_of(steps[0])
    assert shape is not None
    decode.compute(shape, steps)
    assert left_out(views[0]) == {BY_RANK, VISIBLE, "given"}
    assert decode.shape_of(replace(steps[0], given=GivenRows(torch.tensor([0]), torch.ones(1, 8)))) is None


def test_steps_without_a_feature_do_not_have_its_field():
    features = tuple(StepFeature(each.flag, lambda plan, slots: False, each.fill) for each in FEATURES)
    (step,) = host_inputs(features=features).views(PLAN)
    assert set(fields_of(FLAGS)) <= left_out(step)
    assert flags_of(FEATURES, PLAN, host_inputs().slots) == FLAGS
