"""DecodeSteps: decode steps on a CPU, captured at the first step of each shape and replayed from then on.

Captured graphs read their inputs from the same tensors, so a step is copied into those before each replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..kernels import spans
from ..kernels.capture import Capture, CapturedGraph, NotCapturable, TooLarge
from ..layers.step_input import StepInput
from .step_features import FIELDS, fields_of
from .step_part import Hidden
from .step_shape import StepFlag, StepShape

_Inputs = tuple[tuple[StepInput, ...], Hidden | None]


class DecodeSteps:
    def __init__(
        self,
        compute: Callable[[Sequence[StepInput], Hidden | None], Any],
        capture: Capture | None,
        max_rows: int,
        max_model_len: int,
        block_size: int,
        num_views: int,
        device: torch.device,
        num_rows_of_experts: Callable[[], int | None] = lambda: 0,
        max_tokens_per_row: int = 1,
        max_drafted: int | None = None,
    ) -> None:
        """
        compute: what is captured: a tensor or several, of all tokens of a step, for each view of the blocks
            (model/cache_groups.py), and of the hidden states of the stage before, if there is one.
        capture: None where nothing can be captured.
        max_rows: of a step that is captured. There are at most `max_rows` graphs, some 80 KB each for 28 layers; more
            with replicas that share experts (config/plan/estimate.py).
        num_rows_of_experts: on which the graph of the step that is computed depends too; None of a step that is not
            captured.
        max_tokens_per_row: of a step that is captured, which has the same number of tokens in each row.
        max_drafted: tokens of a step with more than one in a row; None: as many as these rows have.
        """
        self._compute, self._capture = compute, capture
        self._max_rows, self._max_model_len = max_rows, max_model_len
        self._max_tokens_per_row = max_tokens_per_row
        self._max_drafted = max_drafted or max_rows * max_tokens_per_row
        max_tokens = self._max_tokens = max(max_rows, self._max_drafted)
        self._num_rows_of_experts = num_rows_of_experts
        self._graphs: dict[StepShape, tuple[_Inputs, CapturedGraph]] = {}
        self._not_captured: set[StepShape] = set()
        self._received: torch.Tensor | None = None  # [2, tokens, hidden_size] hidden states and residual
        self.table: dict[str, str] = {}  # the row of the start-up table, where capture failed

        def column(count: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(count, dtype=dtype, device=device)

        if capture is not None:
            self._token_ids = column(max_tokens, torch.int64)
            self._positions = column(max_tokens, torch.int64)
            self._slot_mapping = column(num_views * max_tokens, torch.int64).view(num_views, max_tokens)
            self._context_lens = column(max_rows, torch.int32)
            self._seq_slots = column(max_rows, torch.int32)
            max_blocks = -(-max_model_len // block_size)
            tables = column(num_views * max_rows * max_blocks, torch.int32)
            self._block_tables = tables.view(num_views, max_rows, max_blocks)

    def shape_of(self, step: StepInput, received: Hidden | None = None) -> StepShape | None:
        """The shape in which `compute` computes a step; None of a step that is not captured.

        None of all steps while a profile is recorded: it shows the calls of a replayed step as one.
        step: for any view. received: the hidden states that its layers begin with.
        """
        rows, width, num_expert_rows = step.num_rows, step.max_query_len, self._num_rows_of_experts()
        if spans.is_profiling or self._capture is None or rows > self._max_rows or num_expert_rows is None:
            return None
        if (
            width > self._max_tokens_per_row
            or (width > 1 and step.num_tokens > self._max_drafted)
            or step.num_tokens != rows * width
            or (step.visible is not None and width > 1)
        ):
            return None
        values = {flag: value for flag, field in FIELDS.items() if (value := getattr(step, field)) is not None}
        if not all(hasattr(value, "copy_") for value in values.values()):
            return None
        flags = sum(values) + (StepFlag.RESIDUAL if received is not None and received[1] is not None else 0)
        shape = StepShape(step.num_tokens, rows, width, flags, num_expert_rows)
        return None if shape in self._not_captured else shape

    def compute(self, shape: StepShape, steps: Sequence[StepInput], received: Hidden | None = None) -> Any:
        """What `compute` returns, valid until the next step. shape: of `shape_of`."""
        found = self._graphs.get(shape)
        if found is None:
            return self._first(shape, steps, received)
        inputs, graph = found
        _fill(inputs, shape, steps, received)
        graph.replay()
        return graph.output

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def forget(self) -> None:
        """Forget captured graphs: the tensors that they read are replaced."""
        self._graphs.clear()

    def _first(self, shape: StepShape, steps: Sequence[StepInput], received: Hidden | None) -> Any:
        assert self._capture is not None
        rows, num_tokens = shape.num_rows, shape.num_tokens
        fields = {field: getattr(steps[0], field).clone() for field in fields_of(shape.flags)}
        views = tuple(
            StepInput(
                token_ids=self._token_ids[:num_tokens],
                positions=self._positions[:num_tokens],
                slot_mapping=mapping[:num_tokens],
                query_start=steps[0].query_start.clone(),
                context_lens=self._context_lens[:rows],
                block_tables=tables[:rows],
                max_query_len=shape.tokens_per_row,
                seq_slots=self._seq_slots[:rows],
                max_context_len=self._max_model_len,  # the step's own would be a constant of the captured graph
                **fields,
            )
            for mapping, tables in zip(self._slot_mapping, self._block_tables, strict=True)
        )
        inputs = views, self._memory_of(received)
        _fill(inputs, shape, steps, received)
        try:
            graph = self._capture(lambda: self._compute(*inputs))
        except NotCapturable as error:
            if isinstance(error, TooLarge) or shape.tokens_per_row > 1 or shape.flags & ~StepFlag.RESIDUAL:
                self._not_captured.add(shape)  # others may be
            else:
                self._capture = None
                self.table = {"decode_step": f"op by op: {error}"}
            return self._compute(steps, received) if error.output is None else error.output
        self._graphs[shape] = inputs, graph
        return graph.output

    def _memory_of(self, received: Hidden | None) -> Hidden | None:
        """The tensors from which captured steps read what they receive."""
        if received is None:
            return None
        hidden, residual = received
        if self._received is None:
            self._received = hidden.new_empty(2, self._max_tokens, hidden.shape[1])
        own, own_residual = self._received[:, : len(hidden)]
        return own, None if residual is None else own_residual


def _fill(inputs: _Inputs, shape: StepShape, steps: Sequence[StepInput], received: Hidden | None) -> None:
    views, into = inputs
    first, step = views[0], steps[0]  # what all views have in common
    for name in ("token_ids", "positions", "context_lens", "seq_slots", *fields_of(shape.flags)):
        getattr(first, name).copy_(getattr(step, name))
    for group, step in zip(views, steps, strict=True):
        group.slot_mapping.copy_(step.slot_mapping)
        group.block_tables[:, : step.block_tables.shape[1]].copy_(step.block_tables)
    if into is not None and received is not None:
        for own, values in zip(into, received, strict=True):
            if own is not None and values is not None:
                own.copy_(values)
