"""LeadingSampler: the sampler of rank 0, which sends the other ranks what it has sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..loop.step_queue import FailedAfterExchange
from ..transport.rank_messages import Tokens
from .followers import Followers

if TYPE_CHECKING:  # they import torch
    import torch

    from ..sampling.sampler import Bool, Int64, IsShown, Sampled, Sampler
    from ..sampling.sampling_table import Slots
    from ..step.plan import Int32


class LeadingSampler:
    """The sampler of rank 0, whose tokens are for the other ranks too: they have them before the next step begins."""

    def __init__(self, sampler: Sampler, others: Followers) -> None:
        from ..runner.sample_head import LOGIT_ROWS

        self._sampler, self._others = sampler, others
        self._max_rows = LOGIT_ROWS
        self.prompt_logprobs = sampler.prompt_logprobs

    def sample(
        self,
        logits: torch.Tensor,
        slots: Slots,
        lengths: Int64,
        token_table: Int32,
        is_shown: IsShown | None = None,
    ) -> Sampled:
        """See Sampler. Raises FailedAfterExchange, which is reported to the other ranks."""
        try:
            sampled = self._sampler.sample(logits, slots, lengths, token_table, is_shown)
        except Exception as error:
            self._others.hold(Tokens(None))
            raise FailedAfterExchange(error) from error
        token_ids = sampled.token_ids
        if sampled.errors:
            token_ids = token_ids.copy()
            token_ids[list(sampled.errors)] = -1
        tokens = Tokens(token_ids)
        if len(slots) < self._max_rows:
            self._others.hold(tokens)
        else:  # more rows of this step may follow, whose logits are exchanged
            self._others.send(tokens)
        return sampled

    def needs_order(self, slots: Slots) -> Bool:
        """No: the other ranks cannot know it. Sequences of which the sampler keeps something get no drafts."""
        return np.zeros(len(slots), bool)
