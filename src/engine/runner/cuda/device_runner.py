"""DeviceRunner: executes steps on a CUDA device, where the next step can be queued before the current one has ended.

A step is sent as a few values for each row, is one replay of a graph, and returns one token for each row. Rows with
grammars are sampled once more after the graph, among the tokens that their masks allow: the host has computed those
from the tokens of the step before while the device computed the step, so other rows do not wait for them.

What only the host can compute - logits processors, log-probabilities of prompts, processed log-probabilities - uses the
steps of ModelRunner instead, one at a time: each waits for all steps before it and writes its tokens to the device's
tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ....config import Resolved
from ...api import EngineInfo, StepLaunches
from ...core.step_plan import Int32, StepPlan, StepResult
from ...kernels.spans import span
from ...sampling.logits_processor import LogitsProcessor
from ...sampling.sampler import NO_VALID_LOGITS, Sampler, TokenSampler
from ...structured.grammars import Grammars
from ...structured.guided_rows import GuidedRows
from ..block_transfer import TransferOf
from ..model_runner import Load, ModelRunner
from .buckets import StepShape
from .loading import load_on_device
from .logprobs import LaunchedLogprobs, launch_logprobs
from .staging import Download
from .step_launcher import OtherRanks, StepLauncher

Finish = Callable[[], StepResult]  # waits for the step


class _GuidedStep(NamedTuple):
    rows: GuidedRows
    tokens: Callable[[], Int32]  # of all rows of the step; waits for it


class DeviceRunner:
    def __init__(
        self,
        resolved: Resolved,
        phase: Callable[[str], None] | None = None,
        processors: Sequence[LogitsProcessor] = (),
        load: Load = load_on_device,
        *,
        grammars: Grammars | None = None,
        others: OtherRanks | None = None,
        transfer_of: TransferOf | None = None,
        sampler_of: Callable[[Sampler], TokenSampler] = lambda sampler: sampler,
    ) -> None:
        """Loads the model, or the part of it that rank 0 has, onto the device. The arguments are ModelRunner's.

        others: the ranks on other GPUs; None if there are none.

        Raises ModelFilesError for weights that do not fit the model, MemoryError if the device has too little memory.
        """
        self._host = ModelRunner(
            resolved,
            phase,
            processors,
            load=load,
            captures_steps=False,
            grammars=grammars,
            transfer_of=transfer_of,
            sampler_of=sampler_of,
        )
        self.free_memory: Callable[[], None] = self._host.free_memory
        self.take_memory: Callable[[], None] = self._host.take_memory
        slots = resolved.scheduler.max_num_seqs
        self._table = self._host.slots.sampling
        self._normalises = resolved.model.logprobs_mode.endswith("logprobs")
        self._shows_processed = resolved.model.logprobs_mode.startswith("processed")
        self._launcher = StepLauncher(resolved, self._host)
        self._step, self.graphs = self._launcher.step, self._launcher.graphs
        self._guided: _GuidedStep | None = None  # the newest one, until the guides have its tokens
        self._others = others
        self._download = Download(self._step.sampled, None if others is None else others.check)
        self._launches = [0, 0]  # steps without a graph, and with one
        self._padding = np.zeros(2, np.int64)  # rows and tokens
        self._has_processors = bool(processors)
        self._is_fast_path = np.ones(slots, bool)  # by slot: it is greedy or has only a temperature
        self._needs_host = np.zeros(
            slots, bool
        )  # by slot: until its prompt's log-probabilities are computed, or always

    def launch(self, plan: StepPlan) -> Finish:
        """Queues a step; returns a function that waits for its result. Plans must arrive in the scheduler's order."""
        with span(f"step {plan.step}"):
            return self._launch(plan)

    def _launch(self, plan: StepPlan) -> Finish:
        launcher, others = self._launcher, self._others
        with torch.inference_mode():
            launcher.apply(plan)
            for admission in plan.admissions:
                self._admit(admission.slot)
            with_guides = self._table.rows_with_guides(plan.slots)
            with_guides = with_guides[plan.is_sampled[with_guides]]
            if self._needs_host[plan.slots].any():
                self._take_guided()
                if others is not None:
                    others.launch(plan, None, with_guides)
                result = self._compute_on_host(plan)
                return lambda: result
            shape = launcher.buckets.shape(
                plan.num_batched_tokens,
                plan.num_rows,
                is_decode=bool(plan.num_tokens.max() == 1),
                is_fast_path=bool(self._is_fast_path[plan.slots].all()),
            )
            if others is not None:
                others.launch(plan, shape, with_guides)
            logits = launcher.launch(plan, shape, with_guides)
            self._launches[self.graphs.has(shape)] += 1
            self._padding += shape.num_rows - plan.num_rows, shape.num_tokens - plan.num_batched_tokens
            guided = self._sample_guided(plan, with_guides, logits, shape) if len(with_guides) else None
            asking = plan.is_sampled & (self._table.num_logprobs[plan.slots] >= 0)
            logprobs = self._launch_logprobs(plan, logits, asking) if asking.any() else None
            ticket = self._download.start(plan.num_rows)
            if guided is not None:
                self._guided = _GuidedStep(guided, partial(self._tokens, plan, ticket))
            launcher.keep(plan)
        return partial(self._finish, plan, ticket, logprobs, guided)

    def execute(self, plan: StepPlan) -> StepResult:
        """Queues one step and waits for its result."""
        return self.launch(plan)()

    def _admit(self, slot: int) -> None:
        table = self._table
        is_plain = table.is_greedy[slot] or (
            table.top_k[slot] == 0 and table.top_p[slot] >= 1 and table.min_p[slot] == 0
        )
        self._is_fast_path[slot] = is_plain and not self._changes_logits(slot)
        self._needs_host[slot] = self._always_needs_host(slot) or table.num_prompt_logprobs[slot] >= 0

    def _changes_logits(self, slot: int) -> bool:
        table = self._table
        return bool(table.has_bias[slot] or table.has_penalties[slot] or slot in table.ending_ids)

    def _always_needs_host(self, slot: int) -> bool:
        """For each step of the slot's sequence, not only for the log-probabilities of its prompt."""
        table = self._table
        has_processors = self._has_processors or table.has_processors[slot] or table.has_bad_words[slot]
        return bool(has_processors or (table.num_logprobs[slot] >= 0 and self._shows_processed_logits(slot)))

    def _shows_processed_logits(self, slot: int) -> bool:
        """Whether log-probabilities of the slot's sequence differ from those that the device computes.

        Processed ones of a greedy sequence whose logits nothing changes are the raw ones.
        """
        table = self._table
        if not table.has_processed_logprobs[slot]:
            return self._shows_processed
        return not (self._normalises and table.is_greedy[slot]) or self._changes_logits(slot)

    def _launch_logprobs(self, plan: StepPlan, logits: torch.Tensor, asking: npt.NDArray[np.bool_]) -> LaunchedLogprobs:
        rows = np.flatnonzero(asking)
        counts = self._table.num_logprobs[plan.slots[rows]]
        return launch_logprobs(logits, self._step.sampled, rows, counts, normalise=self._normalises)

    def _sample_guided(
        self, plan: StepPlan, rows: npt.NDArray[np.int64], logits: torch.Tensor, shape: StepShape
    ) -> GuidedRows:
        """Queues the second sampling of the rows with guides, once their masks are known."""
        guides = self._table.guides
        assert guides is not None
        self._take_guided()
        guided = GuidedRows(guides, plan.slots, rows)
        self._step.sample_again(logits, {row: guided.masks.get(row) for row in rows.tolist()}, shape)
        self._launcher.sampled_again(plan, rows)
        return guided

    def _take_guided(self) -> None:
        """Gives the guides the tokens of the newest step that had some, if they do not have them. Waits for it."""
        if (guided := self._guided) is not None:
            self._guided = None
            guided.rows.take(np.maximum(guided.tokens(), 0))

    def _tokens(self, plan: StepPlan, ticket: int) -> Int32:
        """Of the plan's rows, -1 where none was sampled. Waits for the step."""
        token_ids = self._download.wait(ticket, plan.num_rows)
        token_ids[~plan.is_sampled] = -1
        return token_ids

    def _finish(
        self, plan: StepPlan, ticket: int, logprobs: LaunchedLogprobs | None, guided: GuidedRows | None
    ) -> StepResult:
        token_ids = self._tokens(plan, ticket)
        failed = np.flatnonzero((token_ids < 0) & plan.is_sampled)
        token_ids[failed] = 0  # any valid id: it is not used
        result = StepResult(token_ids, logprobs.read() if logprobs is not None else {})
        result.errors.update(dict.fromkeys(failed.tolist(), NO_VALID_LOGITS))
        if guided is not None:
            if self._guided is not None and self._guided.rows is guided:
                self._take_guided()
            result.errors.update(guided.errors)
            result.complete, result.forced = guided.complete, guided.forced
        return result

    def _compute_on_host(self, plan: StepPlan) -> StepResult:
        result = self._launcher.compute_on_host(plan)
        for slot in plan.slots[plan.is_sampled].tolist():  # the prompt is computed
            self._needs_host[slot] = self._always_needs_host(slot)
        return result

    def warm_up(self) -> None:
        """Runs lazy initialisation, and captures the graphs that the first requests need."""
        self._host.warm_up(self.execute)
        self._host.phases.start("graphs")
        for _ in range(self._launcher.request_graphs()):
            if not self.idle():
                break
        self._host.phases.stop()

    @property
    def num_blocks(self) -> int:
        """Of the KV cache, all groups of layers together."""
        return self._host.loaded.cache.num_blocks

    def launches(self) -> StepLaunches:
        single, captured = self._launches
        return StepLaunches(captured, single, self._host.launches().kernels, *self._padding.tolist())

    def idle(self) -> bool:
        """Captures one more graph while the engine is idle. False when none is left."""
        if self._others is not None and self.graphs.has_pending:
            self._others.capture_next()
        with torch.inference_mode():
            return self.graphs.capture_next()

    def info(self) -> EngineInfo:
        info, device = self._host.info(), self._host.loaded.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "Triton's interpreter"
        return replace(info, device=f"{device} ({name})", kernels=info.kernels | {"steps": self.graphs.summary})
