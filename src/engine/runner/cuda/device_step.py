"""DeviceStep: the whole step on the device, from the values that the host sends for each row to the sampled tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from ...collectives import Ranks
from ...kernels.gpu.allowed_rows import allowed_rows
from ...kernels.gpu.finish_step import finish_step
from ...kernels.gpu.prepare_step import StepRows, StepTensors, prepare_step
from ...kernels.gpu.sample import sample, sampling_workspace
from ...layers.step_input import StepInput
from ...models.model import Model
from ...step.plan import Int32, StepPlan
from ...structured.backend import Bitmask, num_words
from ..kv_cache import KVCache
from ..step_features import TOKEN_IDS, StepFeature, with_features
from ..step_shape import StepFlag, StepShape
from .slot_arena import SlotArena
from .staging import Upload

Int64 = npt.NDArray[np.int64]
_SLOTS, _COMPUTED, _SAMPLED, _STARTS = range(4)  # the values that are sent for rows, one line each


class DeviceStep:
    def __init__(
        self,
        model: Model,
        cache: KVCache,
        arena: SlotArena,
        max_rows: int,
        max_tokens: int,
        max_model_len: int,
        block_size: int,
        device: torch.device,
        *,
        has_guides: bool,
        ranks: Ranks | None = None,
        features: Sequence[StepFeature] = (),
    ) -> None:
        """
        arena: with a block table for each group of the cache. max_rows, max_tokens: of a step.
        has_guides: `sample_again` will be called.
        ranks: that compute the step together; rank 0 samples.
        features: of which the flags of a shape say which its steps have.
        """
        self._model, self._cache, self._arena, self._ranks = model, cache, arena, ranks
        self._samples, self._features = ranks is None or not ranks.rank, features
        self._block_size, self._max_tokens, self._max_model_len = block_size, max_tokens, max_model_len

        def column(count: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(count, dtype=dtype, device=device)

        self._width = -(-(max_rows + 1) // 4) * 4  # lines begin at multiples of 16 bytes: kernels compile once
        rows = column(4 * self._width)
        self._upload = Upload(rows)
        self._rows = rows.view(4, self._width)
        self._token_ids, self._positions = column(max_tokens, torch.int64), column(max_tokens, torch.int64)
        self._slot_mappings = [column(max_tokens, torch.int64) for _ in arena.block_ids]  # by group
        self._context_lens, self._last_tokens = column(max_rows), column(max_rows, torch.int64)
        max_blocks = arena.block_ids[0].shape[1]
        self._block_tables = [column(max_rows * max_blocks).view(max_rows, max_blocks) for _ in arena.block_ids]
        self._workspace = sampling_workspace(max_rows, model.model_spec.vocab_size, device)
        self.sampled = column(max_rows)  # tokens of the newest step, by row
        if has_guides:
            self._num_words = num_words(model.model_spec.vocab_size)
            self._masks = column(self._width + max_rows * self._num_words)  # rows, and from `width` on their masks
            self._masks_upload = Upload(self._masks)

    def send(self, plan: StepPlan, shape: StepShape, again: Int64) -> None:
        """Copies the plan's rows and the padding rows into the inputs of `compute`.

        again: rows for `sample_again`, whose tokens `compute` does not write into the slot tables.
        """
        rows, all_rows = plan.num_rows, shape.num_rows
        if shape.num_tokens > self._max_tokens or all_rows > len(self.sampled):
            raise ValueError(
                f"a step of {shape.num_tokens} tokens in {all_rows} rows exceeds the limits of this runner"
            )
        lines = self._upload.buffer().reshape(4, self._width)
        lines[_SLOTS, :rows] = plan.slots
        lines[_SLOTS, rows:all_rows] = -1
        lines[_COMPUTED, :rows] = plan.num_computed
        lines[_SAMPLED, :rows] = plan.num_outputs
        lines[_SAMPLED, again] = 0
        lines[_STARTS, 0] = 0
        np.cumsum(plan.num_tokens, out=lines[_STARTS, 1 : rows + 1])
        lines[_STARTS, rows + 1 : all_rows + 1] = lines[_STARTS, rows]
        self._upload.send(lines.size)

    def send_nothing(self, shape: StepShape) -> None:
        """Fills the inputs of `compute` with padding rows only: such a step changes nothing."""
        lines: Int32 = self._upload.buffer().reshape(4, self._width)
        lines[_SLOTS, : shape.num_rows] = -1
        lines[_STARTS, : shape.num_rows + 1] = 0
        self._upload.send(lines.size)

    def compute(self, shape: StepShape) -> torch.Tensor:
        """Writes tokens into `sampled` and the slot tables.

        Returns the logits of each row's last token: [R, V], of another rank than 0 its columns of them.
        """
        num_tokens, num_rows, arena = shape.num_tokens, shape.num_rows, self._arena
        slots, starts = self._rows[_SLOTS, :num_rows], self._rows[_STARTS, : num_rows + 1]
        # One launch for each group; what groups have in common is written by each, with the same values.
        by_group = [
            StepTensors(
                token_ids=self._token_ids[:num_tokens],
                positions=self._positions[:num_tokens],
                slot_mapping=slot_mapping[:num_tokens],
                context_lens=self._context_lens[:num_rows],
                block_tables=block_tables[:num_rows],
                last_tokens=self._last_tokens[:num_rows],
            )
            for slot_mapping, block_tables in zip(self._slot_mappings, self._block_tables, strict=True)
        ]
        rows = StepRows(slots, self._rows[_COMPUTED, :num_rows], starts)
        for block_ids, tensors in zip(arena.block_ids, by_group, strict=True):
            prepare_step(rows, arena.token_ids, block_ids, self._block_size, tensors)
        steps = [
            StepInput(
                token_ids=tensors.token_ids,
                positions=tensors.positions,
                slot_mapping=tensors.slot_mapping,
                query_start=starts,
                context_lens=tensors.context_lens,
                block_tables=tensors.block_tables,
                max_query_len=shape.tokens_per_row or self._max_tokens,
                max_context_len=self._max_model_len,
                seq_slots=slots,
            )
            for tensors in by_group
        ]
        tensors = by_group[0]
        wanted = None if shape.tokens_per_row == 1 else tensors.last_tokens
        columns = {**arena.columns, TOKEN_IDS: arena.token_ids}
        views = self._cache.views(with_features(steps, self._features, shape.flags, columns))
        by_layer = self._cache.by_layer(views)
        mix = views[0].mix if wanted is None or views[0].mix is None else views[0].mix.of_tokens(wanted)
        logits = self._model.logits(*self._model.forward(by_layer, self._cache.layers, wanted), mix)
        sampled = self.sampled[:num_rows]
        if self._samples:
            sample(
                logits,
                slots,
                tensors.context_lens,
                arena.sampling,
                sampled,
                self._workspace,
                is_fast_path=not shape.flags & StepFlag.FULL_SAMPLER,
            )
        self._finish(sampled, slots, tensors.context_lens, self._rows[_SAMPLED, :num_rows])
        return logits

    def sample_again(self, logits: torch.Tensor, masks: Mapping[int, Bitmask | None], shape: StepShape) -> None:
        """Samples rows of the newest step among the tokens that may follow: `sampled` and the slot tables have them.

        logits: that `compute` returned; not changed. masks: by row; None if any token may follow.
        """
        count, num_words = len(masks), self._num_words
        values = self._masks_upload.buffer()
        values[:count] = list(masks)
        lines = values[self._width :][: count * num_words].reshape(count, num_words)
        for line, mask in zip(lines, masks.values(), strict=True):
            line[:] = -1 if mask is None else mask
        self._masks_upload.send(self._width + lines.size)
        rows = self._masks[:count]
        allowed = allowed_rows(logits, rows, self._masks[self._width :][: lines.size].view(count, num_words))
        index = rows.long()
        slots, context_lens = self._rows[_SLOTS][index], self._context_lens[index]
        sampling, sampled = self._arena.sampling, torch.empty_like(rows)
        is_fast_path = not shape.flags & StepFlag.FULL_SAMPLER
        sample(allowed, slots, context_lens, sampling, sampled, self._workspace, is_fast_path=is_fast_path)
        self._finish(sampled, slots, context_lens, torch.ones_like(rows))
        self.sampled[index] = sampled

    def receive_again(self, rows: Int64) -> None:
        """Receive the tokens of these rows in the slot tables. Other ranks than 0 call it when rank 0 calls
        `sample_again`."""
        index = torch.from_numpy(rows).to(self.sampled.device)
        sampled = torch.empty(len(rows), dtype=torch.int32, device=self.sampled.device)
        self._finish(sampled, self._rows[_SLOTS][index], self._context_lens[index], torch.ones_like(sampled))

    def _finish(
        self, sampled: torch.Tensor, slots: torch.Tensor, context_lens: torch.Tensor, is_sampled: torch.Tensor
    ) -> None:
        """sampled: on rank 0; other ranks receive it."""
        if self._ranks is not None:
            self._ranks.from_rank(sampled, 0)
        sampling = self._arena.sampling
        tables = self._arena.token_ids, sampling.has_penalties, sampling.counts
        finish_step(sampled, slots, context_lens, is_sampled, *tables)
