"""Sampler: logits of a whole batch to one token per row.

Rows are handled in groups that cost what they need: those without top-k and top-p in one pass of the draw kernel over
the vocabulary (greedy ones too), the others by their best candidates only. A row's token never depends on its group
mates.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from ..api import TokenLogprobs
from ..kernels import KernelSet
from ..kernels.noise import exponential_noise, row_keys
from ..plugins import PluginError
from .logits_processor import LogitsProcessor, Rows, apply
from .logprobs import token_logprobs
from .penalties import apply_bias, apply_penalties, forbid_early_end
from .processed import processed_logits
from .sampling_table import SamplingTable, Slots

LogprobsMode = Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]
Int64 = npt.NDArray[np.int64]
logger = logging.getLogger(__name__)
WINDOW = 256  # candidates looked at first; rows that need more sort the whole vocabulary


@dataclass(frozen=True, slots=True)
class Drawn:
    token_ids: npt.NDArray[np.int32]  # [R]
    logprobs: dict[int, TokenLogprobs]  # row -> of the drawn token, where asked for
    errors: dict[int, str] = field(default_factory=dict)  # row -> why its request's own processor failed


class Sampler:
    def __init__(
        self,
        table: SamplingTable,
        kernels: KernelSet,
        processors: Sequence[LogitsProcessor] = (),
        logprobs_mode: LogprobsMode = "raw_logprobs",
    ) -> None:
        """
        processors: installed for all requests.
        logprobs_mode: what is shown where a request asks for log-probabilities.
        """
        self.table = table
        self._kernels = kernels
        self._processors = processors
        self._shows_processed = logprobs_mode.startswith("processed")
        self._normalises = logprobs_mode.endswith("logprobs")

    def sample(self, logits: torch.Tensor, slots: Slots, lengths: Int64, token_table: npt.NDArray[np.int32]) -> Drawn:
        """Draws and counts one token per row.

        Args:
            logits: [R, V] in any float type, of the last known token of each sequence. Not changed.
            slots: [R], where the parameters are.
            lengths: [R] tokens known of each sequence, which is the position of the drawn one.
            token_table: [num_slots, max_model_len] those tokens' ids, by slot.

        Raises PluginError where an installed logits processor fails.
        """
        table, raw = self.table, logits
        errors: dict[int, str] = {}
        is_changed = table.has_bias[slots] | table.has_penalties[slots] | table.has_processors[slots]
        is_changed |= lengths < table.end_allowed_at[slots]
        if self._processors or is_changed.any():
            logits = raw.float() if raw.dtype != torch.float32 else raw.clone()
            if self._processors:
                logits = apply(self._processors, logits, self._rows(slots, lengths, token_table))
            if table.has_processors[slots].any():
                errors = self._apply_named(logits, slots, lengths, token_table)
            apply_bias(logits, table, slots)
            apply_penalties(logits, table, slots, lengths, token_table)
            forbid_early_end(logits, table, slots, lengths)
        is_cut = ~table.is_greedy[slots] & ((table.top_k[slots] > 0) | (table.top_p[slots] < 1))
        token_ids = np.empty(len(slots), np.int32)
        for rows, method in ((np.flatnonzero(~is_cut), self._draw_from_all), (np.flatnonzero(is_cut), self._draw_cut)):
            if len(rows):
                drawn = method(_take(logits, rows), slots[rows], lengths[rows])
                token_ids[rows] = drawn.cpu().numpy()
        shown = logits if self._shows_processed else raw
        logprobs = self._logprobs(shown, slots, token_ids)
        table.record(slots, token_ids)
        return Drawn(token_ids, logprobs, errors)

    def _rows(self, slots: Slots, lengths: Int64, token_table: npt.NDArray[np.int32]) -> Rows:
        return Rows(lengths, self.table.num_prompt_tokens[slots], slots, token_table)

    def _apply_named(
        self, logits: torch.Tensor, slots: Slots, lengths: Int64, token_table: npt.NDArray[np.int32]
    ) -> dict[int, str]:
        """Processors that requests named, each over its own row. One that fails is that request's affair."""
        errors: dict[int, str] = {}
        for row in np.flatnonzero(self.table.has_processors[slots]).tolist():
            part = slice(row, row + 1)
            rows = self._rows(slots[part], lengths[part], token_table)
            try:
                logits[part] = apply(self.table.processors(int(slots[row])), logits[part], rows)
                if not logits[row].amax().isfinite():  # nan, or -inf everywhere
                    raise PluginError("no token is left to draw")
            except PluginError as error:
                logger.warning("a logits processor that a request named failed", exc_info=error)
                errors[row] = f"the logits processors of this request: {error}"
        return errors

    def _logprobs(
        self, logits: torch.Tensor, slots: Slots, token_ids: npt.NDArray[np.int32]
    ) -> dict[int, TokenLogprobs]:
        counts = self.table.num_logprobs[slots]
        rows = np.flatnonzero(counts >= 0)
        if not len(rows):
            return {}
        ids = torch.from_numpy(token_ids[rows].astype(np.int64)).to(logits.device)
        shown = _take(logits, rows)
        if self._shows_processed:
            shown = processed_logits(shown.float(), self.table, slots[rows])
        found = token_logprobs(shown, ids, counts[rows].tolist(), self._kernels, normalise=self._normalises)
        return dict(zip(rows.tolist(), found, strict=True))

    def _draw_from_all(self, logits: torch.Tensor, slots: Slots, lengths: Int64) -> torch.Tensor:
        table = self.table
        temperature = np.where(table.is_greedy[slots], np.float32(0), table.temperature[slots])
        return self._kernels.draw(
            logits, _like(logits, temperature), _like(logits, table.min_p[slots]), self._keys(logits, slots, lengths)
        )

    def _draw_cut(self, logits: torch.Tensor, slots: Slots, lengths: Int64) -> torch.Tensor:
        """Rows with top-k or top-p: from a window of the best tokens, or from all where that does not settle it."""
        vocab_size = logits.shape[1]
        token_ids = torch.empty(len(slots), dtype=torch.int64, device=logits.device)
        masses = self._masses(logits, slots)
        pending = np.arange(len(slots))
        rows = np.flatnonzero(self.table.top_k[slots] <= WINDOW)
        if len(rows):
            keys, window = self._keys(logits, slots[rows], lengths[rows]), min(WINDOW, vocab_size)
            token_ids[rows], is_settled = self._draw_in_window(
                _take(logits, rows), masses[rows], keys, slots[rows], window
            )
            pending = np.setdiff1d(pending, rows[is_settled.cpu().numpy()])
        for row in pending:  # one at a time: sorting a vocabulary is fast while it stays in a core's cache
            part = slice(row, row + 1)
            keys = self._keys(logits, slots[part], lengths[part])
            token_ids[part], _ = self._draw_in_window(logits[part], masses[part], keys, slots[part], vocab_size)
        return token_ids

    def _masses(self, logits: torch.Tensor, slots: Slots) -> torch.Tensor:
        """[R, 1] float64: total weight that top-p is a share of, for rows without top-k; unused for the others."""
        masses = torch.ones(len(slots), 1, dtype=torch.float64, device=logits.device)
        rows = np.flatnonzero(self.table.top_k[slots] == 0)
        if len(rows):
            temperature, min_p = self.table.temperature[slots[rows]], self.table.min_p[slots[rows]]
            part = _take(logits, rows)
            masses[rows, 0] = self._kernels.softmax_mass(part, _like(part, temperature), _like(part, min_p))[1]
        return masses

    def _draw_in_window(
        self, logits: torch.Tensor, masses: torch.Tensor, keys: torch.Tensor, slots: Slots, window: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens [R], and for each row whether the window of best tokens held all that may be drawn."""
        table = self.table
        width = window
        if (table.top_k[slots] > 0).all():
            width = min(window, int(table.top_k[slots].max()))
        values, ids = self._kernels.top_tokens(logits, width)
        temperature, min_p, top_p = (
            _like(logits, column[slots])[:, None] for column in (table.temperature, table.min_p, table.top_p)
        )
        top_k = _like(logits, table.top_k[slots])[:, None]
        weights = ((values - values[:, :1]) / temperature).exp_()
        is_cut = weights < min_p
        is_cut |= (torch.arange(width, device=logits.device) >= top_k) & (top_k > 0)
        weights.masked_fill_(is_cut, 0.0)
        reached = weights.cumsum(-1, dtype=torch.float64)
        total = torch.where(top_k > 0, reached[:, -1:], masses)
        is_cut = (reached - weights >= top_p * total) & (top_p < 1)  # what comes before is already enough
        is_cut[:, 0] = False
        weights.masked_fill_(is_cut, 0.0)
        chosen = (weights / exponential_noise(keys, ids)).argmax(-1, keepdim=True)
        is_settled = (weights[:, -1] == 0) | (top_k[:, 0] > 0) | (width == logits.shape[1])
        return ids.gather(1, chosen)[:, 0], is_settled

    def _keys(self, logits: torch.Tensor, slots: Slots, lengths: Int64) -> torch.Tensor:
        return row_keys(self.table.seed[slots], lengths).to(logits.device)


def _like(logits: torch.Tensor, values: npt.NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(values).to(logits.device)


def _take(values: torch.Tensor, rows: Int64) -> torch.Tensor:
    """The rows, ascending, without a copy when they are all."""
    return values if len(rows) == len(values) else values[torch.from_numpy(rows).to(values.device)]
