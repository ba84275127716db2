"""Runners of pipeline stages. The first stage has the embedding, the output layer and the sampler; each other one has
layers alone. Hidden states go around the ring of stages once for each step.

The first stage begins a step, and finishes it later: meanwhile it can begin others, of other sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ...config import Resolved
from ..api import EngineInfo, StepLaunches
from ..core.step_plan import StepPlan, StepResult
from ..kernels.spans import span
from ..layers.step_input import StepInput
from ..parallel.stages import Hidden, Passed, StageLink
from ..sampling.sampling_table import SamplingTable
from .decode_steps import DecodeSteps
from .engine_info import engine_info
from .expert_balancer import expert_balancer, worst
from .loaded_model import LoadedStage
from .measure import PhaseClock
from .model_runner import LOGIT_ROWS, ModelRunner
from .rank_model import RankModel
from .slot_table import SlotTable
from .step_input import LogitTokens, build_step_input, logit_tokens
from .warm_up import warm_up_plans


@dataclass(frozen=True, slots=True)
class BegunStep:
    """A step whose results the later stages compute."""

    plan: StepPlan
    wanted: LogitTokens
    num_tokens: int


class FirstStageRunner(ModelRunner):
    def __init__(self, link: StageLink, resolved: Resolved, *args: Any, **how: Any) -> None:
        """link: to the second stage, and from the last one. args, how: as ModelRunner takes them."""
        super().__init__(resolved, *args, **how)
        self._link = link
        self._worst_balance: float | None = None

    @property
    def expert_balance(self) -> float | None:
        """As ModelRunner, of the stage where it is smallest."""
        return self._worst_balance

    def info(self) -> EngineInfo:
        info, layers = super().info(), self._resolved.stage_layers
        num_stages = self._resolved.num_stages
        others = " and ".join(f"{layers(stage)[0]} to {layers(stage)[-1]}" for stage in range(1, num_stages))
        stages = f"{num_stages} stages of {self._resolved.parallel.tensor_parallel_size} processes"
        row = f"{stages}: layers 0 to {layers(0)[-1]} and the output layer here, {others} in others"
        rows = {"pipeline": row}
        if self._resolved.device.device == "cuda":
            rows["steps"] = "kernels launched one by one: the stages exchange through the host"
        return replace(info, kernels=info.kernels | rows)

    def begin(self, plan: StepPlan) -> BegunStep:
        """Computes the layers of this stage. Steps are finished in the order in which they begin, and no sequence has
        a row in a step after one that samples for it before that one is finished."""
        with self._step_lock, span(f"step {plan.step}, first stage"):
            self._balance()
            self.slots.apply(plan)
            self._copy_states(plan.restored_states)
            steps = self._cache.views(build_step_input(plan, self.slots, self._device))
            wanted = logit_tokens(plan, self.slots)
            with torch.inference_mode():
                if self._decode_steps.takes(steps[0]):
                    self._num_captured += 1
                    hidden, residual = self._decode_steps.compute(steps)
                else:
                    self._num_single += 1
                    hidden, residual = self._decode(steps)
                self._copy_states(plan.kept_states)
                self._link.send(Passed(hidden, residual, super().expert_balance))
            return BegunStep(plan, wanted, steps[0].num_tokens)

    def finish(self, begun: BegunStep) -> StepResult:
        """Samples from what the last stage has computed. Waits for it."""
        hidden, residual, self._worst_balance = self._link.receive()
        rows = begun.wanted.union(begun.num_tokens)
        with self._step_lock, torch.inference_mode():
            return self._results(
                begun.plan, begun.wanted, np.arange(len(hidden)) if rows is None else rows, hidden, residual
            )

    def execute(self, plan: StepPlan) -> StepResult:
        return self.finish(self.begin(plan))

    def _decode(self, steps: Sequence[StepInput]) -> Hidden:
        """In place of logits, what the next stage needs."""
        return self._model.forward(self._cache.by_layer(steps), self._cache.layers, None)


class LaterStageRunner:
    def __init__(
        self,
        resolved: Resolved,
        stage: int,
        link: StageLink,
        load: Callable[[Resolved, PhaseClock], LoadedStage],
        *,
        captures_steps: bool = True,
    ) -> None:
        """link: from the stage before, and to the next one. load: loads weights and KV cache of the stage.
        captures_steps: as ModelRunner."""
        self._resolved, self._link = resolved, link
        self.phases = PhaseClock(None)
        self._is_last = stage == resolved.num_stages - 1
        loaded = self._loaded = load(resolved, self.phases)
        self.phases.stop()
        self._layers, self._cache = loaded.layers, loaded.cache
        self._balancer = expert_balancer(resolved, loaded.layers.loadables(), loaded.ranks)
        scheduler, model_len, block_size = resolved.scheduler, resolved.model.max_model_len, resolved.cache.block_size
        max_seqs, spec, device = scheduler.max_num_seqs, resolved.model_spec, loaded.device
        self._device = device
        sampling = SamplingTable(max_seqs, spec.vocab_size, resolved.model_files.eos_token_ids, None)
        self._slots = SlotTable(max_seqs, model_len, block_size, sampling, self._cache.groups.num_groups)
        capture = loaded.kernels.capture if captures_steps and self._layers.is_capturable else None
        max_rows, num_views = min(max_seqs, LOGIT_ROWS), len(self._cache.groups.views)
        self._decode_steps = DecodeSteps(self._decode, capture, max_rows, model_len, block_size, num_views, device)
        # Captured steps read from these.
        dtype = getattr(torch, resolved.model.dtype)
        self._hidden = torch.empty(max_rows, spec.hidden_size, dtype=dtype, device=device)
        self._residual = torch.empty_like(self._hidden)
        self._has_residual = True
        self._num_captured = self._num_single = 0

    def execute(self, plan: StepPlan) -> None:
        """The layers of this stage, in the order of the first stage's steps. Raises StageClosed."""
        if self._balancer is not None:
            self._balancer.before_step()
        self._slots.apply(plan)
        states = self._cache.states
        if states is not None:
            states.copy(plan.restored_states)
        steps = self._cache.views(build_step_input(plan, self._slots, self._device))
        rows = logit_tokens(plan, self._slots).union(steps[0].num_tokens) if self._is_last else None
        hidden, residual, balance = self._link.receive()
        if self._balancer is not None:
            balance = worst((balance, self._balancer.balancedness))
        with torch.inference_mode():
            if rows is None and self._decode_steps.takes(steps[0]):
                self._num_captured += 1
                self._hidden[: len(hidden)] = hidden
                self._has_residual = residual is not None
                if residual is not None:
                    self._residual[: len(hidden)] = residual
                hidden, residual = self._decode_steps.compute(steps)
            else:
                self._num_single += 1
                index = None if rows is None else torch.from_numpy(rows).to(self._device)
                layers = self._cache.layers
                hidden, residual = self._layers.forward(hidden, residual, self._cache.by_layer(steps), layers, index)
            if states is not None:
                states.copy(plan.kept_states)
            self._link.send(Passed(hidden, residual, balance))

    def warm_up(self, execute: Callable[[StepPlan], object]) -> None:
        """As ModelRunner."""
        for plan in warm_up_plans(self._resolved, self._cache):
            execute(plan)

    def info(self) -> EngineInfo:
        return engine_info(
            self._resolved,
            self._cache,
            weights_bytes=self._layers.num_bytes,
            device="cpu",
            kernels=self._decode_steps.table | self._layers.table,
            phases=self.phases.seconds,
        )

    def rank_model(self, rank: int = 0) -> RankModel:
        """As ModelRunner."""
        return RankModel(self._layers, self._resolved, rank, self._replace)

    def _replace(self, load: Callable[[], None]) -> None:
        load()
        self._decode_steps.forget()

    def launches(self) -> StepLaunches:
        return StepLaunches(self._num_captured, self._num_single)

    def free_memory(self) -> None:
        """As ModelRunner."""
        self._loaded.free_memory()

    def take_memory(self) -> None:
        """As ModelRunner."""
        self._loaded.take_memory()

    def _decode(self, steps: Sequence[StepInput]) -> Hidden:
        num_rows = steps[0].num_rows
        residual = self._residual[:num_rows] if self._has_residual else None
        return self._layers.forward(
            self._hidden[:num_rows], residual, self._cache.by_layer(steps), self._cache.layers, None
        )
