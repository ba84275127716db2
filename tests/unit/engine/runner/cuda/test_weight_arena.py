from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from stoker.engine.runner.cuda import host_weights
from stoker.engine.runner.cuda.host_weights import HostWeights
from stoker.engine.runner.cuda.weight_arena import CudaLanes, Lanes, OneQueue, WeightArena
from stoker.engine.runner.weight_storages import tensors_in


def layers(count: int, device: str = "cpu") -> list[list[torch.Tensor]]:
    """Of three types and of different sizes, with a view of part of another tensor."""
    made = []
    for index in range(count):
        weight = torch.full((7 + index, 5), float(index), dtype=torch.bfloat16, device=device)
        codes = torch.full((33,), index, dtype=torch.uint8, device=device)
        made.append([weight, weight[2:4], codes, torch.full((3,), -float(index), device=device)])
    return made


def arena_of(of_layers: list[list[torch.Tensor]], num_places: int, lanes: Lanes) -> WeightArena:
    return WeightArena([HostWeights(tensors) for tensors in of_layers], num_places, lanes)


def check(tensors: list[torch.Tensor], index: int) -> None:
    for tensor, value in zip(tensors, (index, index, index, -index), strict=True):
        assert (tensor == value).all()


@dataclass
class Op:
    """after: number of operations of the other queue that must have ended."""

    place: int  # address
    layer: int | None  # whose weights a use expects; None for a copy
    after: int


class Recorded:
    """Both queues as lists; marks and waits as numbers of operations of the other one."""

    def __init__(self) -> None:
        self.uses: list[Op] = []
        self.copies: list[Op] = []
        self._marks: dict[int, int] = {}
        self._copies_after = self._uses_after = 0

    def follow(self) -> None:
        self._copies_after = len(self.uses)

    def copy(self, into: torch.Tensor, source: torch.Tensor) -> None:
        into.copy_(source)
        self.copies.append(Op(into.data_ptr(), None, self._copies_after))

    def mark(self, index: int) -> None:
        self._marks[index] = len(self.copies)

    def wait(self, index: int) -> None:
        self._uses_after = max(self._uses_after, self._marks[index])

    def use(self, place: int, layer: int) -> None:
        self.uses.append(Op(place, layer, self._uses_after))


def conflicts(recorded: Recorded, copied: list[int]) -> set[str]:
    """Searches every order in which the operations of two queues can begin and end. copied: layer of each copy."""
    found: set[str] = set()
    todo, seen = [(0, 0)], {(0, 0)}  # begun and ended, counted in halves: an odd number is an operation under way
    uses, copies = recorded.uses, recorded.copies
    while todo:
        at_use, at_copy = todo.pop()
        if at_use % 2:
            use = uses[at_use // 2]
            last = [copied[index] for index in range(at_copy // 2) if copies[index].place == use.place]
            if last[-1:] != [use.layer]:
                found.add("used before it was copied")
            if at_copy % 2 and copies[at_copy // 2].place == use.place:
                found.add("overwritten while it is used")
        following = []
        if at_use < 2 * len(uses) and (at_use % 2 or at_copy // 2 >= uses[at_use // 2].after):
            following.append((at_use + 1, at_copy))
        if at_copy < 2 * len(copies) and (at_copy % 2 or at_use // 2 >= copies[at_copy // 2].after):
            following.append((at_use, at_copy + 1))
        if not following and (at_use, at_copy) != (2 * len(uses), 2 * len(copies)):
            found.add("both wait")
        todo += [each for each in following if each not in seen]
        seen.update(following)
    return found


def recorded(count: int, num_places: int, *, lacks: str = "") -> tuple[Recorded, list[int]]:
    """Three steps. lacks: a method of the lanes that does nothing."""
    lanes, of_layers = Recorded(), layers(count)
    copied: list[int] = []
    arena = arena_of(of_layers, num_places, lanes)
    if lacks:
        setattr(lanes, lacks, lambda *_: None)
    fetched = 0
    for _ in range(3):
        arena.begin()
        for index in range(count):
            arena.enter(index)
            check(of_layers[index], index)
            lanes.use(of_layers[index][0].data_ptr(), index)
            arena.leave(index)
        copied += range(count)
        fetched += count
        assert len(lanes.copies) == fetched  # each once in a step
    return lanes, copied


@pytest.mark.parametrize(("count", "num_places"), [(2, 1), (3, 1), (3, 2), (5, 2), (7, 3), (8, 4)])
def test_no_order_of_two_queues_reads_what_is_not_there_or_overwrites_what_is_read(count: int, num_places: int):
    assert conflicts(*recorded(count, num_places)) == set()


def test_the_search_finds_what_is_not_waited_for():
    assert "overwritten while it is used" in conflicts(*recorded(5, 2, lacks="follow"))
    assert "used before it was copied" in conflicts(*recorded(5, 2, lacks="wait"))


def test_a_step_has_ended_its_copies_when_its_last_layer_computes():
    lanes, copied = recorded(5, 2)
    assert [use.after for use in lanes.uses] == list(range(1, len(copied) + 1))


def test_addresses_are_the_same_in_every_step_and_views_stay_views():
    of_layers = layers(4)
    arena = arena_of(of_layers, 2, OneQueue())
    addresses = [[tensor.data_ptr() for tensor in tensors] for tensors in of_layers]
    assert addresses[0][0] == addresses[2][0] != addresses[1][0]
    for _ in range(2):
        arena.begin()
        for index, tensors in enumerate(of_layers):
            arena.enter(index)
            check(tensors, index)
            arena.leave(index)
    assert [[tensor.data_ptr() for tensor in tensors] for tensors in of_layers] == addresses
    weight, view, codes, _ = of_layers[3]
    assert view.data_ptr() - weight.data_ptr() == 2 * 5 * 2
    assert codes.data_ptr() % 16 == 0


def test_bytes():
    of_layers = [[torch.zeros(256 * size, dtype=torch.uint8)] for size in (1, 3, 2)]
    arena = arena_of(of_layers, 2, OneQueue())
    assert (arena._places.numel(), arena.host_bytes) == (2 * 3 * 256, 6 * 256)


@pytest.mark.parametrize("num_places", [0, 3])
def test_places_that_save_nothing(num_places: int):
    with pytest.raises(ValueError, match=f"{num_places} places for 3 layers save no memory"):
        arena_of(layers(3), num_places, OneQueue())


def test_moved_tensors_take_no_memory_of_the_device_until_they_have_a_place() -> None:
    (tensors,) = layers(1)
    moved = HostWeights(tensors)
    assert all(tensor.untyped_storage().nbytes() == 0 for tensor in tensors)
    place = torch.zeros(moved.num_bytes + 256, dtype=torch.uint8)[256:]
    moved.point_to(place)
    place.copy_(torch.cat(moved.pieces))
    check(tensors, 0)
    assert tensors[1].data_ptr() - tensors[0].data_ptr() == 2 * 5 * 2


def test_layers_of_several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces end within tensors."""
    monkeypatch.setattr(host_weights, "_PIECE_BYTES", 100)
    of_layers = layers(3)
    arena = arena_of(of_layers, 1, OneQueue())
    arena.begin()
    for index, tensors in enumerate(of_layers):
        arena.enter(index)
        check(tensors, index)
        arena.leave(index)


def test_tensors_of_nested_parts():
    @dataclass
    class Part:
        weight: torch.Tensor
        pieces: tuple[object, ...]

    inner = Part(torch.zeros(1), ())
    part = Part(torch.zeros(2), (inner, None, 3))
    assert [tensor.numel() for tensor in tensors_in(part)] == [2, 1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("is_captured", [False, True])
def test_streams(is_captured: bool):
    of_layers = layers(7, "cuda")
    arena = arena_of(of_layers, 2, CudaLanes(torch.device("cuda"), 7))
    sums = torch.zeros(7, device="cuda")

    def step() -> None:
        arena.begin()
        for index, tensors in enumerate(of_layers):
            arena.enter(index)
            sums[index] = tensors[0].float().mean() + tensors[3].mean() * 100
            arena.leave(index)

    step()
    torch.cuda.synchronize()
    if is_captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
    for _ in range(20):
        sums.zero_()
        graph.replay() if is_captured else step()
        assert sums.tolist() == [index * -99.0 for index in range(7)]
