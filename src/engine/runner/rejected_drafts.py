"""RejectedDrafts: takes rejected drafts back from recurrent states.

A step computes the drafts of a row like other tokens, so the state of its slot is then the one after all of them.
Before such a step the state is copied to a second place, and what the parts with a state computed from is kept after
it. The next plan that has a row of the slot says how many tokens were accepted: its row begins after them. If that is
not all of them, the copy is put back, and each part changes it by the accepted tokens only. Nothing else is computed
again.

So a state is right when a plan reads it, and not before. Every process of a model gets all plans, so ranks and stages
need no message about what was sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from ..layers.step_input import StateInputs
from ..models.decoder import DecoderPart
from ..step.plan import Int32, StepPlan
from .drafted_row import DraftedRow
from .inputs import HostInputs
from .materials import Materials


class RejectedDrafts:
    """A StepCopy, which does nothing while no row has drafts."""

    def __init__(self, made: Materials, inputs: HostInputs) -> None:
        """made: of a model with states and second places of them."""
        model, cache = made.loaded.model, made.loaded.cache
        assert isinstance(model, DecoderPart)
        assert cache.states is not None
        self._stack, self._cache, self._states, self._inputs = model.stack, cache, cache.states, inputs
        self._rows = made.drafted_rows
        self._second = made.resolved.memory.num_states - made.resolved.scheduler.max_num_seqs

    def before(self, plan: StepPlan) -> None:
        """Make the states right that the step reads, and copy those that it changes by drafts."""
        if self._rows:
            for slot in (*plan.released_slots, *(admission.slot for admission in plan.admissions)):
                self._rows.pop(slot, None)
            self._take_back(plan)
        if len(rows := plan.drafted_rows):
            self._states.copy(self._places(plan.slots[rows]))

    def after(self, plan: StepPlan) -> None:
        """Does nothing: see `keep`."""

    def keep(self, plan: StepPlan, inputs: Sequence[StateInputs]) -> None:
        """Called after a step with drafts. inputs: of all its tokens; they are valid until the next step."""
        ends = np.cumsum(plan.num_tokens)
        drafted = plan.drafted_rows.tolist()
        num_tokens = int(ends[drafted[-1]])  # decode rows are the first ones
        copies = [each.values[:num_tokens].clone() for each in inputs]
        caches = [each.cache for each in inputs]
        for row in drafted:
            part = slice(int(ends[row] - plan.num_tokens[row]), int(ends[row]))
            slot, num_computed = int(plan.slots[row]), int(plan.num_computed[row])
            of_row = [StateInputs(values[part], cache) for values, cache in zip(copies, caches, strict=True)]
            self._rows[slot] = DraftedRow(num_computed, int(plan.num_tokens[row]), of_row)

    def _take_back(self, plan: StepPlan) -> None:
        rejected: dict[int, tuple[DraftedRow, int]] = {}  # row -> what was kept of it, and how many tokens are accepted
        for row, (slot, computed) in enumerate(zip(plan.slots.tolist(), plan.num_computed.tolist(), strict=True)):
            if (drafted := self._rows.pop(slot, None)) is not None:
                count = computed - drafted.num_computed
                assert 0 < count <= drafted.num_tokens, (slot, computed, drafted.num_computed)
                if count < drafted.num_tokens:
                    rejected[row] = drafted, count
        if not rejected:
            return
        rows, found = list(rejected), list(rejected.values())
        counts = np.array([count for _, count in found], np.int32)
        accepted = replace(
            plan,
            slots=plan.slots[rows],
            num_computed=plan.num_computed[rows] - counts,
            num_tokens=counts,
            num_outputs=np.zeros_like(counts),
        )
        self._states.copy(self._places(accepted.slots)[:, ::-1])
        inputs = [
            StateInputs(
                torch.cat([each.values[:count] for each, count in zip(parts, counts, strict=True)]), parts[0].cache
            )
            for parts in zip(*(drafted.inputs for drafted, _ in found), strict=True)
        ]
        self._stack.advance(inputs, self._cache.by_layer(self._inputs.views(accepted)))

    def _places(self, slots: Int32) -> Int32:
        """[n, 2] The place of each slot, and its second place."""
        return np.stack((slots, slots + np.int32(self._second)), axis=1)
