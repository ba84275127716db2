"""SampleHead: hidden states to tokens, which the slot table gets, and to what is made of prompts that are pooled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from ..api import TokenLogprobs, Vectors
from ..layers.linear import Mix
from ..sampling.logits_processor import LogitsProcessor
from ..sampling.sampler import Sampler, TokenSampler
from ..step.result import StepResult
from .heads import Finish, HeadStep, MakeHead
from .materials import Materials
from .sampled_outputs import SampledOutputs
from .step_input import Int64, LogitTokens, PooledTexts
from .step_part import Hidden

LOGIT_ROWS = 128  # rows of logits computed at a time: 78 MB in float32 for a vocabulary of 152k
LogitsOf = Callable[[Int64], torch.Tensor]  # indices into the rows that a head has got -> their logits
NOT_FINITE = (
    "the result of `{}` is not finite: the number format of the model has overflowed, or its weights are damaged"
)


class SampleHead:
    """Samples tokens of the rows of requests that generate. Results have the vectors of those that are pooled."""

    def __init__(self, made: Materials, sampler: TokenSampler) -> None:
        """sampler: of this process, or what another process has sampled."""
        whole = made.loaded.whole
        self.project = whole.logits if whole.model_spec.generates else _no_logits
        self._poolers, self._device = whole.poolers, made.loaded.device
        self._slots, self.sampler = made.slots, sampler
        # A network reads the hidden states of all tokens, on one rank: the others must compute as many.
        self._needs_all = made.resolved.drafts_from_states
        self.table: dict[str, str] = {}

    def rows(self, wanted: LogitTokens, num_tokens: int) -> Int64 | None:
        return None if self._needs_all else wanted.union(num_tokens)

    def begin(self, step: HeadStep, hidden: Hidden) -> Finish:
        return partial(self._result, step, partial(self._outputs, step, *hidden), hidden)

    def begin_projected(self, step: HeadStep, projected: torch.Tensor) -> Finish:
        return partial(self._result, step, lambda at: self._taken(projected, at))

    @torch.inference_mode()
    def _result(self, step: HeadStep, logits_of: LogitsOf, hidden: Hidden | None = None) -> StepResult:
        """hidden: None if nothing is pooled."""
        prompt_logprobs = self._prompt_logprobs(step, logits_of) if len(step.wanted.prompt) else {}
        result = self._sample(step, logits_of)
        result.prompt_logprobs = prompt_logprobs
        for texts in step.wanted.pooled:
            assert hidden is not None, "a step with logits only pools nothing"
            self._pool(step, texts, hidden, result)
        return result

    def _pool(self, step: HeadStep, texts: PooledTexts, hidden: Hidden, result: StepResult) -> None:
        """Adds the vectors of one head to the result. A text without a finite result fails; the others do not."""
        states, residual, mix = self._rows_of(step, *hidden, np.searchsorted(step.tokens, texts.tokens))
        starts = torch.from_numpy(texts.starts)
        found = self._poolers[texts.task].pool(states, residual, starts, texts.first, mix).float().cpu().contiguous()
        width, is_finite = found.shape[1], torch.isfinite(found).all(1).numpy()
        # A head has one result for each text, or one for each of its tokens.
        ends = (texts.starts[1:] if len(found) == texts.starts[-1] else np.arange(1, len(texts.rows) + 1)).tolist()
        elements, size = found.numpy().tobytes(), width * found.itemsize
        all_finite, start = bool(is_finite.all()), 0
        for row, end in zip(texts.rows.tolist(), ends, strict=True):
            if all_finite or is_finite[start:end].all():
                vectors = Vectors(width, elements[start * size : end * size])
                result.vectors.setdefault(row, {})[texts.task] = vectors
            else:
                result.errors[row] = NOT_FINITE.format(texts.task)
            start = end

    def _sample(self, step: HeadStep, logits_of: LogitsOf) -> StepResult:
        taken = SampledOutputs(step.plan, step.wanted, self._slots)
        at = np.searchsorted(step.tokens, step.wanted.outputs[taken.outputs])
        # All logits at once where they fit: parts that are sampled in order would read the output layer again.
        every = logits_of(at) if 0 < len(at) <= LOGIT_ROWS else None
        for part in taken.parts(LOGIT_ROWS, self.sampler.needs_order(taken.slots)):
            logits = logits_of(at[part]) if every is None else self._taken(every, part)
            of_part = taken.slots[part], taken.lengths[part]
            is_shown = partial(taken.would_be_valid, part) if taken.has_drafts else None
            taken.take(part, self.sampler.sample(logits, *of_part, self._slots.token_ids, is_shown))
        return taken.result()

    def _prompt_logprobs(self, step: HeadStep, logits_of: LogitsOf) -> dict[int, list[TokenLogprobs]]:
        plan, wanted = step.plan, step.wanted
        found: dict[int, list[TokenLogprobs]] = {}
        at = np.searchsorted(step.tokens, wanted.prompt)
        starts = np.cumsum(plan.num_tokens) - plan.num_tokens
        for start in range(0, len(at), LOGIT_ROWS):
            part = slice(start, start + LOGIT_ROWS)
            plan_rows = wanted.prompt_rows[part]
            slots = plan.slots[plan_rows]
            positions = plan.num_computed[plan_rows] + wanted.prompt[part] - starts[plan_rows]
            next_ids = torch.from_numpy(self._slots.token_ids[slots, positions + 1].astype(np.int64))
            entries = self.sampler.prompt_logprobs(logits_of(at[part]), next_ids.to(self._device), slots)
            for row, entry in zip(plan_rows.tolist(), entries, strict=True):
                found.setdefault(row, []).append(entry)
        return found

    def _outputs(self, step: HeadStep, hidden: torch.Tensor, residual: torch.Tensor | None, at: Int64) -> torch.Tensor:
        return self.project(*self._rows_of(step, hidden, residual, at))

    def _rows_of(
        self, step: HeadStep, hidden: torch.Tensor, residual: torch.Tensor | None, at: Int64
    ) -> tuple[torch.Tensor, torch.Tensor | None, Mix | None]:
        """The hidden states, the residual and the mix of some of the tokens that the head has got."""
        if residual is not None:
            residual = self._taken(residual, at)
        if (mix := step.mix) is not None:
            mix = mix.of_tokens(torch.from_numpy(step.tokens[at]).to(self._device))
        return self._taken(hidden, at), residual, mix

    def _taken(self, values: torch.Tensor, at: Int64) -> torch.Tensor:
        return values if len(at) == len(values) else values[torch.from_numpy(at).to(self._device)]


def _no_logits(hidden: torch.Tensor, residual: torch.Tensor | None, mix: Mix | None = None, /) -> torch.Tensor:
    raise AssertionError("all requests of a model without an output layer are pooled")


def own_sampler(made: Materials, processors: Sequence[LogitsProcessor]) -> Sampler:
    return Sampler(made.slots.sampling, made.loaded.kernels, processors, made.resolved.model.logprobs_mode)


def sample(processors: Sequence[LogitsProcessor] = ()) -> MakeHead:
    """The head of a process that samples itself. processors: applied to the logits of all requests."""
    return lambda made: SampleHead(made, own_sampler(made, processors))
