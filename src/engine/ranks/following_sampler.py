"""The sampler of a rank that samples nothing itself: rank 0 does."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from ..api import TokenLogprobs
from ..sampling.sampler import Bool, Int64, Sampled
from ..sampling.sampling_table import Slots
from ..transport.rank_messages import RankMessage, Tokens


class Receiving(Protocol):
    def receive(self) -> RankMessage: ...


class SamplingFailed(Exception):
    """Sampling failed on rank 0. The step is over."""


class FollowingSampler:
    """Receives what rank 0 has sampled."""

    def __init__(self, link: Receiving) -> None:
        self._link = link

    def sample(
        self, logits: torch.Tensor, slots: Slots, lengths: Int64, token_table: object, is_shown: object = None
    ) -> Sampled:
        """logits: a part, not used, like the table and what is shown: rank 0 has the log-probabilities."""
        message = self._link.receive()
        assert isinstance(message, Tokens), message
        if message.token_ids is None:
            raise SamplingFailed
        failed = np.flatnonzero(message.token_ids < 0)
        message.token_ids[failed] = 0
        return Sampled(message.token_ids, {}, dict.fromkeys(failed.tolist(), "failed on rank 0"))

    def prompt_logprobs(self, logits: torch.Tensor, next_ids: torch.Tensor, slots: Slots) -> list[TokenLogprobs]:
        """Placeholders: rank 0 has the log-probabilities."""
        return [TokenLogprobs([], [], 0)] * len(slots)

    def needs_order(self, slots: Slots) -> Bool:
        """See LeadingSampler."""
        return np.zeros(len(slots), bool)
