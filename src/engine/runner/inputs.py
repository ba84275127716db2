"""Inputs: what the body of a step is computed from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from ..collectives.stages import StageLink
from ..kernels import SlotsOfRanks
from ..layers.linear import Mix
from ..layers.step_input import StepInput
from ..step.plan import StepPlan
from .materials import Materials
from .step_features import TOKEN_IDS, flags_of, with_features
from .step_input import build_step_input
from .step_part import Hidden
from .step_shape import StepFlag


class HostInputs:
    """Tensors that the host builds from the slot table."""

    def __init__(self, made: Materials) -> None:
        self.slots, self._cache, self._device = made.slots, made.loaded.cache, made.loaded.device
        self._features = made.features

    def apply(self, plan: StepPlan) -> None:
        """Apply the changes since the previous plan. Plans must arrive in the order in which they were made."""
        self.slots.apply(plan)

    def views(self, plan: StepPlan, slots_by_rank: tuple[torch.Tensor, ...] = ()) -> tuple[StepInput, ...]:
        """The step of an applied plan, as each view of the cache sees it. slots_by_rank: as of StepPart."""
        steps: Sequence[StepInput] = build_step_input(plan, self.slots, self._device)
        if flags := flags_of(self._features, plan, self.slots):
            columns = {name: torch.from_numpy(each).to(self._device) for name, each in self.slots.columns.items()}
            columns[TOKEN_IDS] = torch.from_numpy(self.slots.token_ids)  # on the host: it is large
            steps = with_features(steps, self._features, flags, columns)
        if slots_by_rank:
            by_group = zip(steps, slots_by_rank, strict=True)
            steps = [replace(step, by_rank=SlotsOfRanks(each)) for step, each in by_group]
        return self._cache.views(steps)

    def mix(self, plan: StepPlan) -> Mix | None:
        """The mix of all tokens of a step that is computed in parts."""
        has_mix = flags_of(self._features, plan, self.slots) & StepFlag.MIX
        return self.views(plan)[0].mix if has_mix else None

    def received(self) -> Hidden | None:
        """The hidden states that the layers begin with, of all tokens; None: they begin with token ids."""
        return None


class ReceivedInputs(HostInputs):
    """The same, with the hidden states of the stage before."""

    def __init__(self, made: Materials, link: StageLink) -> None:
        super().__init__(made)
        self._link, self._moves = link, made.moves

    def received(self) -> Hidden:
        """Waits for them. Raises StageClosed."""
        hidden, residual, self._moves.balance_of_others = self._link.receive()
        return hidden, residual


MakeInputs = Callable[[Materials], HostInputs]
