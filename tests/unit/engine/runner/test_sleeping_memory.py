"""Memory that an engine gives back while it sleeps: addresses and weights stay, caches are zeros."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from stoker.engine.runner import sleeping_memory
from stoker.engine.runner.sleeping_memory import CudaReservation, HostReservation, Reservation, SleepingMemory

PLENTY = 1 << 40
HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if HAS_GPU else torch.device("cpu")


def reserve(num_bytes: int) -> Reservation:
    return CudaReservation(num_bytes, DEVICE) if HAS_GPU else HostReservation(num_bytes)


def memory(available: int = PLENTY, num_sharers: int = 1) -> SleepingMemory:
    return SleepingMemory(reserve, lambda: available, num_sharers)


def test_a_cache_has_its_address_and_is_zeros_after_sleep() -> None:
    mine = memory()
    cache = mine.zeros((3, 5, 1000), dtype=torch.bfloat16)
    codes = mine.zeros((7,), dtype=torch.uint8)
    assert (cache.shape, cache.dtype, cache.device) == ((3, 5, 1000), torch.bfloat16, DEVICE)
    assert not cache.any()
    address = cache.data_ptr()
    cache.fill_(1)
    codes.fill_(2)
    for _ in range(2):
        mine.give_back()
        mine.take()
        assert cache.data_ptr() == address
        assert not cache.any()
        assert not codes.any()
        cache.fill_(3)


def test_a_cache_without_elements_needs_no_memory() -> None:
    mine = memory()
    assert mine.zeros((4, 0, 8), dtype=torch.float32).shape == (4, 0, 8)
    mine.give_back()
    mine.take()


def test_weights_are_the_same_after_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sleeping_memory, "_BATCH_BYTES", 4000)  # several batches
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(40, 30, generator=generator).to(DEVICE)
    rows, turned = whole[10:20], whole.t()
    codes = torch.randint(256, (1001,), dtype=torch.uint8, generator=generator).to(DEVICE)
    wide = torch.randn(2000, generator=generator).double().to(DEVICE)
    tensors = [rows, whole, codes, turned, wide]
    expected = [tensor.clone() for tensor in tensors]
    mine = memory()
    mine.keep(tensors)
    places = [(tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in tensors]
    assert rows.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    assert mine.num_bytes >= whole.nbytes + codes.nbytes + wide.nbytes
    for _ in range(2):
        assert all(torch.equal(tensor, content) for tensor, content in zip(tensors, expected, strict=True))
        mine.give_back()
        if not HAS_GPU:
            assert not whole.any()  # the pages have gone
        mine.take()
    assert places == [(tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in tensors]
    whole[10, 0] = 7.0
    assert rows[0, 0] == turned[0, 10] == 7.0


def test_weights_of_all_processes_must_fit_into_host_memory() -> None:
    weights = torch.ones(1000).to(DEVICE)
    mine = memory(available=10_000, num_sharers=4)
    mine.keep([weights])
    with pytest.raises(MemoryError, match="16384 bytes, and 10000 are available; level 2"):
        mine.give_back()
    assert weights.sum() == 1000  # it is awake


class Driver:
    """Of CUDA, with the memory that is mapped and held. A function can be made to fail."""

    class CUresult:
        CUDA_SUCCESS, CUDA_ERROR_OUT_OF_MEMORY = SimpleNamespace(name="ok"), SimpleNamespace(name="memory")

    CUmemLocation = CUmemAllocationProp = CUmemAccessDesc = SimpleNamespace
    CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE=1)
    CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED=1)
    CUmemAccess_flags = SimpleNamespace(CU_MEM_ACCESS_FLAGS_PROT_READWRITE=3)
    CUmemAllocationGranularity_flags = SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_MINIMUM=0)

    def __init__(self) -> None:
        self.failing = ""
        self.num_held = self.num_mapped = 0

    def _returned(self, name: str, *values: int) -> tuple[object, ...]:
        if name == self.failing:
            return (self.CUresult.CUDA_ERROR_OUT_OF_MEMORY, *(None for _ in values))
        self.num_held += {"cuMemCreate": 1, "cuMemRelease": -1}.get(name, 0)
        self.num_mapped += {"cuMemMap": 1, "cuMemUnmap": -1}.get(name, 0)
        return (self.CUresult.CUDA_SUCCESS, *values)

    def __getattr__(self, name: str) -> Callable[..., tuple[object, ...]]:
        values = {"cuMemGetAllocationGranularity": (1 << 21,), "cuMemAddressReserve": (1 << 40,), "cuMemCreate": (7,)}
        return lambda *_: self._returned(name, *values.get(name, ()))


@pytest.mark.parametrize("failing", ["cuMemCreate", "cuMemMap", "cuMemSetAccess"])
def test_memory_that_cannot_be_mapped_is_given_back(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Access to mapped memory was refused: the memory stayed mapped, and could not be taken later."""
    driver = Driver()
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=driver))
    mine = sleeping_memory._CudaRange(5_000_000, 0)
    driver.failing = failing
    with pytest.raises(torch.OutOfMemoryError, match="no 6291456 bytes"):
        mine.take()
    assert (driver.num_held, driver.num_mapped) == (0, 0)
    driver.failing = ""
    mine.take()
    assert (driver.num_held, driver.num_mapped) == (1, 1)
    mine.give_back()
    assert (driver.num_held, driver.num_mapped) == (0, 0)


def test_an_engine_whose_host_maps_no_memory_stays_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(num_bytes: int, **_: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    weights = torch.ones(1000).to(DEVICE)
    mine = memory()
    mine.keep([weights])
    monkeypatch.setattr(sleeping_memory, "map_private", refuse)
    with pytest.raises(MemoryError, match="no host memory for the weights: Cannot allocate memory"):
        mine.give_back()
    assert weights.sum() == 1000
    monkeypatch.undo()
    mine.give_back()
    mine.take()
    assert weights.sum() == 1000


def test_an_engine_that_cannot_have_its_memory_again_has_none_and_can_try_again() -> None:
    class Lent:
        """Given back once, it is not to be had as long as others have it."""

        num_held = 0

        def __init__(self, num_bytes: int) -> None:
            self._inner = reserve(num_bytes)
            self.content = self._inner.content
            self.is_lost = False
            Lent.num_held += 1

        def give_back(self) -> None:
            self._inner.give_back()
            Lent.num_held -= 1

        def take(self) -> None:
            if self.is_lost:
                raise torch.OutOfMemoryError("others have it")
            self._inner.take()
            Lent.num_held += 1

    made: list[Lent] = []

    def lend(num_bytes: int) -> Lent:
        made.append(Lent(num_bytes))
        return made[-1]

    mine = SleepingMemory(lend, lambda: PLENTY)
    weights = torch.arange(2000.0).to(DEVICE)
    mine.keep([weights])
    cache = mine.zeros((100,), dtype=torch.float32)
    mine.give_back()
    made[-1].is_lost = True
    for _ in range(2):
        with pytest.raises(MemoryError, match="bytes of the device, and other programs have them"):
            mine.take()
        assert not Lent.num_held
    made[-1].is_lost = False
    mine.take()
    assert torch.equal(weights.cpu(), torch.arange(2000.0))
    assert not cache.any()


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
def test_captured_work_goes_on_after_sleep() -> None:
    mine, num_bytes = memory(), 1 << 29
    cache = mine.zeros((num_bytes // 4,), dtype=torch.float32)
    weights = torch.full((num_bytes // 4,), 2.0, device=DEVICE)
    mine.keep([weights])
    result, graph = torch.zeros(8, device=DEVICE), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result.copy_(weights[:8] + cache[:8])
    mine.give_back()
    mine.take()
    cache.fill_(3.0)
    graph.replay()
    assert result.tolist() == [5.0] * 8
