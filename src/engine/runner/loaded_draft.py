"""LoadedDraft: a network that drafts tokens for a model on a CPU, with its weights and its keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..kernels.capture import Capture
from ..models.draft_network import DraftNetwork, ModelReader
from .kv_cache import KVCache


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    network: DraftNetwork
    cache: KVCache  # as many blocks as the model has
    reader: ModelReader | None  # of what the network gets of the model; None of one that gets nothing
    dtype: torch.dtype
    capture: Capture | None  # of steps of the network; None where none can be captured
