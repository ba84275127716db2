"""Where experts are, so that the ranks have about as much work: from the tokens that went to each expert.

Pure functions. Every rank has equally many places, no more than there are experts; an expert may be in several ranks,
whose copies share its tokens evenly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...model.sharding import Layout

TOLERANCE = 1.02  # a largest load that is smaller by less is not worth that experts move


def rank_loads(layout: Layout, loads: Sequence[float]) -> list[float]:
    """loads: of each expert. Returns that of each rank."""
    copies = Counter(expert for held in layout for expert in held)
    return [sum(loads[expert] / copies[expert] for expert in held) for held in layout]


def balanced_layout(present: Layout, loads: Sequence[float]) -> Layout:
    """A layout whose largest load of a rank is small, and not above that of the present one; of layouts that are about
    as good one in which few experts move. Those that stay keep their places.

    loads: tokens of each expert. The same arguments always give the same layout.
    Each rank of the result has different experts, and every expert is somewhere.
    """
    num_copies = _num_copies(loads, sum(map(len, present)), len(present))
    order = sorted(range(len(loads)), key=lambda expert: (-loads[expert] / num_copies[expert], expert))
    copies = [(expert, loads[expert] / num_copies[expert]) for expert in order for _ in range(num_copies[expert])]
    found = [present, *(_packed(present, copies, stays=stays) for stays in (True, False))]
    largest = [max(rank_loads(layout, loads)) for layout in found]
    return next(
        layout for layout, load in zip(found, largest, strict=True) if load <= min(largest) * TOLERANCE or not load
    )


def _num_copies(loads: Sequence[float], num_places: int, num_ranks: int) -> list[int]:
    """Of each expert: one, and the others where those that there are have most tokens."""
    copies = [1] * len(loads)
    for _ in range(num_places - len(loads)):
        possible = (expert for expert in range(len(loads)) if copies[expert] < num_ranks)
        copies[max(possible, key=lambda expert: (loads[expert] / copies[expert], -expert))] += 1
    return copies


def _packed(present: Layout, copies: Sequence[tuple[int, float]], *, stays: bool) -> Layout:
    """copies: experts with the load of a copy, the largest load first. Each is put where the load is least.

    stays: an expert stays in a rank that has it until that rank has its share of the load.
    """
    ranks, size = range(len(present)), len(present[0])
    share = sum(load for _, load in copies) / len(present) * TOLERANCE
    held: list[dict[int, float]] = [{} for _ in ranks]  # by expert
    totals = [0.0] * len(present)

    def put(expert: int, load: float, rank: int) -> None:
        held[rank][expert] = load
        totals[rank] += load

    for expert, load in copies:
        free = [rank for rank in ranks if len(held[rank]) < size and expert not in held[rank]]
        if not free:  # the ranks with a free place have it: another expert moves there, and it takes that one's place
            full = next(rank for rank in ranks if len(held[rank]) < size)
            other, moved = min(
                ((rank, each) for rank in ranks if expert not in held[rank] for each in held[rank].keys() - held[full]),
                key=lambda at: (max(totals[full] + held[at[0]][at[1]], totals[at[0]] - held[at[0]][at[1]] + load), at),
            )
            its_load = held[other].pop(moved)
            totals[other] -= its_load
            put(moved, its_load, full)
            free = [other]
        if stays:
            kept = [rank for rank in free if expert in present[rank] and (totals[rank] + load <= share or not load)]
            free = kept or free
        put(expert, load, min(free, key=lambda rank: (totals[rank], expert not in present[rank], rank)))
    return tuple(_in_places(before, set(after)) for before, after in zip(present, held, strict=True))


def _in_places(before: Sequence[int], after: set[int]) -> tuple[int, ...]:
    """The experts of a rank: those that it had stay in their places."""
    new = iter(sorted(after - set(before)))
    return tuple(expert if expert in after else next(new) for expert in before)
