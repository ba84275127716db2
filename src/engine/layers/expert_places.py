"""ExpertPlaces: where the experts of a layer are, as long as they may move, and how many tokens went to each place."""

from __future__ import annotations

from itertools import chain, pairwise

import torch

from ...model.expert_placement import Layout
from ..kernels import ExpertCopies


class ExpertPlaces:
    """Each rank has equally many places, with an expert in each. Rank 1's places follow rank 0's."""

    def __init__(self, layout: Layout, rank: int, count: int, device: torch.device) -> None:
        """count: of experts."""
        self.rank = rank
        self.layout = layout
        self._size = len(layout[0])
        num_places = len(layout) * self._size
        self.copies = ExpertCopies(
            torch.zeros(count + 1, dtype=torch.int32, device=device),
            torch.zeros(num_places, dtype=torch.int32, device=device),
            torch.zeros(num_places, dtype=torch.int64, device=device),
            range(rank * self._size, (rank + 1) * self._size),
        )
        self.use(layout)

    @property
    def own(self) -> tuple[int, ...]:
        """The experts of this process, by their places."""
        return self.layout[self.rank]

    def use(self, layout: Layout) -> None:
        """Use a layout from the next step on. The counts begin at 0: earlier tokens went to other places."""
        self.layout = layout
        experts = list(chain.from_iterable(layout))
        order = sorted(range(len(experts)), key=lambda place: (experts[place], self._turn(place, experts[place])))
        counts = torch.bincount(torch.tensor(experts), minlength=len(self.copies.starts) - 1)
        self.copies.starts[1:] = counts.cumsum(0)
        self.copies.places.copy_(torch.tensor(order))
        self.forget_counts()

    def _turn(self, place: int, expert: int) -> int:
        """The first row of a step goes to copies in all ranks, not only in the first ones."""
        return (place // self._size - expert) % len(self.layout)

    def forget_counts(self) -> None:
        self.copies.counts.zero_()

    def expert_counts(self) -> list[int]:
        """Tokens of each expert."""
        by_place = self.copies.counts[self.copies.places.long()].tolist()
        return [sum(by_place[start:stop]) for start, stop in pairwise(self.copies.starts.tolist())]

    def rank_counts(self) -> list[int]:
        """Tokens of each rank, one for each expert that a token goes to."""
        counts: list[int] = self.copies.counts.view(len(self.layout), -1).sum(1).tolist()
        return counts
