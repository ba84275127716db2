"""ExpertBalancer: moves experts between ranks, so that the ranks have about as much work in a step.

All ranks call it before each step, and so do the same at the same time. Rank 0 alone decides. Experts move some at a
time, between steps; those of a layer are used together, when all of them have arrived.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from ...config import Resolved
from ...model.sharding import Layout
from ..kernels import PackedExpert
from ..layers.expert_places import ExpertPlaces
from ..layers.experts import Experts
from ..layers.loading import Loadable
from ..parallel import Ranks
from ..parallel.expert_layout import balanced_layout
from .expert_transfer import received_expert, sent_expert

logger = logging.getLogger(__name__)
BYTES_PER_STEP = 32 << 20  # of experts that move before one step, and one more expert


@dataclass(frozen=True, slots=True)
class _Move:
    """One expert of a layer, to the places of the ranks that get it."""

    layer: int
    expert: int
    owner: int
    places: dict[int, int]  # by rank


class ExpertBalancer:
    def __init__(
        self, layers: Sequence[Experts], ranks: Ranks, window_size: int, step_interval: int, *, logs: bool = False
    ) -> None:
        """layers: with experts that can move. window_size: of the last steps before experts move, in which their tokens
        are counted; step_interval: at least as many. logs: a line for each interval, on rank 0."""
        self._layers, self._ranks = layers, ranks
        self._window_size, self._step_interval, self._logs = window_size, step_interval, logs
        self._num_steps = 0
        self._moves: deque[_Move] = deque()
        self._targets: list[Layout] = []
        self._arrived: dict[int, PackedExpert] = {}  # of the layer that moves, by place in this rank
        self.balancedness: float | None = None  # mean load of the ranks over the largest one; None: not measured yet

    def before_step(self) -> None:
        """Raises RuntimeError if another rank has ended."""
        with torch.inference_mode():  # the weights are tensors of it
            self._before_step()

    def _before_step(self) -> None:
        if self._moves:
            self._move_some()
        position = self._num_steps % self._step_interval
        if self._num_steps and not position and not self._moves:
            self._decide()
        if position == (self._step_interval - self._window_size) % self._step_interval:
            for places in self._places:
                places.forget_counts()
        self._num_steps += 1

    @property
    def _places(self) -> Iterator[ExpertPlaces]:
        for layer in self._layers:
            assert layer.places is not None, "experts that stay"
            yield layer.places

    def _decide(self) -> None:
        """Rank 0 chooses new layouts, and the others get them."""
        present = [places.layout for places in self._places]
        targets = present
        if not self._ranks.rank:
            self._measure()
            targets = [balanced_layout(places.layout, places.expert_counts()) for places in self._places]
        experts = torch.tensor([*chain.from_iterable(chain.from_iterable(targets))], dtype=torch.int32)
        self._ranks.from_rank(experts, 0)
        remaining = iter(experts.tolist())
        self._targets = [tuple(tuple(next(remaining) for _ in held) for held in layout) for layout in present]
        for index, (before, after) in enumerate(zip(present, self._targets, strict=True)):
            self._moves.extend(_moves(index, before, after))
        if self._logs and not self._ranks.rank:
            changed = sum(len(move.places) for move in self._moves)
            logger.info(
                "experts: balancedness %s over %d steps; %d of %d places get another expert",
                "unknown" if self.balancedness is None else f"{self.balancedness:.3f}",
                self._window_size,
                changed,
                len(experts),
            )

    def _measure(self) -> None:
        """The layers wait for their slowest rank one by one, so that each counts by itself."""
        counts = [places.rank_counts() for places in self._places]
        largest = sum(map(max, counts))
        if largest:
            self.balancedness = sum(sum(each) / len(each) for each in counts) / largest

    def _move_some(self) -> None:
        num_bytes = 0
        while self._moves and num_bytes < BYTES_PER_STEP:
            move = self._moves.popleft()
            num_bytes += self._move(move)
            if not self._moves or self._moves[0].layer != move.layer:
                self._layers[move.layer].move(self._targets[move.layer], self._arrived)
                self._arrived = {}

    def _move(self, move: _Move) -> int:
        layer, rank = self._layers[move.layer], self._ranks.rank
        if move.owner == rank:
            return sent_expert(layer.packed.experts[layer.sizes.held.index(move.expert)], self._ranks)
        arrived = received_expert(move.owner, self._ranks)
        if rank in move.places:
            self._arrived[move.places[rank]] = arrived.expert
        return arrived.num_bytes


def _moves(layer: int, before: Layout, after: Layout) -> Iterator[_Move]:
    """Of each expert that is new to a rank, from the first rank that has it."""
    places: dict[int, dict[int, int]] = {}
    for rank, (had, has) in enumerate(zip(before, after, strict=True)):
        for place, expert in enumerate(has):
            if expert not in had:
                places.setdefault(expert, {})[rank] = place
    for expert, by_rank in places.items():
        owner = next(rank for rank, had in enumerate(before) if expert in had)
        yield _Move(layer, expert, owner, by_rank)


def expert_balancer(resolved: Resolved, parts: Iterator[Loadable], ranks: Ranks | None) -> ExpertBalancer | None:
    """parts: of the model. None if no expert of it can move."""
    layers = [part for part in parts if isinstance(part, Experts) and part.places is not None]
    if ranks is None or not layers:
        return None
    balance = resolved.parallel.expert_balance
    return ExpertBalancer(layers, ranks, balance.window_size, balance.step_interval, logs=balance.log_balancedness)
