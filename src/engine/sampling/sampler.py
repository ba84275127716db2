"""Sampler: logits of a whole batch to one token per row.

Rows are sampled in groups by what they ask for: rows without top-k and top-p (greedy ones too) in one pass over the
vocabulary, rows with only top-p in a few passes, rows with top-k by their best candidates. The token of a row never
depends on the other rows of its group.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch

from ..api import TokenLogprobs
from ..kernels import KernelSet
from ..kernels.noise import exponential_noise, row_keys
from ..kernels.penalise import Penalties, penalised
from ..plugins import PluginError
from ..structured.guided_rows import GuidedRows
from .logits_processor import LogitsProcessor, Rows, apply
from .logprobs import token_logprobs
from .penalties import apply_bias, forbid_bad_words, forbid_early_end, penalties_of
from .processed import processed_logits
from .sampling_table import SamplingTable, Slots

LogprobsMode = Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
logger = logging.getLogger(__name__)
FEW_BEST = 256  # largest top_k of rows that are sampled together
NO_VALID_LOGITS = "no token can be sampled: the model's logits are NaN, or the request forbids every token"


@dataclass(frozen=True, slots=True)
class Sampled:
    token_ids: npt.NDArray[np.int32]  # [R]
    logprobs: dict[int, TokenLogprobs]  # row -> of the sampled token, if requested
    errors: dict[int, str] = field(default_factory=dict)  # row -> why its request fails; the others continue
    complete: list[int] = field(default_factory=list)  # rows whose grammar allows nothing after the sampled token
    forced: dict[int, list[int]] = field(default_factory=dict)  # row -> tokens that must follow the sampled one


IsShown = Callable[[npt.NDArray[np.int32]], Bool]  # sampled tokens [R] -> [R] whose log-probabilities are shown


class TokenSampler(Protocol):
    """Sampler, or what one of several processes has in its place."""

    def sample(
        self,
        logits: torch.Tensor,
        slots: Slots,
        lengths: Int64,
        token_table: npt.NDArray[np.int32],
        is_shown: IsShown | None = None,
    ) -> Sampled: ...

    def prompt_logprobs(self, logits: torch.Tensor, next_ids: torch.Tensor, slots: Slots) -> list[TokenLogprobs]: ...

    def needs_order(self, slots: Slots) -> Bool:
        """[R] Whether a slot's tokens must be sampled in calls of `sample` one after the other: it keeps something of
        each. Any number of tokens of another slot can be sampled in one call."""
        ...


class Sampler:
    def __init__(
        self,
        table: SamplingTable,
        kernels: KernelSet,
        processors: Sequence[LogitsProcessor] = (),
        logprobs_mode: LogprobsMode = "raw_logprobs",
    ) -> None:
        """
        processors: applied to all requests.
        logprobs_mode: what log-probabilities show, of requests that do not ask for processed ones.
        """
        self.table = table
        self._kernels = kernels
        self._processors = processors
        self._shows_processed = logprobs_mode.startswith("processed")
        self._normalises = logprobs_mode.endswith("logprobs")

    def sample(
        self,
        logits: torch.Tensor,
        slots: Slots,
        lengths: Int64,
        token_table: npt.NDArray[np.int32],
        is_shown: IsShown | None = None,
    ) -> Sampled:
        """Samples and counts one token per row.

        Args:
            logits: [R, V] in any float type, of the last known token of each sequence. Tokens that a grammar forbids
                become -inf.
            slots: [R], where the parameters are; each once, unless `needs_order` is False for it.
            lengths: [R] known tokens of each sequence, which is the position of the sampled token.
            token_table: [num_slots, max_model_len] those tokens' ids, by slot.
            is_shown: says of which rows log-probabilities are computed, if requested; None: of all.

        Raises PluginError if an installed logits processor fails.
        """
        table, raw = self.table, logits
        errors: dict[int, str] = {}
        is_changed = table.has_bias[slots] | table.has_bad_words[slots] | table.has_processors[slots]
        is_changed |= lengths < table.end_allowed_at[slots]
        if self._processors or is_changed.any():
            logits = raw.float() if raw.dtype != torch.float32 else raw.clone()
            if self._processors:
                logits = apply(self._processors, logits, self._rows(slots, lengths, token_table))
            if table.has_processors[slots].any():
                errors = self._apply_named(logits, slots, lengths, token_table)
            apply_bias(logits, table, slots)
            forbid_bad_words(logits, table, slots, lengths, token_table)
            forbid_early_end(logits, table, slots, lengths)
        guides, guided = table.guides, None
        if guides is not None and len(rows := table.rows_with_guides(slots)):
            guided = GuidedRows(guides, slots, rows)
            if logits is raw and (table.num_logprobs[slots] >= 0).any():
                logits = raw.clone()  # log-probabilities show the model's
            errors |= guided.errors
            if guided.masks:
                masks = torch.from_numpy(np.stack(list(guided.masks.values())))
                self._kernels.allow_tokens(logits, torch.tensor(list(guided.masks)), masks)
        is_top_k = ~table.is_greedy[slots] & (table.top_k[slots] > 0)
        is_nucleus = ~table.is_greedy[slots] & (table.top_p[slots] < 1) & ~is_top_k
        is_wide = is_top_k & (
            table.top_k[slots] > FEW_BEST
        )  # sampled alone: the widest row of a group decides its cost
        token_ids = np.empty(len(slots), np.int32)
        for rows, method in (
            (np.flatnonzero(~is_top_k & ~is_nucleus), self._sample_from_all),
            (np.flatnonzero(is_nucleus), self._sample_top_p),
            (np.flatnonzero(is_top_k & ~is_wide), self._sample_top_k),
            *((row, self._sample_top_k) for row in np.flatnonzero(is_wide)[:, None]),
        ):
            if len(rows):
                penalties = penalties_of(table, slots[rows], lengths[rows], token_table)
                sampled = method(_take(logits, rows), slots[rows], lengths[rows], penalties)
                token_ids[rows] = sampled.cpu().numpy()
        for row in np.flatnonzero(token_ids < 0).tolist():
            token_ids[row] = 0  # any valid id: it is not used
            errors.setdefault(row, NO_VALID_LOGITS)
        logprobs = self._logprobs(raw, logits, slots, lengths, token_table, token_ids, is_shown)
        table.record(slots, token_ids)
        if guided is None:
            return Sampled(token_ids, logprobs, errors)
        guided.take(token_ids)
        return Sampled(token_ids, logprobs, errors, guided.complete, guided.forced)

    def needs_order(self, slots: Slots) -> Bool:
        """See TokenSampler. Penalties count tokens, grammars take them, and processors may keep anything."""
        table = self.table
        found: Bool = table.has_penalties[slots] | table.has_processors[slots] | bool(self._processors)
        return found if table.guides is None else found | table.guides.has_guide[slots]

    def prompt_logprobs(self, logits: torch.Tensor, next_ids: torch.Tensor, slots: Slots) -> list[TokenLogprobs]:
        """Log-probabilities of prompt tokens. logits: [R, V]; next_ids: [R] int64, the token after each; slots: [R]."""
        counts = self.table.num_prompt_logprobs[slots].tolist()
        return token_logprobs(logits, next_ids, counts, self._kernels, normalise=self._normalises)

    def _rows(self, slots: Slots, lengths: Int64, token_table: npt.NDArray[np.int32]) -> Rows:
        return Rows(lengths, self.table.num_prompt_tokens[slots], slots, token_table)

    def _apply_named(
        self, logits: torch.Tensor, slots: Slots, lengths: Int64, token_table: npt.NDArray[np.int32]
    ) -> dict[int, str]:
        """Processors that requests named, each over its own row. A failure ends that request only."""
        errors: dict[int, str] = {}
        for row in np.flatnonzero(self.table.has_processors[slots]).tolist():
            part = slice(row, row + 1)
            rows = self._rows(slots[part], lengths[part], token_table)
            try:
                logits[part] = apply(self.table.processors(int(slots[row])), logits[part], rows)
                if not logits[row].amax().isfinite():  # NaN, or -inf everywhere
                    raise PluginError("no token is left to sample")
            except PluginError as error:
                logger.warning("a logits processor that a request named failed", exc_info=error)
                errors[row] = f"the logits processors of this request: {error}"
        return errors

    def _logprobs(
        self,
        raw: torch.Tensor,
        logits: torch.Tensor,
        slots: Slots,
        lengths: Int64,
        token_table: npt.NDArray[np.int32],
        token_ids: npt.NDArray[np.int32],
        is_shown: IsShown | None,
    ) -> dict[int, TokenLogprobs]:
        """raw: as `sample` got them; logits: after processors and bias."""
        table, counts = self.table, self.table.num_logprobs[slots]
        is_asking, own_mode = counts >= 0, table.has_processed_logprobs[slots]
        logprobs: dict[int, TokenLogprobs] = {}
        if is_shown is not None and is_asking.any():
            is_asking &= is_shown(token_ids)
        for rows, is_processed, normalises in (
            (np.flatnonzero(is_asking & ~own_mode), self._shows_processed, self._normalises),
            (np.flatnonzero(is_asking & own_mode), True, True),
        ):
            if not len(rows):
                continue
            shown = _take(logits if is_processed else raw, rows)
            if is_processed:
                penalties = penalties_of(table, slots[rows], lengths[rows], token_table)
                shown = processed_logits(penalised(shown, penalties).float(), table, slots[rows])
            ids = torch.from_numpy(token_ids[rows].astype(np.int64)).to(shown.device)
            found = token_logprobs(shown, ids, counts[rows].tolist(), self._kernels, normalise=normalises)
            logprobs.update(zip(rows.tolist(), found, strict=True))
        return logprobs

    def _sample_from_all(
        self, logits: torch.Tensor, slots: Slots, lengths: Int64, penalties: Penalties | None
    ) -> torch.Tensor:
        table = self.table
        temperature = np.where(table.is_greedy[slots], np.float32(0), table.temperature[slots])
        return self._kernels.sample_tokens(
            logits,
            _like(logits, temperature),
            _like(logits, table.min_p[slots]),
            self._keys(logits, slots, lengths),
            penalties=penalties,
        )

    def _sample_top_p(
        self, logits: torch.Tensor, slots: Slots, lengths: Int64, penalties: Penalties | None
    ) -> torch.Tensor:
        table = self.table
        return self._kernels.sample_top_p(
            logits,
            _like(logits, table.temperature[slots]),
            _like(logits, table.min_p[slots]),
            _like(logits, table.top_p[slots]),
            self._keys(logits, slots, lengths),
            penalties=penalties,
        )

    def _sample_top_k(
        self, logits: torch.Tensor, slots: Slots, lengths: Int64, penalties: Penalties | None
    ) -> torch.Tensor:
        """Rows with top-k, and perhaps top-p: sorts the max(top_k) best tokens of each row and samples among them."""
        table, keys = self.table, self._keys(logits, slots, lengths)
        width = min(int(table.top_k[slots].max()), logits.shape[1])
        values, ids = self._kernels.top_tokens(logits, width, penalties=penalties)
        temperature, min_p, top_p = (
            _like(logits, column[slots])[:, None] for column in (table.temperature, table.min_p, table.top_p)
        )
        weights = ((values - values[:, :1]) / temperature).exp_()
        is_cut = weights < min_p
        is_cut |= torch.arange(width, device=logits.device) >= _like(logits, table.top_k[slots])[:, None]
        weights.masked_fill_(is_cut, 0.0)
        reached = weights.cumsum(-1, dtype=torch.float64)
        is_cut = (reached - weights >= top_p * reached[:, -1:]) & (top_p < 1)  # the tokens before it reach top_p
        is_cut[:, 0] = False
        weights.masked_fill_(is_cut, 0.0)
        chosen = (weights / exponential_noise(keys, ids)).argmax(-1, keepdim=True)
        sampled = ids.gather(1, chosen)[:, 0]
        return torch.where(values[:, 0] > -torch.inf, sampled, -1)

    def _keys(self, logits: torch.Tensor, slots: Slots, lengths: Int64) -> torch.Tensor:
        return row_keys(self.table.seed[slots], lengths).to(logits.device)


def _like(logits: torch.Tensor, values: npt.NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(values).to(logits.device)


def _take(values: torch.Tensor, rows: Int64) -> torch.Tensor:
    """The rows, ascending; no copy if they are all rows."""
    return values if len(rows) == len(values) else values[torch.from_numpy(rows).to(values.device)]
