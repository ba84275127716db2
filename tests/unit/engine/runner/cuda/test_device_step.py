"""The step that layers get on a device, without a model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.engine.runner.plans import admission, ids, make_plan

pytest.importorskip("triton")

from stoker.engine.layers.step_input import StepInput
from stoker.engine.runner.cuda.device_step import DeviceStep
from stoker.engine.runner.cuda.slot_arena import SlotArena
from stoker.engine.runner.kv_cache import KVCache
from stoker.engine.runner.slot_columns import SLOT_COLUMNS, SlotColumn
from stoker.engine.runner.slot_table import SlotTable
from stoker.engine.runner.step_input import build_step_input
from stoker.engine.runner.step_shape import StepShape
from stoker.engine.sampling.sampling_table import SamplingTable
from stoker.model.cache_groups import cache_groups

CPU = torch.device("cpu")


class Model:
    """Records the steps of its layers."""

    model_spec = SimpleNamespace(vocab_size=8)

    def forward(self, steps: list[StepInput], caches: Any, rows: Any) -> tuple[torch.Tensor, None]:
        self.steps = steps
        return torch.zeros(steps[0].num_rows, 8), None

    def logits(self, hidden: torch.Tensor, residual: None, mix: None) -> torch.Tensor:
        return hidden


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs Triton's interpreter")
def test_narrow_layers_get_their_part_of_each_block_and_padding_has_no_slot():
    """Two layers with half the width of the third share its plane: block 3 is block 6 to one and 7 to the other."""
    groups = cache_groups([None] * 3, [2, 2, 1])
    cache = KVCache(
        groups, 8, 4, [(1, 8)], torch.float32, zeros=torch.zeros, tensors_by_layer=[[(1, 4)], [(1, 4)], [(1, 8)]]
    )
    arena = SlotArena(4, 16, 4, 8, CPU, groups.num_groups)
    for table, block in zip(arena.block_ids, (3, 5), strict=True):
        table[2, 0] = block
    model = Model()
    step = DeviceStep(model, cache, arena, 4, 8, 16, 4, CPU, has_guides=False)  # type: ignore[arg-type]
    shape = StepShape(2, 2, 1)
    plan = make_plan(slots=ids(2), num_computed=ids(1), num_tokens=ids(1), num_outputs=ids(1))
    step.send(plan, shape, ids())
    step.compute(shape)
    narrow = groups.layers[0]
    assert narrow == groups.layers[1] != groups.layers[2]
    first, second, wide = model.steps
    block = (3, 5)[narrow or 0]
    assert [each.slot_mapping[0].item() for each in (first, second)] == [2 * block * 4 + 1, (2 * block + 1) * 4 + 1]
    assert [each.block_tables[0, 0].item() for each in (first, second)] == [2 * block, 2 * block + 1]
    assert wide.block_tables[0, 0].item() == 8 - block
    for each in model.steps:
        assert each.slot_mapping[1] < 0
        assert each.seq_slots.tolist() == [2, -1]
        assert each.context_lens.tolist() == [2, 0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs Triton's interpreter")
def test_a_declared_column_is_read_in_a_step_on_the_host_and_on_the_device():
    """One declaration: a value of each sequence, which layers find at the slots of the rows."""
    columns = (*SLOT_COLUMNS, SlotColumn("rope_delta", np.int64, lambda each, _: 10 * len(each.token_ids)))
    groups = cache_groups([None], [1])
    cache = KVCache(groups, 8, 4, [(1, 8)], torch.float32, zeros=torch.zeros)
    host = SlotTable(4, 16, 4, SamplingTable(4, 8, (2,)), columns=columns)
    arena = SlotArena(4, 16, 4, 8, CPU, columns=columns)
    plan = make_plan(
        admissions=[admission(3, [5, 6], [1]), admission(1, [7, 4, 5], [2])],
        slots=ids(1, 3), num_computed=ids(2, 1), num_tokens=ids(1, 1), num_outputs=ids(1, 1),
    )  # fmt: skip
    arena.apply(plan, host.sampling, *host.apply(plan))
    (on_host,) = build_step_input(plan, host, CPU)
    assert torch.from_numpy(host.columns["rope_delta"])[on_host.seq_slots].tolist() == [30, 20]
    model, shape = Model(), StepShape(2, 2, 1)
    step = DeviceStep(model, cache, arena, 4, 8, 16, 4, CPU, has_guides=False)  # type: ignore[arg-type]
    step.send(plan, shape, ids())
    step.compute(shape)
    assert arena.columns["rope_delta"][model.steps[0].seq_slots].tolist() == [30, 20]
    assert arena.sampling.temperature[[1, 3]].tolist() == [1, 1]
