"""DecodeSteps: decode steps on a CPU, captured at the first step of each number of rows and replayed from then on.

Captured graphs read their inputs from the same tensors, so a step is copied into those before each replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..kernels import spans
from ..kernels.capture import Capture, CapturedGraph, NotCapturable, TooLarge
from ..layers.step_input import StepInput

_Size = tuple[int, int | None]  # rows, and rows of experts


class DecodeSteps:
    def __init__(
        self,
        compute: Callable[[Sequence[StepInput]], Any],
        capture: Capture | None,
        max_rows: int,
        max_model_len: int,
        block_size: int,
        num_views: int,
        device: torch.device,
        num_rows_of_experts: Callable[[], int | None] = lambda: 0,
    ) -> None:
        """
        compute: what is captured: a tensor or several, of all tokens of a step, for each view of the blocks
            (model/cache_groups.py).
        capture: None where nothing can be captured.
        max_rows: of a step that is captured. There are at most `max_rows` graphs, some 80 KB each for 28 layers; more
            with replicas that share experts (config/plan/estimate.py).
        num_rows_of_experts: on which the graph of the step that is computed depends too; None of a step that is not
            captured.
        """
        self._compute, self._capture = compute, capture
        self._max_rows, self._max_model_len = max_rows, max_model_len
        self._num_rows_of_experts = num_rows_of_experts
        self._graphs: dict[_Size, tuple[tuple[StepInput, ...], CapturedGraph]] = {}
        self._too_large: set[_Size] = set()
        self.table: dict[str, str] = {}  # the row of the start-up table, where capture failed

        def column(count: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(count, dtype=dtype, device=device)

        if capture is not None:
            self._token_ids = column(max_rows, torch.int64)
            self._positions = column(max_rows, torch.int64)
            self._slot_mapping = column(num_views * max_rows, torch.int64).view(num_views, max_rows)
            self._context_lens = column(max_rows, torch.int32)
            self._seq_slots = column(max_rows, torch.int32)
            self._query_start = torch.arange(max_rows + 1, dtype=torch.int32, device=device)
            max_blocks = -(-max_model_len // block_size)
            tables = column(num_views * max_rows * max_blocks, torch.int32)
            self._block_tables = tables.view(num_views, max_rows, max_blocks)

    def takes(self, step: StepInput) -> bool:
        """step: for any view. None while a profile is recorded: it shows the calls of a replayed step as one."""
        if spans.is_profiling:
            return False
        is_small = step.max_query_len == 1 and step.num_rows <= self._max_rows
        if self._capture is None or not is_small or self._num_rows_of_experts() is None:
            return False
        return self._size_of(step) not in self._too_large

    def compute(self, steps: Sequence[StepInput]) -> Any:
        """What `compute` returns, valid until the next step. Only for a step that `takes` accepts."""
        found = self._graphs.get(self._size_of(steps[0]))
        if found is None:
            return self._first(steps)
        inputs, graph = found
        _fill(inputs, steps)
        graph.replay()
        return graph.output

    def _size_of(self, step: StepInput) -> _Size:
        return step.num_rows, self._num_rows_of_experts()

    def forget(self) -> None:
        """Captured graphs: the tensors that they read are replaced."""
        self._graphs.clear()

    def _first(self, steps: Sequence[StepInput]) -> Any:
        assert self._capture is not None
        rows = steps[0].num_rows
        inputs = tuple(
            StepInput(
                token_ids=self._token_ids[:rows],
                positions=self._positions[:rows],
                slot_mapping=mapping[:rows],
                query_start=self._query_start[: rows + 1],
                context_lens=self._context_lens[:rows],
                block_tables=tables[:rows],
                max_query_len=1,
                seq_slots=self._seq_slots[:rows],
                max_context_len=self._max_model_len,  # the step's own would be a constant of the captured graph
            )
            for mapping, tables in zip(self._slot_mapping, self._block_tables, strict=True)
        )
        _fill(inputs, steps)
        try:
            graph = self._capture(lambda: self._compute(inputs))
        except NotCapturable as error:
            if isinstance(error, TooLarge):
                self._too_large.add(self._size_of(steps[0]))
            else:
                self._capture = None
                self.table = {"decode_step": f"op by op: {error}"}
            return self._compute(steps) if error.output is None else error.output
        self._graphs[self._size_of(steps[0])] = inputs, graph
        return graph.output


def _fill(inputs: Sequence[StepInput], steps: Sequence[StepInput]) -> None:
    first, step = inputs[0], steps[0]  # what all views have in common
    first.token_ids.copy_(step.token_ids)
    first.positions.copy_(step.positions)
    first.context_lens.copy_(step.context_lens)
    first.seq_slots.copy_(step.seq_slots)
    for group, step in zip(inputs, steps, strict=True):
        group.slot_mapping.copy_(step.slot_mapping)
        group.block_tables[:, : step.block_tables.shape[1]].copy_(step.block_tables)
