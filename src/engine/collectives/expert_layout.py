"""Places experts so that the ranks have about as much work: from the tokens that went to each expert.

Pure functions. Every rank has equally many places, no more than there are experts; an expert may be in several ranks,
whose copies share its tokens evenly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

from ...model.expert_placement import Layout

TOLERANCE = 1.02  # a largest load that is smaller by less is not worth that experts move
_EVEN = 1.01  # of the mean: a rank with this load is not relieved


def rank_loads(layout: Layout, loads: Sequence[float]) -> list[float]:
    """loads: of each expert. Returns the load of each rank."""
    copies = Counter(expert for held in layout for expert in held)
    return [sum(loads[expert] / copies[expert] for expert in held) for held in layout]


def balanced_layout(present: Layout, loads: Sequence[float]) -> Layout:
    """A layout whose largest load of a rank is small, and not above the present one's. Of layouts that are about
    as good it is the present one, else one in which few experts move. Experts that stay keep their places.

    loads: tokens of each expert. The same arguments always give the same layout.
    Each rank of the result has different experts, and every expert is somewhere.
    """
    num_copies = _num_copies(loads, sum(map(len, present)), len(present))
    found = [present]
    for keeps in (True, False):
        ranks = _Ranks(present)
        copies = [(loads[expert] / count, expert) for expert, count in enumerate(num_copies) for _ in range(count)]
        if keeps:
            copies = list(ranks.keep(copies))
        for load, expert in sorted(copies, key=lambda copy: (-copy[0], copy[1])):  # longest processing time first
            ranks.put_where_least(expert, load)
        if keeps:
            ranks.relieve()
        found.append(ranks.layout())
    largest = [max(rank_loads(layout, loads)) for layout in found]
    return next(layout for layout, load in zip(found, largest, strict=True) if load <= min(largest) * TOLERANCE)


def _num_copies(loads: Sequence[float], num_places: int, num_ranks: int) -> list[int]:
    """Number of copies of each expert: one, and more where each of the existing copies has most tokens."""
    copies = [1] * len(loads)
    for _ in range(num_places - len(loads)):
        possible = (expert for expert in range(len(loads)) if copies[expert] < num_ranks)
        copies[max(possible, key=lambda expert: (loads[expert] / copies[expert], -expert))] += 1
    return copies


class _Ranks:
    """What each rank has so far: experts, and the load of a copy of each."""

    def __init__(self, present: Layout) -> None:
        self._present = present
        self._size = len(present[0])
        self._ranks = range(len(present))
        self._held: list[dict[int, float]] = [{} for _ in present]
        self._totals = [0.0] * len(present)

    def keep(self, copies: Sequence[tuple[float, int]]) -> Iterator[tuple[float, int]]:
        """Puts copies where the expert is at present. Returns the copies for which there is no such rank."""
        for load, expert in copies:
            rank = next((r for r in self._ranks if expert in self._present[r] and expert not in self._held[r]), None)
            if rank is None:
                yield load, expert
            else:
                self._put(expert, load, rank)

    def put_where_least(self, expert: int, load: float) -> None:
        free = [rank for rank in self._ranks if self._has_room(rank) and expert not in self._held[rank]]
        if not free:  # the ranks with a free place have this expert
            free = [self._make_room(expert, load)]
        self._put(expert, load, min(free, key=lambda r: (self._totals[r], expert not in self._present[r], r)))

    def relieve(self) -> None:
        """Exchanges experts of the rank with the largest load and the one with the smallest, while that helps."""
        even = sum(self._totals) / len(self._totals) * _EVEN
        while True:
            high = max(self._ranks, key=lambda rank: (self._totals[rank], -rank))
            low = min(self._ranks, key=lambda rank: (self._totals[rank], rank))
            difference = self._totals[high] - self._totals[low]
            best = min(self._exchanges(high, low, difference), default=None)
            if self._totals[high] <= even or best is None or best[0] >= difference * (1 - 1e-9):
                return
            _, expert, other = best
            self._move(expert, high, low)
            self._move(other, low, high)

    def _exchanges(self, high: int, low: int, difference: float) -> Iterator[tuple[float, int, int]]:
        """Exchanges of each expert of `high` with the two of `low` whose loads fit best: what remains of the
        difference, and both experts. All pairs would be as many as experts squared: a second for 512 experts."""
        others = sorted((less, other) for other, less in self._held[low].items() if other not in self._held[high])
        for expert, more in self._held[high].items():
            if expert not in self._held[low]:
                at = bisect_left(others, (more - difference / 2, -1))
                for less, other in others[max(0, at - 1) : at + 1]:
                    yield abs(difference - 2 * (more - less)), expert, other

    def layout(self) -> Layout:
        return tuple(_in_places(before, set(after)) for before, after in zip(self._present, self._held, strict=True))

    def _has_room(self, rank: int) -> bool:
        return len(self._held[rank]) < self._size

    def _make_room(self, expert: int, load: float) -> int:
        """Moves another expert to a free place. Returns the rank that it leaves, which does not have `expert`.

        A full rank has more experts than one with a free place, so one of them can move there.
        """
        roomy = next(rank for rank in self._ranks if self._has_room(rank))
        possible = (
            (max(self._totals[roomy] + its, self._totals[rank] - its + load), rank, other)
            for rank in self._ranks
            if expert not in self._held[rank]
            for other, its in self._held[rank].items()
            if other not in self._held[roomy]
        )
        _, rank, other = min(possible)
        self._move(other, rank, roomy)
        return rank

    def _put(self, expert: int, load: float, rank: int) -> None:
        self._held[rank][expert] = load
        self._totals[rank] += load

    def _move(self, expert: int, source: int, target: int) -> None:
        load = self._held[source].pop(expert)
        self._totals[source] -= load
        self._put(expert, load, target)


def _in_places(before: Sequence[int], after: set[int]) -> tuple[int, ...]:
    """The experts of a rank: experts that it had stay in their places."""
    new = iter(sorted(after - set(before)))
    return tuple(expert if expert in after else next(new) for expert in before)
