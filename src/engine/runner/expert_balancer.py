"""ExpertBalancer: moves experts between ranks, so that the ranks have about as much work in a step.

All ranks call it before each step, and so do the same at the same time. Only rank 0 decides. In a round the layers
follow one another, and the work before one step is limited; the experts of a layer are used together, when all that are
new to a rank have arrived.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from ...config import Resolved
from ...model.expert_placement import Layout
from ..collectives import Ranks
from ..collectives.expert_layout import balanced_layout
from ..host.pages import give_back_free
from ..kernels import PackedExpert
from ..layers.expert_places import ExpertPlaces
from ..layers.expert_weights import Experts
from ..layers.loading import Loadable
from .expert_transfer import received_expert, sent_expert

logger = logging.getLogger(__name__)
BYTES_PER_STEP = 32 << 20  # of experts that move before one step, and one more expert


@dataclass(frozen=True, slots=True)
class _Move:
    """One expert, to the places of the ranks that get it."""

    expert: int
    owner: int
    places: dict[int, int]  # by rank


class _LayerMoves:
    """The moves of one layer's experts to a new layout."""

    def __init__(self, layer: Experts, layout: Layout, ranks: Ranks) -> None:
        self._layer, self._layout, self._ranks = layer, layout, ranks
        self._moves = deque(_moves(places_of(layer).layout, layout))
        self._arrived: dict[int, PackedExpert] = {}  # by place in this rank
        self.num_places = sum(len(move.places) for move in self._moves)

    def go_on(self) -> bool:
        """Moves some experts. Returns whether all have moved."""
        num_bytes = 0
        while self._moves and num_bytes < BYTES_PER_STEP:
            num_bytes += self._move(self._moves.popleft())
        if not self._moves and self.num_places:
            self._layer.move(self._layout, self._arrived)
        return not self._moves

    def _move(self, move: _Move) -> int:
        layer, rank = self._layer, self._ranks.rank
        if move.owner == rank:
            return sent_expert(layer.packed.experts[layer.sizes.held.index(move.expert)], self._ranks)
        arrived = received_expert(move.owner, self._ranks)
        if rank in move.places:
            self._arrived[move.places[rank]] = arrived.expert
        return arrived.num_bytes


class ExpertBalancer:
    def __init__(
        self, layers: Sequence[Experts], ranks: Ranks, window_size: int, step_interval: int, *, logs: bool = False
    ) -> None:
        """
        layers: with experts that can move.
        window_size: the last steps of an interval, in which tokens are counted.
        step_interval: steps from one begin of a round to the next; at least `window_size`.
        logs: rank 0 logs the balance, and what has moved.
        """
        self._layers, self._ranks = layers, ranks
        self._window_size, self._step_interval = window_size, step_interval
        self._logs = logs and not ranks.rank
        self._num_steps = 0
        self._loads: deque[tuple[Experts, list[int]]] = deque()  # of the layers that follow in this round
        self._moving: _LayerMoves | None = None
        self._num_places = 0  # that have got another expert in this round
        self.balancedness: float | None = None  # mean load of the ranks over the largest one; None: not measured yet

    def before_step(self) -> None:
        """Raises RuntimeError if another rank has ended."""
        with torch.inference_mode():  # the weights are tensors of it
            position = self._num_steps % self._step_interval
            if self._num_steps and not position and not self._is_in_round:
                self._begin_round()
            if self._is_in_round:
                self._go_on()
            if position == (self._step_interval - self._window_size) % self._step_interval:
                for layer in self._layers:
                    places_of(layer).forget_counts()
        self._num_steps += 1

    @property
    def _is_in_round(self) -> bool:
        return self._moving is not None or bool(self._loads)

    def _begin_round(self) -> None:
        self._measure()
        self._loads.extend((layer, places_of(layer).expert_counts()) for layer in self._layers)
        self._num_places = 0

    def _measure(self) -> None:
        """The ranks wait for each other in every layer, so that each layer counts by itself."""
        counts = [places_of(layer).rank_counts() for layer in self._layers]
        largest = sum(map(max, counts))
        if largest:
            self.balancedness = sum(sum(each) / len(each) for each in counts) / largest
            if self._logs:
                logger.info("experts: balancedness %.3f over %d steps", self.balancedness, self._window_size)

    def _go_on(self) -> None:
        if self._moving is None:
            self._moving = self._decided(*self._loads.popleft())
        if self._moving.go_on():
            self._num_places += self._moving.num_places
            has_moved, self._moving = self._moving.num_places > 0, None
            if has_moved:
                give_back_free()
            if not self._loads and self._num_places and self._logs:
                logger.info("experts: %d places have got another expert", self._num_places)

    def _decided(self, layer: Experts, loads: Sequence[int]) -> _LayerMoves:
        """Rank 0 chooses the new layout, and the others get it."""
        layout = places_of(layer).layout
        if not self._ranks.rank:
            layout = balanced_layout(layout, loads)
        experts = torch.tensor([*chain.from_iterable(layout)], dtype=torch.int32)
        self._ranks.from_rank(experts, 0)
        return _LayerMoves(layer, tuple(map(tuple, experts.view(len(layout), -1).tolist())), self._ranks)


def _moves(before: Layout, after: Layout) -> Iterator[_Move]:
    """A move of each expert that is new to a rank, from the first rank that has it."""
    places: dict[int, dict[int, int]] = {}
    for rank, (had, has) in enumerate(zip(before, after, strict=True)):
        for place, expert in enumerate(has):
            if expert not in had:
                places.setdefault(expert, {})[rank] = place
    for expert, by_rank in places.items():
        owner = next(rank for rank, had in enumerate(before) if expert in had)
        yield _Move(expert, owner, by_rank)


def places_of(layer: Experts) -> ExpertPlaces:
    assert layer.places is not None, "experts that stay"
    return layer.places


def worst(balances: Iterable[float | None]) -> float | None:
    """The smallest one that is measured."""
    return min((each for each in balances if each is not None), default=None)


def expert_balancer(resolved: Resolved, parts: Iterator[Loadable], ranks: Ranks | None) -> ExpertBalancer | None:
    """parts: of the model. None if no expert of it can move."""
    layers = [part for part in parts if isinstance(part, Experts) and part.places is not None]
    if ranks is None or not layers:
        return None
    balance = resolved.parallel.expert_balance
    return ExpertBalancer(layers, ranks, balance.window_size, balance.step_interval, logs=balance.log_balancedness)
