"""What a deployment may bring of its own: named by import path in tests of plugins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from subprocess import run as run
from typing import Any, ClassVar

import torch

from stoker.engine.api import EngineRequest
from stoker.engine.core import Scheduler, SchedulerSettings
from stoker.engine.sampling.logits_processor import Rows
from stoker.engine.worker import Worker


class Only:
    """Allows one token only, 7 by default."""

    settings_schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {"token_id": {"type": "integer", "minimum": 0}},
        "additionalProperties": False,
    }

    def __init__(self, token_id: int = 7) -> None:
        self._token_id = token_id

    def __call__(self, logits: torch.Tensor, rows: Rows) -> torch.Tensor:
        allowed = logits[:, self._token_id].clone()
        logits.fill_(-torch.inf)
        logits[:, self._token_id] = allowed
        return logits


class NoRepeats:
    """Forbids every token that the answer holds already."""

    def __call__(self, logits: torch.Tensor, rows: Rows) -> torch.Tensor:
        for row in range(len(rows.num_tokens)):
            answer = rows.token_ids(row)[rows.num_prompt_tokens[row] :]
            logits[row, answer.astype(int).tolist()] = -torch.inf
        return logits


class Ban:
    def __init__(self, token_ids: Iterable[int], *, strength: float = float("inf")) -> None:
        self._token_ids = list(token_ids)
        self._strength = strength

    def __call__(self, logits: torch.Tensor, rows: Rows) -> torch.Tensor:
        logits[:, self._token_ids] -= self._strength
        return logits


def negated(logits: torch.Tensor, rows: Rows) -> torch.Tensor:
    return -logits


def breaks(logits: torch.Tensor, rows: Rows) -> torch.Tensor:
    raise ArithmeticError("no such logits")


class Breaks:
    def __call__(self, logits: torch.Tensor, rows: Rows) -> torch.Tensor:
        return breaks(logits, rows)


def not_numbers(logits: torch.Tensor, rows: Rows) -> torch.Tensor:
    return logits * torch.nan


def forbids_all(logits: torch.Tensor, rows: Rows) -> torch.Tensor:
    return logits - torch.inf


def cuts(logits: torch.Tensor, rows: Rows) -> torch.Tensor:
    return logits[:, :1]


class ShortestFirst(Scheduler):
    """Shorter prompts have the better priority."""

    def add(self, request: EngineRequest) -> None:
        request.priority = len(request.inputs.prompt_token_ids)
        super().add(request)


class NotAScheduler:
    def schedule(self) -> None: ...


class CannotBeMade(Scheduler):
    def __init__(self, settings: object) -> None:
        raise RuntimeError("no licence")


NUMBER = 7


class WeightUpdates:
    """An extension of the workers."""

    def place(self) -> tuple[int, int]:
        return self.rank, self.world_size

    def load(self, tensors: dict[str, torch.Tensor]) -> list[str]:
        """Names of the tensors that wait for others."""
        self.model.load_weights(tensors)
        return self.model.pending

    def load_through_one_buffer(self, tensors: dict[str, torch.Tensor]) -> list[str]:
        buffer = torch.empty(max(tensor.numel() for tensor in tensors.values()))

        def received() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in tensors.items():
                yield name, buffer[: tensor.numel()].view(tensor.shape).copy_(tensor)

        self.model.load_weights(received())
        return self.model.pending

    def shape(self, name: str) -> tuple[int, ...] | None:
        return self.model.shapes.get(name)

    def sizes(self) -> dict[str, int]:
        return {name: tensor.numel() for name, tensor in self.model.named_parameters()}

    def fails_on(self, rank: int) -> None:
        if self.rank == rank:
            raise ValueError("as asked")

    def thing(self) -> object:
        return object()


class OwnWorker(Worker):
    """A class of workers."""

    def __init__(self) -> None:
        self.number = 10 * self.world_size + self.rank

    def own_number(self) -> int:
        return self.number


class HasRank:
    rank = 3


class NeedsArguments:
    def __init__(self, size: int) -> None:
        self.size = size


class NotDerived:
    """A scheduler that plans no adapters."""

    has_work = add = abort = stats = schedule = finish_step = fail_step = forget_cached = None

    def __init__(self, settings: SchedulerSettings) -> None: ...
