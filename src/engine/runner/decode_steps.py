"""DecodeSteps: steps that give one token to each of their rows, replayed as a whole where the kernels can.

The first step of a number of rows is captured while it runs, later ones are replayed. What differs between two steps
lies in tensors that stay; all programs share them, as they share the memory of activations.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..kernels import KernelSet
from ..layers.step_input import StepInput


class DecodeSteps:
    def __init__(
        self,
        compute: Callable[[StepInput], torch.Tensor],
        kernels: KernelSet,
        max_rows: int,
        max_model_len: int,
        block_size: int,
        device: torch.device,
    ) -> None:
        """compute: the logits of all tokens of a step. max_rows: of a step that is replayed.

        A program takes some 40 KB for a model of 28 layers, and there are at most `max_rows`.
        """
        self._compute = compute
        self._capture = kernels.capture
        self._max_rows = max_rows
        self._max_model_len = max_model_len
        self._programs: dict[int, tuple[StepInput, torch.Tensor, Callable[[], None]]] = {}
        self.table: dict[str, str] = {}  # what start-up prints of it beside the kernels' own table

        def column(count: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(count, dtype=dtype, device=device)

        if self._capture is not None:
            self._token_ids = column(max_rows, torch.int64)
            self._positions = column(max_rows, torch.int64)
            self._slot_mapping = column(max_rows, torch.int64)
            self._context_lens = column(max_rows, torch.int32)
            self._query_start = torch.arange(max_rows + 1, dtype=torch.int32, device=device)
            max_blocks = -(-max_model_len // block_size)
            self._block_tables = column(max_rows * max_blocks, torch.int32).view(max_rows, max_blocks)

    def takes(self, step: StepInput) -> bool:
        return self._capture is not None and step.max_query_len == 1 and step.num_rows <= self._max_rows

    def logits(self, step: StepInput) -> torch.Tensor:
        """[R, vocab_size], until the next step. Only for a step that this takes."""
        found = self._programs.get(step.num_rows)
        if found is None:
            return self._first(step)
        inputs, output, replay = found
        _fill(inputs, step)
        replay()
        return output

    def _first(self, step: StepInput) -> torch.Tensor:
        assert self._capture is not None
        rows = step.num_rows
        inputs = StepInput(
            token_ids=self._token_ids[:rows],
            positions=self._positions[:rows],
            slot_mapping=self._slot_mapping[:rows],
            query_start=self._query_start[: rows + 1],
            context_lens=self._context_lens[:rows],
            block_tables=self._block_tables[:rows],
            max_query_len=1,
            max_context_len=self._max_model_len,  # what one step has must not be in a program
        )
        _fill(inputs, step)
        captured = self._capture(lambda: self._compute(inputs))
        if captured.replay is None:
            self._capture = None
            self.table = {"decode_step": f"op by op: {captured.reason}"}
        else:
            self._programs[rows] = inputs, captured.output, captured.replay
        return captured.output


def _fill(inputs: StepInput, step: StepInput) -> None:
    inputs.token_ids.copy_(step.token_ids)
    inputs.positions.copy_(step.positions)
    inputs.slot_mapping.copy_(step.slot_mapping)
    inputs.context_lens.copy_(step.context_lens)
    inputs.block_tables[:, : step.block_tables.shape[1]].copy_(step.block_tables)
