"""What holds for every op with a state per sequence, and the rows of a step that show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from stoker.engine.kernels import KernelSet

from .levels import LEVEL_NAMES, assert_close, kernels_of

LEVELS = pytest.mark.parametrize("level", LEVEL_NAMES)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
ROWS = [(0, 19, 2), (5, 1, 0), (0, 1, 4), (3, 35, 1)]  # new and continued, one token and many; slots of six
SIZES = [count for _, count, _ in ROWS]
_OTHER_SLOTS = [3, 5]
Inputs = dict[str, Any]  # "state" is that of six slots, before the step


@dataclass
class Step:
    query_start: torch.Tensor
    context_lens: torch.Tensor
    seq_slots: torch.Tensor
    max_query_len: int


def step_of(*rows: tuple[int, int, int]) -> Step:
    """rows: tokens computed before, tokens of the step, slot."""
    counts = [count for _, count, _ in rows]
    return Step(
        torch.tensor([0, *counts], dtype=torch.int32).cumsum(0).int(),
        torch.tensor([before + count for before, count, _ in rows], dtype=torch.int32),
        torch.tensor([slot for *_, slot in rows], dtype=torch.int32),
        max(counts, default=0),
    )


@dataclass(frozen=True)
class StateOp:
    """call: computes the outputs of a step, and changes the state. by_token: the inputs with a row for each token."""

    call: Callable[[KernelSet, Inputs, torch.Tensor, Step], torch.Tensor]
    by_token: tuple[str, ...]

    def run(self, kernels: KernelSet, inputs: Inputs, state: torch.Tensor, step: Step) -> torch.Tensor:
        return self.call(kernels, inputs, state, step).clone()

    def by_row(self, inputs: Inputs) -> list[Inputs]:
        """The inputs of each of ROWS."""
        parts = zip(*(inputs[name].split(SIZES) for name in self.by_token), strict=True)
        return [inputs | dict(zip(self.by_token, part, strict=True)) for part in parts]

    def compare(
        self,
        kernels: KernelSet,
        inputs: Inputs,
        in_float64: Callable[[Inputs, torch.Tensor, bool], torch.Tensor],
        *,
        absolute: float,
        of_state: float,
    ) -> torch.Tensor:
        """Check outputs and states of ROWS, and return the outputs.

        Args:
            in_float64: the exact outputs of one sequence, by its inputs, its state, which is changed, and whether it
                is new.
            absolute, of_state: absolute error of outputs, and of states.
        """
        exact, state = inputs["state"].double(), inputs["state"].clone()
        found = self.run(kernels, inputs, state, step_of(*ROWS))
        for (computed, _, slot), part, own in zip(ROWS, self.by_row(inputs), found.split(SIZES), strict=True):
            if not computed:
                exact[slot] = 0
            assert_close(own, in_float64(part, exact[slot], not computed), absolute=absolute)
            torch.testing.assert_close(state[slot].double(), exact[slot], rtol=1e-5, atol=of_state)
        assert torch.equal(state[_OTHER_SLOTS], inputs["state"][_OTHER_SLOTS])
        return found

    def check_in_any_batch(self, level: str, dtype: torch.dtype, inputs: Inputs) -> None:
        """Bit for bit, with any number of threads: ROWS one by one, their tokens in steps of 1, 3 and 16.

        With `model.batch_invariant`; the C++ kernels are the same without.
        """
        is_torch = level == "torch"
        sums = inputs["state"].clone()
        kernels = kernels_of(level, dtype, threads=2, batch_invariant=is_torch)
        together = self.run(kernels, inputs, sums, step_of(*ROWS)).split(SIZES)
        kernels = kernels_of(level, dtype, threads=1, batch_invariant=is_torch)
        for (computed, count, slot), part, expected in zip(ROWS, self.by_row(inputs), together, strict=True):
            for most in (1, 3, 16):
                own_sums, found = inputs["state"].clone(), []
                for first in range(0, count, most):
                    own = {name: part[name][first : first + most] for name in self.by_token}
                    step = step_of((computed + first, min(most, count - first), slot))
                    found.append(self.run(kernels, part | own, own_sums, step))
                assert torch.equal(torch.cat(found), expected)
                assert torch.equal(own_sums[slot], sums[slot])

    def check_new_sequence(self, kernels: KernelSet, inputs: Inputs) -> None:
        """A new sequence begins with zeros, whatever its slot holds. inputs: of one token."""
        results = []
        for left in (0.0, torch.nan):
            sums = torch.full_like(inputs["state"][:2], left)
            results.append(self.run(kernels, inputs, sums, step_of((0, 1, 1))))
            assert not sums[1].isnan().any()
        assert torch.equal(*results)

    def check_narrow_state(self, kernels: KernelSet, inputs: Inputs) -> None:
        """A state in bfloat16 is rounded after the last token of a row."""
        narrow = inputs["state"].bfloat16()
        wide = narrow.float()
        found = self.run(kernels, inputs, narrow, step_of(*ROWS))
        assert torch.equal(found, self.run(kernels, inputs, wide, step_of(*ROWS)))
        assert torch.equal(narrow, wide.bfloat16())
