"""Heads of ranks that compute a step together: rank 0 samples, and the others get its tokens."""

from __future__ import annotations

from collections.abc import Sequence

from ..runner.heads import MakeHead
from ..runner.sample_head import SampleHead, own_sampler
from ..sampling.logits_processor import LogitsProcessor
from .followers import Followers
from .following_sampler import FollowingSampler, Receiving
from .leading_sampler import LeadingSampler


def lead(others: Followers, processors: Sequence[LogitsProcessor] = ()) -> MakeHead:
    """The head of rank 0. processors: applied to the logits of all requests."""
    return lambda made: SampleHead(made, LeadingSampler(own_sampler(made, processors), others))


def follow(link: Receiving) -> MakeHead:
    """The head of another rank. link: to rank 0."""
    return lambda made: SampleHead(made, FollowingSampler(link))
