"""Sampler: logits of a whole batch to one token per row.

Rows are handled in groups that cost what they need: greedy rows an argmax, rows without top-k and top-p one pass of
noise over the vocabulary, the others noise for their candidates only. A row's token never depends on its group mates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..api import TokenLogprobs
from .candidates import top_tokens
from .logprobs import token_logprobs
from .noise import draw, exponential_noise, first_argmax, row_keys
from .penalties import apply_bias, apply_penalties, forbid_early_end
from .sampling_table import SamplingTable

Int64 = npt.NDArray[np.int64]
_PART = 1 << 18  # numbers
WINDOW = 256  # candidates looked at first; rows that need more sort the whole vocabulary


@dataclass(frozen=True, slots=True)
class Drawn:
    token_ids: npt.NDArray[np.int32]  # [R]
    logprobs: dict[int, TokenLogprobs]  # row -> of the drawn token, where asked for


class Sampler:
    def __init__(self, table: SamplingTable) -> None:
        self.table = table

    def sample(
        self,
        logits: torch.Tensor,
        slots: npt.NDArray[np.int32],
        lengths: Int64,
        token_table: npt.NDArray[np.int32],
    ) -> Drawn:
        """Draws and counts one token per row.

        Args:
            logits: [R, V] in any float type, of the last known token of each sequence. Not changed.
            slots: [R], where the parameters are.
            lengths: [R] tokens known of each sequence, which is the position of the drawn one.
            token_table: [num_slots, max_model_len] those tokens' ids, by slot.
        """
        table = self.table
        wanted = np.flatnonzero(table.num_logprobs[slots] >= 0)
        is_changed = (
            table.has_bias[slots] | table.has_penalties[slots] | (lengths < table.end_allowed_at[slots])
        ).any()
        raw = logits
        logits = logits.float()
        if is_changed:
            logits = logits.clone() if logits is raw else logits
            apply_bias(logits, table, slots)
            apply_penalties(logits, table, slots, lengths, token_table)
            forbid_early_end(logits, table, slots, lengths)
        is_greedy = table.is_greedy[slots]
        if is_greedy.all():
            token_ids = first_argmax(logits)
        else:
            token_ids = torch.empty(len(slots), dtype=torch.int64, device=logits.device)
            is_cut = (table.top_k[slots] > 0) | (table.top_p[slots] < 1)
            for rows, method in (
                (is_greedy, self._greedy),
                (~is_greedy & ~is_cut, self._draw_from_all),
                (~is_greedy & is_cut, self._draw_from_best),
            ):
                index = np.flatnonzero(rows)
                if len(index):
                    token_ids[index] = method(_take(logits, index), slots[index], lengths[index])
        drawn = token_ids.cpu().numpy().astype(np.int32)
        table.record(slots, drawn)
        logprobs: dict[int, TokenLogprobs] = {}
        if len(wanted):
            values = _take(raw, wanted).float()
            found = token_logprobs(values, token_ids[wanted], table.num_logprobs[slots[wanted]].tolist())
            logprobs = dict(zip(wanted.tolist(), found, strict=True))
        return Drawn(drawn, logprobs)

    def _greedy(self, logits: torch.Tensor, slots: npt.NDArray[np.int32], lengths: Int64) -> torch.Tensor:
        return first_argmax(logits)

    def _draw_from_all(self, logits: torch.Tensor, slots: npt.NDArray[np.int32], lengths: Int64) -> torch.Tensor:
        keys, best = self._keys(slots, lengths, logits), logits.amax(-1, keepdim=True)
        return torch.cat(
            [draw(self._weights(logits[part], best[part], slots[part]), keys[part]) for part in _parts(logits)]
        )

    def _draw_from_best(self, logits: torch.Tensor, slots: npt.NDArray[np.int32], lengths: Int64) -> torch.Tensor:
        """Rows with top-k or top-p, first from a window of the best tokens; those it cannot settle, from all."""
        token_ids = torch.empty(len(slots), dtype=torch.int64, device=logits.device)
        top_k = self.table.top_k[slots]
        pending = np.arange(len(slots))
        for is_last, reach in ((False, min(WINDOW, logits.shape[1])), (True, logits.shape[1])):
            rows = pending if is_last else pending[top_k[pending] <= reach]
            if not len(rows):
                continue
            of_rows = _take(logits, rows)
            for part in _parts(of_rows) if is_last else [slice(len(rows))]:
                some = rows[part]
                width = min(int(top_k[some].max()), reach) if (top_k[some] > 0).all() else reach
                found, is_settled = self._draw_in_window(of_rows[part], slots[some], lengths[some], width)
                settled = is_settled.cpu().numpy()
                token_ids[some[settled]] = found[is_settled]
                pending = np.setdiff1d(pending, some[settled])
        return token_ids

    def _draw_in_window(
        self, logits: torch.Tensor, slots: npt.NDArray[np.int32], lengths: Int64, width: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns tokens [R] and, for each row, whether the window held all that may be drawn."""
        table = self.table
        values, ids = top_tokens(logits, width)
        best = values[:, :1]
        weights = self._weights(values, best, slots)
        top_k = torch.from_numpy(table.top_k[slots]).to(logits.device)[:, None]
        weights = weights.masked_fill_((torch.arange(width, device=logits.device) >= top_k) & (top_k > 0), 0.0)
        total = weights.sum(-1, keepdim=True, dtype=torch.float64)
        open_rows = np.flatnonzero((table.top_k[slots] == 0) & (table.top_p[slots] < 1))
        if len(open_rows):  # without top-k the mass of top-p is that of the whole vocabulary
            of_rows = _take(logits, open_rows)
            for part in _parts(of_rows):
                some = open_rows[part]
                everything = self._weights(of_rows[part], best[some], slots[some])
                total[some] = everything.sum(-1, keepdim=True, dtype=torch.float64)
        top_p = torch.from_numpy(table.top_p[slots]).to(logits.device)[:, None]
        mass = weights.cumsum(-1, dtype=torch.float64)
        is_cut = mass - weights >= top_p * total  # what comes before already reaches top_p
        is_cut[:, 0] = False
        is_cut &= top_p < 1
        weights.masked_fill_(is_cut, 0.0)
        keys = self._keys(slots, lengths, logits)
        chosen = first_argmax(weights / exponential_noise(keys, ids))
        is_settled = (weights[:, -1] == 0) | (width == logits.shape[1]) | (top_k[:, 0] > 0)
        return ids.gather(1, chosen[:, None])[:, 0], is_settled

    def _weights(self, logits: torch.Tensor, best: torch.Tensor, slots: npt.NDArray[np.int32]) -> torch.Tensor:
        """Probabilities up to a factor, 1 for the best token; 0 where min_p forbids. A new tensor."""
        table = self.table
        weights = (logits - best).div_(torch.from_numpy(table.temperature[slots]).to(logits.device)[:, None]).exp_()
        if table.min_p[slots].any():
            min_p = torch.from_numpy(table.min_p[slots]).to(logits.device)[:, None]
            weights.masked_fill_(weights < min_p, 0.0)
        return weights

    def _keys(self, slots: npt.NDArray[np.int32], lengths: Int64, logits: torch.Tensor) -> torch.Tensor:
        return row_keys(self.table.seed[slots], lengths).to(logits.device)


def _take(values: torch.Tensor, rows: Int64) -> torch.Tensor:
    """The rows, ascending, without a copy when they are all."""
    return values if len(rows) == len(values) else values[torch.from_numpy(rows).to(values.device)]


def _parts(values: torch.Tensor) -> list[slice]:
    """Rows in parts whose intermediate results stay in a core's cache, for the passes over a whole vocabulary."""
    rows, width = values.shape
    step = max(1, _PART // width) if values.device.type == "cpu" else rows
    return [slice(start, start + step) for start in range(0, rows, step)]
