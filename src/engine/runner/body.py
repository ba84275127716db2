"""HostBody: the layers of this stage and rank, computed whole or in parts, and captured where the kernels can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ...config import Resolved
from ..api import StepLaunches
from ..layers.step_input import StateInputs, StepInput
from ..models.decoder import LaterStage
from ..step.plan import StepPlan
from ..step.result import StepResult
from . import sample_head
from .assistance import Assistance
from .decode_steps import DecodeSteps
from .divided_step import divided_steps
from .heads import Finish, Head, HeadStep, no_result
from .inputs import HostInputs
from .loaded_model import LoadedModel
from .materials import Materials
from .measure import PhaseClock
from .rejected_drafts import RejectedDrafts
from .shared_step import SharedSteps
from .step_input import Int64, logit_tokens
from .step_part import Hidden, StepDivision, StepPart

_CAPTURED_DRAFTS = 32  # tokens of a step with drafts: some 70 graphs at most
Forward = Callable[[Sequence[StepInput], Hidden | None, torch.Tensor | None], Hidden]


class HostBody:
    def __init__(self, made: Materials, inputs: HostInputs, head: Head, rejected: RejectedDrafts | None = None) -> None:
        """rejected: None of a model without states, and without drafts."""
        self._rejected = rejected
        resolved, loaded = made.resolved, made.loaded
        self._slots, self._inputs, self._head = made.slots, inputs, head
        self._device, self._forward = loaded.device, forward_of(loaded)
        in_turns = divided_steps(resolved)
        self._division: StepDivision | None = in_turns
        if loaded.prompt_ranks is not None:
            self._division = SharedSteps(loaded.prompt_ranks, made.slots, in_turns)
        captures = resolved.device.device == "cpu" and loaded.model.is_capturable
        capture = loaded.kernels.capture if captures else None
        replicas = loaded.replicas
        self.decode_steps = DecodeSteps(
            self._projected,
            capture,
            min(resolved.scheduler.max_num_seqs, sample_head.LOGIT_ROWS),
            resolved.model.max_model_len,
            resolved.cache.block_size,
            len(loaded.cache.groups.views),
            loaded.device,
            (lambda: 0) if replicas is None else (lambda: replicas.graph_rows),
            **_draft_sizes(resolved),
        )
        self.assistance = None if replicas is None else Assistance(replicas, loaded.model.loadables(), capture)
        self._launched = made.launched

    @property
    def table(self) -> dict[str, str]:
        """Rows of the start-up table."""
        divided = {} if self._division is None else self._division.table
        return self.decode_steps.table | divided | self._head.table

    def compute(self, plan: StepPlan) -> Finish:
        if not plan.num_rows:
            assert self.assistance is not None, "no other replica needs these experts"
            self.assistance.compute()
            return no_result
        wanted, division = logit_tokens(plan, self._slots), self._division
        rows = self._head.rows(wanted, plan.num_batched_tokens)
        keeps_inputs = self._rejected is not None and len(plan.drafted_rows) > 0
        if division is not None:
            if division.takes(plan) and not keeps_inputs:
                self._launched.num_single += 1
                step = HeadStep(plan, wanted, rows, self._inputs.mix(plan))
                return self._head.begin(step, division.compute(plan, rows, self._part))
            division.before_whole(plan)
        views = self._inputs.views(plan)
        received = self._inputs.received()
        step = HeadStep(plan, wanted, rows, views[0].mix)
        is_whole = rows is None and not wanted.pooled  # all tokens have the head that is captured with the layers
        shape = self.decode_steps.shape_of(views[0], received) if is_whole else None
        if shape is not None:
            self._launched.num_captured += 1
            num_graphs = self.decode_steps.num_graphs
            projected, state_inputs = self.decode_steps.compute(shape, views, received)
            self._keep(plan, state_inputs)
            finish = self._head.begin_projected(step, projected)
            return finish if self.decode_steps.num_graphs == num_graphs else partial(_of_new_shape, finish)
        self._launched.num_single += 1
        state_inputs = []
        if keeps_inputs:
            views = _with_list(views, state_inputs)
        hidden = self._forward(views, received, self._index(rows))
        self._keep(plan, state_inputs)
        return self._head.begin(step, hidden)

    def _keep(self, plan: StepPlan, state_inputs: Sequence[StateInputs]) -> None:
        if self._rejected is not None and len(plan.drafted_rows):
            self._rejected.keep(plan, state_inputs)

    def warm_up(self, phases: PhaseClock) -> None:
        """Does nothing: decode steps are captured when they occur."""

    def idle(self) -> bool:
        """Nothing is left for idle time."""
        return False

    def forget(self) -> None:
        """Forget captured graphs: the tensors that they read are replaced."""
        self.decode_steps.forget()
        if self.assistance is not None:
            self.assistance.forget()

    def launches(self) -> StepLaunches:
        return StepLaunches(self._launched.num_captured, self._launched.num_single)

    def _part(self, part: StepPart) -> Hidden:
        return self._forward(self._inputs.views(part.plan, part.slots_by_rank), None, self._index(part.rows))

    def _projected(self, views: Sequence[StepInput], received: Hidden | None) -> tuple[Any, list[StateInputs]]:
        """What is captured, of all tokens of a step: what the head projects, and what states are computed from if the
        step may have drafts."""
        state_inputs: list[StateInputs] = []
        if self._rejected is not None and views[0].max_query_len > 1:
            views = _with_list(views, state_inputs)
        return self._head.project(*self._forward(views, received, None), views[0].mix), state_inputs

    def _index(self, rows: Int64 | None) -> torch.Tensor | None:
        return None if rows is None else torch.from_numpy(rows).to(self._device)


def _with_list(views: Sequence[StepInput], state_inputs: list[StateInputs]) -> tuple[StepInput, ...]:
    """The same step, which fills the list."""
    return tuple(replace(view, state_inputs=state_inputs) for view in views)


def _of_new_shape(finish: Finish) -> StepResult:
    result = finish()
    result.is_of_new_shape = True
    return result


def _draft_sizes(resolved: Resolved) -> dict[str, int]:
    """Sizes of captured steps in which rows have drafts. Larger steps gain little by it, and there are many shapes."""
    if resolved.speculative.method is None:
        return {}
    width = 1 + resolved.speculative.num_speculative_tokens
    return {"max_tokens_per_row": width, "max_drafted": max(width, _CAPTURED_DRAFTS)}


def forward_of(loaded: LoadedModel) -> Forward:
    """The layers of a stage as a function of a step (for each view of the cache), of the hidden states that they begin
    with, if they do not begin with token ids, and of the tokens whose hidden states are needed; None: of all."""
    model, cache = loaded.model, loaded.cache

    def forward(views: Sequence[StepInput], received: Hidden | None, rows: torch.Tensor | None) -> Hidden:
        if isinstance(model, LaterStage):
            assert received is not None, "this stage begins with hidden states"
            return model.forward(*received, cache.by_layer(views), cache.layers, rows)
        return model.forward(cache.by_layer(views), cache.layers, rows)

    return forward
