"""ModelRunner: carries out step plans. Model, KV cache, slot table and sampler, built once from a Resolved.

A step has four stages that do not look into each other: the plan into the slot table, the table into tensors, the
forward pass, the draw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from ...config import Resolved
from ..api import EngineInfo, SamplingParams, TokenLogprobs
from ..core.step_plan import Admission, Int32, StepPlan, StepResult
from ..layers.step_input import StepInput
from ..sampling.logits_processor import LogitsProcessor
from ..sampling.logprobs import token_logprobs
from ..sampling.sampler import Sampler
from ..sampling.sampling_table import SamplingTable
from .decode_steps import DecodeSteps
from .loaded_model import LoadedModel, load_on_cpu
from .measure import PhaseClock, process_memory
from .slot_table import SlotTable
from .step_input import Int64, LogitTokens, build_step_input, logit_tokens

LogitsOf = Callable[[Int64], torch.Tensor]  # places in the rows of a forward pass to their logits
_LOGIT_ROWS = 128  # rows of logits held at once: 78 MB in float32 for a vocabulary of 152k


class ModelRunner:
    def __init__(
        self,
        resolved: Resolved,
        phase: Callable[[str], None] | None = None,
        processors: Sequence[LogitsProcessor] = (),
        load: Callable[[Resolved, PhaseClock], LoadedModel] = load_on_cpu,
    ) -> None:
        """
        phase: is told the name of each start-up phase as it begins.
        processors: change the logits of all requests.
        load: brings weights and KV cache onto the device, and raises where that cannot be.
        """
        self._resolved = resolved
        self.phases = PhaseClock(phase)
        facts, scheduler = resolved.facts, resolved.scheduler
        model_len, block_size = resolved.model.max_model_len, resolved.cache.block_size
        loaded = self.loaded = load(resolved, self.phases)
        self._device, self._kernels = loaded.device, loaded.kernels
        self._model, self._cache = loaded.model, loaded.cache
        sampling = SamplingTable(scheduler.max_num_seqs, facts.vocab_size, facts.eos_token_ids)
        self.slots = SlotTable(scheduler.max_num_seqs, model_len, block_size, sampling)
        self._sampler = Sampler(sampling, self._kernels, processors, resolved.model.logprobs_mode)
        self._decode_steps = DecodeSteps(
            self._decode, self._kernels, min(scheduler.max_num_seqs, _LOGIT_ROWS), model_len, block_size, self._device
        )
        self._normalises_logprobs = resolved.model.logprobs_mode.endswith("logprobs")
        self.phases.stop()

    def execute(self, plan: StepPlan) -> StepResult:
        """One step. Plans must come in the order in which the scheduler made them."""
        self.slots.apply(plan)
        return self.compute(plan)

    def compute(self, plan: StepPlan) -> StepResult:
        """The step of a plan that the slot table has taken over."""
        step = build_step_input(plan, self.slots, self._device)
        wanted = logit_tokens(plan, self.slots)
        with torch.inference_mode():
            rows = wanted.union(step.num_tokens)
            if rows is None and not len(wanted.prompt) and self._decode_steps.takes(step):
                logits = self._decode_steps.logits(step)
                return self._sample(plan, wanted, np.arange(step.num_tokens), lambda at: logits)
            index = None if rows is None else torch.from_numpy(rows).to(self._device)
            hidden, residual = self._model.forward(step, self._cache.layers, index)
            if rows is None:
                rows = np.arange(step.num_tokens)

            def logits_of(at: Int64) -> torch.Tensor:
                return self._logits(hidden, residual, at)

            prompt_logprobs = self._prompt_logprobs(plan, wanted, rows, logits_of)
            result = self._sample(plan, wanted, rows, logits_of)
        result.prompt_logprobs = prompt_logprobs
        return result

    def _decode(self, step: StepInput) -> torch.Tensor:
        """The logits of a step whose every token is wanted."""
        return self._model.logits(*self._model.forward(step, self._cache.layers, None))

    def _sample(self, plan: StepPlan, wanted: LogitTokens, rows: Int64, logits_of: LogitsOf) -> StepResult:
        """rows: the batch indices of what `logits_of` can tell of, ascending."""
        token_ids: Int32 = np.full(plan.num_rows, -1, np.int32)
        logprobs: dict[int, TokenLogprobs] = {}
        errors: dict[int, str] = {}
        at = np.searchsorted(rows, wanted.sampled)
        for start in range(0, len(at), _LOGIT_ROWS):
            part = slice(start, start + _LOGIT_ROWS)
            plan_rows = wanted.sampled_rows[part]
            slots = plan.slots[plan_rows]
            lengths = self.slots.num_tokens[slots]
            logits = logits_of(at[part])
            drawn = self._sampler.sample(logits, slots, lengths, self.slots.token_ids)
            self.slots.append(slots, drawn.token_ids)
            token_ids[plan_rows] = drawn.token_ids
            logprobs.update((int(plan_rows[row]), found) for row, found in drawn.logprobs.items())
            errors.update((int(plan_rows[row]), error) for row, error in drawn.errors.items())
        return StepResult(token_ids, logprobs, errors=errors)

    def _prompt_logprobs(
        self, plan: StepPlan, wanted: LogitTokens, rows: Int64, logits_of: LogitsOf
    ) -> dict[int, list[TokenLogprobs]]:
        found: dict[int, list[TokenLogprobs]] = {}
        at = np.searchsorted(rows, wanted.prompt)
        starts = np.cumsum(plan.num_tokens) - plan.num_tokens
        for start in range(0, len(at), _LOGIT_ROWS):
            part = slice(start, start + _LOGIT_ROWS)
            plan_rows = wanted.prompt_rows[part]
            slots = plan.slots[plan_rows]
            positions = plan.num_computed[plan_rows] + wanted.prompt[part] - starts[plan_rows]
            next_ids = torch.from_numpy(self.slots.token_ids[slots, positions + 1].astype(np.int64))
            logits = logits_of(at[part])
            counts = self.slots.sampling.num_prompt_logprobs[slots].tolist()
            entries = token_logprobs(
                logits, next_ids.to(self._device), counts, self._kernels, normalise=self._normalises_logprobs
            )
            for row, entry in zip(plan_rows.tolist(), entries, strict=True):
                found.setdefault(row, []).append(entry)
        return found

    def _logits(self, hidden: torch.Tensor, residual: torch.Tensor, at: Int64) -> torch.Tensor:
        if len(at) == len(hidden):
            return self._model.logits(hidden, residual)
        index = torch.from_numpy(at).to(self._device)
        return self._model.logits(hidden[index], residual[index])

    def warm_up(self, execute: Callable[[StepPlan], StepResult] | None = None) -> None:
        """Runs a short prompt and one token after it: what is made on first use is made before the first request.

        execute: carries out the steps; None for this runner's own way.
        """
        execute = execute or self.execute
        self.phases.start("warm-up")
        block_size = self._resolved.cache.block_size
        num_blocks = min(self._cache.num_blocks, -(-self._resolved.model.max_model_len // block_size), 4)
        most = min(self._resolved.model.max_model_len - 1, self._resolved.scheduler.max_num_batched_tokens, 63)
        prompt = [0] * min(num_blocks * block_size - 1, most)
        sampling = SamplingParams(temperature=1.0, max_tokens=2)
        if prompt:
            admission = Admission(0, prompt, len(prompt), list(range(num_blocks)), sampling, seed=0)
            execute(_one_row_plan(0, [admission], 0, len(prompt)))
            execute(_one_row_plan(1, [], len(prompt), 1))
        self.phases.stop()

    def info(self) -> EngineInfo:
        resolved, facts = self._resolved, self._resolved.facts
        resident = peak = None
        if (held := process_memory()) is not None:
            resident = held[0] + self._cache.num_untouched
            peak = max(resident, held[1])
        return EngineInfo(
            model=resolved.model.model,
            max_model_len=resolved.model.max_model_len,
            vocab_size=facts.vocab_size,
            num_blocks=self._cache.num_blocks,
            block_size=resolved.cache.block_size,
            max_num_seqs=resolved.scheduler.max_num_seqs,
            max_num_batched_tokens=resolved.scheduler.max_num_batched_tokens,
            eos_token_ids=facts.eos_token_ids,
            weights_bytes=self._model.num_bytes,
            kv_cache_bytes=self._cache.num_bytes,
            dtype=resolved.model.dtype,
            device=str(self._device),
            kernels=self._kernels.table | self._decode_steps.table,
            phases=dict(self.phases.seconds),
            resident_bytes=resident,
            peak_bytes=peak,
        )


def _one_row_plan(step: int, admissions: list[Admission], num_computed: int, num_tokens: int) -> StepPlan:
    def column(*values: int) -> Int32:
        return np.array(values, np.int32)

    return StepPlan(
        step=step,
        released_slots=[],
        admissions=admissions,
        block_slots=column(),
        block_ids=column(),
        slots=column(0),
        num_computed=column(num_computed),
        num_tokens=column(num_tokens),
        is_sampled=np.array([True]),
    )
