"""ModelRunner: executes step plans. Has model, KV cache, slot table and sampler, built once from a Resolved.

A step has four independent stages: the slot table is updated from the plan, tensors are built from the table, the
forward pass, sampling.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ...config import Resolved
from ...config.cpu_kernels import torch_table
from ...config.schema.types import format_about
from ...model.quantised import scheme_of
from ..api import EngineInfo, StepLaunches, TokenLogprobs
from ..core.step_plan import Int32, StepPlan, StepResult
from ..kernels import SlotsOfRanks
from ..kernels.cpu.library import CpuLibrary
from ..kernels.spans import span
from ..layers.step_input import StepInput
from ..sampling.logits_processor import LogitsProcessor
from ..sampling.sampler import Sampler, TokenSampler
from ..sampling.sampling_table import SamplingTable
from ..structured.grammars import Grammars
from .assistance import Assistance
from .block_transfer import TransferOf
from .decode_steps import DecodeSteps
from .divided_step import divided_steps
from .engine_info import engine_info
from .expert_balancer import expert_balancer
from .loaded_model import LoadedModel, load_on_cpu, with_library
from .measure import PhaseClock
from .rank_model import RankModel
from .self_test import self_test
from .shared_step import SharedSteps
from .slot_table import SlotTable
from .step_input import Int64, LogitTokens, build_step_input, logit_tokens
from .step_part import Hidden, StepDivision, StepPart
from .warm_up import warm_up_plans

logger = logging.getLogger(__name__)
Load = Callable[[Resolved, PhaseClock], LoadedModel]
LogitsOf = Callable[[Int64], torch.Tensor]  # indices into the rows of a forward pass -> their logits
LOGIT_ROWS = 128  # rows of logits computed at a time: 78 MB in float32 for a vocabulary of 152k


class ModelRunner:
    def __init__(
        self,
        resolved: Resolved,
        phase: Callable[[str], None] | None = None,
        processors: Sequence[LogitsProcessor] = (),
        load: Load = load_on_cpu,
        *,
        captures_steps: bool = True,
        grammars: Grammars | None = None,
        transfer_of: TransferOf | None = None,
        sampler_of: Callable[[Sampler], TokenSampler] = lambda sampler: sampler,
    ) -> None:
        """
        phase: called with the name of each start-up phase when it begins.
        processors: applied to the logits of all requests.
        load: loads weights and KV cache onto the device. Raises if that fails.
        captures_steps: capture decode steps, if the kernels can, at the first step of each number of rows.
        grammars: None if no request has a constraint.
        transfer_of: makes what copies blocks of the KV cache to a store and back; None if plans ask for none.
        sampler_of: called with the sampler, returns what is used in its place.
        """
        self._resolved = resolved
        self.phases = PhaseClock(phase)
        model_spec, scheduler = resolved.model_spec, resolved.scheduler
        model_len, block_size = resolved.model.max_model_len, resolved.cache.block_size
        loaded = load(resolved, self.phases)
        eos_token_ids = resolved.model_files.eos_token_ids
        sampling = SamplingTable(scheduler.max_num_seqs, model_spec.vocab_size, eos_token_ids, grammars)
        num_groups = loaded.cache.groups.num_groups
        self.slots = SlotTable(scheduler.max_num_seqs, model_len, block_size, sampling, num_groups)
        self._processors = processors
        self.transfer = None if transfer_of is None else transfer_of(loaded)
        self._captures_steps = captures_steps
        self._sampler_of = sampler_of
        self._num_captured = self._num_single = 0  # steps, replayed and not
        self._step_lock = threading.Lock()  # held during a step, and while the kernels change
        self._use(loaded)
        self._self_test: dict[str, str] = {}
        if resolved.device.self_test:
            self.phases.start("self-test")
            self._self_test["self_test"] = self_test(self._model, self._kernels, resolved.device.num_threads)
        self.phases.stop()
        if loaded.compilation is not None:
            loaded.compilation.when_loaded(self._switch_kernels)

    def _use(self, loaded: LoadedModel) -> None:
        resolved = self._resolved
        max_rows = min(resolved.scheduler.max_num_seqs, LOGIT_ROWS)
        model_len, block_size = resolved.model.max_model_len, resolved.cache.block_size
        self.loaded = loaded
        self._device, self._kernels = loaded.device, loaded.kernels
        self._model, self._cache = loaded.model, loaded.cache
        sampler = Sampler(self.slots.sampling, self._kernels, self._processors, resolved.model.logprobs_mode)
        self._sampler = self._sampler_of(sampler)
        in_turns = divided_steps(resolved)
        self._division: StepDivision | None = in_turns
        if loaded.prompt_ranks is not None:
            self._division = SharedSteps(loaded.prompt_ranks, self.slots, in_turns)
        self._balancer = expert_balancer(resolved, loaded.model.loadables(), loaded.ranks)
        capture = self._kernels.capture if self._captures_steps and self._model.is_capturable else None
        num_views = len(loaded.cache.groups.views)
        replicas = loaded.replicas
        graph_rows = (lambda: 0) if replicas is None else (lambda: replicas.graph_rows)
        self._decode_steps = DecodeSteps(
            self._decode, capture, max_rows, model_len, block_size, num_views, self._device, graph_rows
        )
        self._assistance = None if replicas is None else Assistance(replicas, self._model.loadables(), capture)

    def _switch_kernels(self, library: CpuLibrary) -> None:
        """Replaces torch's operations by a library, between two steps and in the thread that has compiled it.

        Requests go on: token ids, sampling parameters and the KV cache do not depend on the kernels. Weights are packed
        again, a layer at a time, and decode steps are captured again.
        """
        with self._step_lock:
            began = time.perf_counter()
            self._use(with_library(self.loaded, self._resolved, library))
            seconds = time.perf_counter() - began
        logger.info(
            "kernels: C++ %s replaces torch; compiled in %.1f s, weights packed in %.2f s",
            library.level.name,
            library.compile_seconds or 0.0,
            seconds,
        )

    def execute(self, plan: StepPlan) -> StepResult:
        """One step. Plans must arrive in the order in which the scheduler made them."""
        with self._step_lock, span(f"step {plan.step}"):
            self._balance()
            self.slots.apply(plan)
            return self.compute(plan)

    def assist(self) -> None:
        """Take part in a step without tokens of this replica."""
        assert self._assistance is not None, "no other replica needs these experts"
        with self._step_lock, span("step of other replicas"), torch.inference_mode():
            self._assistance.compute()

    def _balance(self) -> None:
        if self._balancer is not None:
            self._balancer.before_step()

    def compute(self, plan: StepPlan) -> StepResult:
        """The step of a plan that was applied to the slot table."""
        self._copy_states(plan.restored_states)
        self.load_blocks(plan)
        result = self._compute(plan)
        self._copy_states(plan.kept_states)
        self.save_blocks(plan)
        return result

    def load_blocks(self, plan: StepPlan) -> None:
        """Before the step of the plan."""
        if plan.loads:
            assert self.transfer is not None, "nothing is stored"
            self.transfer.load(plan.loads)

    def save_blocks(self, plan: StepPlan) -> None:
        """After the step of the plan."""
        if plan.saves and self.transfer is not None:
            self.transfer.save(plan.saves)

    def _copy_states(self, places: Int32) -> None:
        if self._cache.states is not None:
            self._cache.states.copy(places)

    def _compute(self, plan: StepPlan) -> StepResult:
        wanted = logit_tokens(plan, self.slots)
        rows = wanted.union(plan.num_batched_tokens)
        with torch.inference_mode():
            if self._division is not None and self._division.takes(plan):
                found = self._division.compute(plan, rows, self._forward_part)
            else:
                if self._division is not None:
                    self._division.before_whole(plan)
                steps = self._input(plan)
                if rows is None and not len(wanted.prompt) and self._decode_steps.takes(steps[0]):
                    logits = self._decode_steps.compute(steps)
                    self._num_captured += 1
                    return self._sample(plan, wanted, np.arange(plan.num_batched_tokens), lambda at: logits)
                found = self._forward(steps, rows)
            self._num_single += 1
            if rows is None:
                rows = np.arange(plan.num_batched_tokens)
            return self._results(plan, wanted, rows, *found)

    def _input(self, plan: StepPlan) -> tuple[StepInput, ...]:
        """The step as each view of the cache sees it."""
        return self._cache.views(build_step_input(plan, self.slots, self._device))

    def _forward_part(self, part: StepPart) -> Hidden:
        steps = build_step_input(part.plan, self.slots, self._device)
        if part.slots_by_rank:
            by_group = zip(steps, part.slots_by_rank, strict=True)
            steps = tuple(replace(step, by_rank=SlotsOfRanks(each)) for step, each in by_group)
        return self._forward(self._cache.views(steps), part.rows)

    def _forward(self, steps: Sequence[StepInput], rows: Int64 | None) -> Hidden:
        """rows: the tokens that need logits, as indices into the batch; None for all."""
        index = None if rows is None else torch.from_numpy(rows).to(self._device)
        return self._model.forward(self._cache.by_layer(steps), self._cache.layers, index)

    def _results(
        self, plan: StepPlan, wanted: LogitTokens, rows: Int64, hidden: torch.Tensor, residual: torch.Tensor | None
    ) -> StepResult:
        """hidden, residual: of the tokens with the batch indices `rows`."""

        def logits_of(at: Int64) -> torch.Tensor:
            return self._logits(hidden, residual, at)

        prompt_logprobs = self._prompt_logprobs(plan, wanted, rows, logits_of)
        result = self._sample(plan, wanted, rows, logits_of)
        result.prompt_logprobs = prompt_logprobs
        return result

    def _decode(self, steps: Sequence[StepInput]) -> Any:
        """The logits of all tokens of a step: what is captured."""
        return self._model.logits(*self._model.forward(self._cache.by_layer(steps), self._cache.layers, None))

    def _sample(self, plan: StepPlan, wanted: LogitTokens, rows: Int64, logits_of: LogitsOf) -> StepResult:
        """rows: the batch indices that `logits_of` can return logits of, ascending."""
        token_ids: Int32 = np.full(plan.num_rows, -1, np.int32)
        logprobs: dict[int, TokenLogprobs] = {}
        errors: dict[int, str] = {}
        complete: list[int] = []
        forced: dict[int, list[int]] = {}
        at = np.searchsorted(rows, wanted.sampled)
        for start in range(0, len(at), LOGIT_ROWS):
            part = slice(start, start + LOGIT_ROWS)
            plan_rows = wanted.sampled_rows[part]
            slots = plan.slots[plan_rows]
            lengths = self.slots.num_tokens[slots]
            logits = logits_of(at[part])
            sampled = self._sampler.sample(logits, slots, lengths, self.slots.token_ids)
            self.slots.append(slots, sampled.token_ids)
            token_ids[plan_rows] = sampled.token_ids
            logprobs.update((int(plan_rows[row]), found) for row, found in sampled.logprobs.items())
            errors.update((int(plan_rows[row]), error) for row, error in sampled.errors.items())
            forced.update((int(plan_rows[row]), run) for row, run in sampled.forced.items())
            complete += plan_rows[sampled.complete].tolist()
        return StepResult(token_ids, logprobs, errors=errors, complete=complete, forced=forced)

    def _prompt_logprobs(
        self, plan: StepPlan, wanted: LogitTokens, rows: Int64, logits_of: LogitsOf
    ) -> dict[int, list[TokenLogprobs]]:
        found: dict[int, list[TokenLogprobs]] = {}
        at = np.searchsorted(rows, wanted.prompt)
        starts = np.cumsum(plan.num_tokens) - plan.num_tokens
        for start in range(0, len(at), LOGIT_ROWS):
            part = slice(start, start + LOGIT_ROWS)
            plan_rows = wanted.prompt_rows[part]
            slots = plan.slots[plan_rows]
            positions = plan.num_computed[plan_rows] + wanted.prompt[part] - starts[plan_rows]
            next_ids = torch.from_numpy(self.slots.token_ids[slots, positions + 1].astype(np.int64))
            logits = logits_of(at[part])
            entries = self._sampler.prompt_logprobs(logits, next_ids.to(self._device), slots)
            for row, entry in zip(plan_rows.tolist(), entries, strict=True):
                found.setdefault(row, []).append(entry)
        return found

    def _logits(self, hidden: torch.Tensor, residual: torch.Tensor | None, at: Int64) -> torch.Tensor:
        if len(at) == len(hidden):
            return self._model.logits(hidden, residual)
        index = torch.from_numpy(at).to(self._device)
        return self._model.logits(hidden[index], None if residual is None else residual[index])

    def warm_up(self, execute: Callable[[StepPlan], StepResult] | None = None) -> None:
        """Runs a short prompt and one token after it, so that lazy initialisation happens before the first request.

        execute: executes the steps; None for `self.execute`.
        """
        execute = execute or self.execute
        self.phases.start("warm-up")
        for plan in warm_up_plans(self._resolved, self._cache):
            execute(plan)
        self.phases.stop()

    def free_memory(self) -> None:
        """Give the memory that only steps need back to the system. Raises MemoryError, and has all of it still."""
        with self._step_lock:
            self.loaded.free_memory()

    def take_memory(self) -> None:
        """Take it again, before the next step. Raises MemoryError, and has none of it then."""
        with self._step_lock:
            self.loaded.take_memory()

    def rank_model(self, rank: int = 0) -> RankModel:
        """The weights. rank: of this process among those of its stage."""
        return RankModel(self._model, self._resolved, rank, self._replace)

    def _replace(self, load: Callable[[], None]) -> None:
        with self._step_lock:
            load()
            self._decode_steps.forget()
            if self._assistance is not None:
                self._assistance.forget()

    @property
    def expert_balance(self) -> float | None:
        """Mean load of the ranks over the largest one; None if it is not measured."""
        return None if self._balancer is None else self._balancer.balancedness

    def launches(self) -> StepLaunches:
        return StepLaunches(self._num_captured, self._num_single)

    def info(self) -> EngineInfo:
        return engine_info(
            self._resolved,
            self._cache,
            weights_bytes=self._model.num_bytes,
            device=str(self._device),
            kernels=self._table(),
            phases=dict(self.phases.seconds),
        )

    def _table(self) -> dict[str, str]:
        compilation, model = self.loaded.compilation, self._resolved.model
        others = self._model.table | self._cache.table | self._states_table() | self._self_test
        if self._division is not None:
            others |= self._division.table
        if compilation is not None:
            return torch_table(str(compilation), scheme_of(model.quantization)) | others
        return self._kernels.table | self._decode_steps.table | others

    def _states_table(self) -> dict[str, str]:
        states = self._cache.states
        if states is None:
            return {}
        resolved, size = self._resolved, format_about(states.num_bytes)
        kept = resolved.num_kept_states
        reused = f"{kept} more are kept for prefixes that are reused" if kept else "no prefix is reused"
        return {"recurrent_states": f"{size} for {resolved.scheduler.max_num_seqs} sequences; {reused}"}
