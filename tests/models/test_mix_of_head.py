"""A mix that adds to the output layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.engine.runner.plans import admission, ids, make_plan

from stoker.engine.layers.linear import Linear
from stoker.engine.layers.step_input import StepInput
from stoker.engine.runner.divided_step import DividedSteps
from stoker.engine.runner.load_runner import host_parts, load_runner
from stoker.engine.runner.loaded_model import load_on_cpu
from stoker.engine.runner.materials import Materials
from stoker.engine.runner.runner import Parts, Runner
from stoker.engine.runner.step_features import Columns, StepFeature
from stoker.engine.runner.step_shape import StepFlag
from stoker.engine.step.plan import StepPlan

from .conftest import Saved
from .engine import MACHINE, WITH_GPU, resolved

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [13, 14], [15, 16, 17, 18]]  # by slot, in block `slot` of 8 tokens
ROWS = ids(0, 1, 2, 3)
# Padding rows compute with uninitialised memory, for which numpy warns.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")


def load(
    folder: Path, place: Path, device: str, features: tuple[StepFeature, ...] = (), **sections: dict[str, Any]
) -> Runner:
    if device == "cpu":
        parts_of, load, machine = host_parts(), load_on_cpu, MACHINE
    else:
        pytest.importorskip("triton")
        if torch.cuda.is_available():
            pytest.skip("needs Triton's interpreter")
        from stoker.engine.runner.cuda.device_parts import sampling_parts
        from stoker.engine.runner.cuda.loading import load_on_device

        parts_of, load, machine = sampling_parts(), load_on_device, WITH_GPU

    def with_features(made: Materials) -> Parts:
        return parts_of(replace(made, features=features))

    scheduler = {"max_num_batched_tokens": 16}
    settings = resolved(folder, place, machine, device={"device": device}, scheduler=scheduler, **sections)
    return load_runner(settings, with_features, load)


def prompts() -> StepPlan:
    begun = [admission(slot, tokens, [slot], temperature=0) for slot, tokens in enumerate(PROMPTS)]
    lengths = ids(*map(len, PROMPTS))
    return make_plan(
        admissions=begun, slots=ROWS, num_computed=0 * lengths, num_tokens=lengths, num_outputs=ids(1, 1, 1, 1)
    )


@dataclass
class Favours:
    """Has some tokens of the step followed by token 7."""

    chosen: torch.Tensor  # [T] bool
    projection: Linear

    def added(self, layer: Linear, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        assert len(x) == len(self.chosen), "the mix is of other tokens than the layer's input"
        if layer is self.projection:
            out[:, 7] += 1000.0 * self.chosen
        return out

    def of_experts(self, layer: object) -> None:
        return None

    def adapt_rows(self, token_ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return rows

    def of_tokens(self, tokens: torch.Tensor) -> Favours:
        return replace(self, chosen=self.chosen[tokens])


@pytest.mark.parametrize("steps", ["whole", "divided", "cuda"])
def test_the_output_layer_gets_the_mix_of_its_tokens(steps: str, saved: Callable[[str], Saved], tmp_path: Path):
    """The sequence in slot 1 has an adapter, and others have none, in prompts and when they are continued."""
    device = "cuda" if steps == "cuda" else "cpu"
    projection: list[Linear] = []

    def mix_of(step: StepInput, columns: Columns) -> Favours:
        tokens = torch.arange(step.num_tokens, dtype=torch.int32)
        rows = torch.searchsorted(step.query_start, tokens, right=True) - 1
        return Favours(step.seq_slots[rows.clamp(max=step.num_rows - 1)] == 1, *projection)

    has_mix = StepFeature(StepFlag.MIX, lambda plan, slots: 1 in plan.slots, mix_of)
    folder = saved("llama")[1]
    plain, mixed = load(folder, tmp_path, device), load(folder, tmp_path, device, (has_mix,))
    projection.append(mixed.loaded.whole.logits.projection)  # type: ignore[attr-defined]
    if steps == "divided":
        mixed.parts.body._division = DividedSteps(2, 1, 1)  # type: ignore[attr-defined]
    first = prompts()
    then = make_plan(
        step=1, slots=ROWS, num_computed=first.num_tokens, num_tokens=ids(1, 1, 1, 1), num_outputs=ids(1, 1, 1, 1)
    )
    for plan in (first, then):
        expected = plain.execute(plan).token_ids
        found = mixed.execute(plan).token_ids
        assert found[1] == 7 != expected[1]
        assert found[[0, 2, 3]].tolist() == expected[[0, 2, 3]].tolist()
