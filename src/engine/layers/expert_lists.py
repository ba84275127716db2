"""Experts that a table lists for each token id, in place of those that the router would choose (DeepSeek-V4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import torch

from ..kernels import KernelSet, Routing
from .experts import MixtureOfExperts
from .linear import Mix
from .loading import Held, Loadable, TensorReader, tensor_of


class ExpertLists:
    """The experts of each token id, [token ids, experts of a token] int32."""

    def __init__(self, name: str, num_tokens: int, routing: Routing, device: torch.device) -> None:
        self._name, self._num_experts = name, routing.num_experts
        self.ids = torch.zeros(num_tokens, routing.per_token, dtype=torch.int32, device=device)

    def wanted(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield self._name, tuple(self.ids.shape)

    def load(self, tensors: TensorReader) -> None:
        """Raises ValueError for the number of an expert that the model does not have."""
        tensors.read(self._name, self.ids)
        least, most = (int(bound) for bound in torch.aminmax(self.ids))
        if least < 0 or most >= self._num_experts:
            raise ValueError(f"`{self._name}` lists expert {least if least < 0 else most} of {self._num_experts}")

    def take_weights(self, other: Self) -> None:
        self.ids = other.ids

    def held(self) -> Held:
        return {"ids": self.ids}

    def hold(self, held: Held) -> None:
        self.ids = tensor_of(held, "ids", self.ids)

    @property
    def num_bytes(self) -> int:
        return self.ids.nbytes


class ListedExperts:
    """Experts of which a token goes through those that its id has; the router's scores are their weights."""

    def __init__(self, experts: MixtureOfExperts, lists: ExpertLists, routing: Routing, kernels: KernelSet) -> None:
        self.experts, self.lists = experts, lists
        self._routing, self._kernels = routing, kernels

    def loadables(self) -> Iterator[Loadable]:
        yield from self.experts.loadables()
        yield self.lists

    def of(self, x: torch.Tensor, token_ids: torch.Tensor, mix: Mix | None = None) -> torch.Tensor:
        """x: [T, hidden]. token_ids: [T] int64. mix: of the T tokens. Returns the block's output, [T, hidden]."""
        ids = self._kernels.copy_rows(self.lists.ids, token_ids)
        weights = self._kernels.weigh_experts(self.experts.router.logits(x, mix), ids, self._routing)
        return self.experts.of_routed(x, x, ids, weights, mix)
