"""Memory of a device that the engine gives back while it sleeps, and has again at the same addresses when it is awake.

Captured steps contain the addresses of weights and caches: only the memory behind the addresses may go. Contents of
weights are in host memory meanwhile, contents of caches are lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

from ..host.pages import drop_pages, map_private, touch_pages
from .weight_storages import Users, aligned, storages_of

_BATCH_BYTES = 1 << 28  # of weights that exist twice while they move
_THREADS = 8


class Reservation(Protocol):
    """Addresses that have memory, or none."""

    content: torch.Tensor  # [bytes] uint8; not to be read or written without memory

    def give_back(self) -> None: ...

    def take(self) -> None:
        """Contents are arbitrary. Raises torch.OutOfMemoryError."""
        ...


class HostReservation:
    """A reservation of host memory, where kernels for devices are interpreted."""

    def __init__(self, num_bytes: int) -> None:
        self._pages = map_private(num_bytes, huge_pages=False)
        self.content = torch.frombuffer(self._pages, dtype=torch.uint8)

    def give_back(self) -> None:
        drop_pages(self.content.data_ptr(), len(self.content))

    def take(self) -> None: ...


class CudaReservation:
    """A reservation of a device's virtual memory (the driver's cuMemCreate and cuMemMap)."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        """Reserves addresses with memory. Raises torch.OutOfMemoryError."""
        self._range = _CudaRange(num_bytes, device.index)
        self.give_back, self.take = self._range.give_back, self._range.take
        self.take()
        self.content = torch.as_tensor(self._range, device=device)  # without a copy


class _CudaRange:
    """The owner of the addresses: the tensor refers to it, and it does not refer to the tensor."""

    def __init__(self, num_bytes: int, device_index: int) -> None:
        from cuda.bindings import driver  # torch for CUDA requires it

        self._driver: Any = driver
        self._handle: Any = None
        self._address: Any = None
        location = driver.CUmemLocation()
        location.type, location.id = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, device_index
        self._properties = driver.CUmemAllocationProp()
        self._properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._properties.location = location
        self._access = driver.CUmemAccessDesc()
        self._access.location = location
        self._access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        smallest = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        step = self._done(driver.cuMemGetAllocationGranularity(self._properties, smallest))
        self._size = aligned(num_bytes, step)
        self._address = self._done(driver.cuMemAddressReserve(self._size, 0, 0, 0))
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (int(self._address), False),
            "strides": None,
            "version": 3,
        }

    def take(self) -> None:
        handle = self._done(self._driver.cuMemCreate(self._size, self._properties, 0))
        try:
            self._done(self._driver.cuMemMap(self._address, self._size, 0, handle, 0))
        except RuntimeError:
            self._driver.cuMemRelease(handle)
            raise
        self._handle = handle
        try:
            self._done(self._driver.cuMemSetAccess(self._address, self._size, [self._access], 1))
        except RuntimeError:  # or OutOfMemoryError: page tables need memory too
            self.give_back()
            raise

    def give_back(self) -> None:
        if self._handle is not None:
            self._done(self._driver.cuMemUnmap(self._address, self._size))
            self._done(self._driver.cuMemRelease(self._handle))
            self._handle = None

    def __del__(self) -> None:
        # Statuses are not looked at: at the end of a process the driver has freed it already.
        if self._handle is not None:
            self._driver.cuMemUnmap(self._address, self._size)
            self._driver.cuMemRelease(self._handle)
        if self._address is not None:
            self._driver.cuMemAddressFree(self._address, self._size)

    def _done(self, returned: tuple[Any, ...]) -> Any:
        """What a function of the driver returned after its status."""
        status, *values = returned
        if status == self._driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise torch.OutOfMemoryError(f"the device has no {self._size} bytes")
        if status != self._driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"CUDA driver: {status.name}")
        return values[0] if values else None


class _HostCopy:
    """What some memory of the device contained, in pages of the host to and from which a device copies by itself."""

    def __init__(self, source: torch.Tensor) -> None:
        """Queues the copy."""
        self._content = torch.frombuffer(map_private(len(source)), dtype=torch.uint8)
        self._pinned_by: Any = None
        if source.is_cuda:
            address = self._content.data_ptr()
            touch_pages(address, len(source), min(_THREADS, os.cpu_count() or 1))
            from cuda.bindings import driver

            # Not the runtime's cudaHostRegister: torch would report its failure after the next kernel.
            (status,) = driver.cuMemHostRegister(address, len(source), 0)
            self._pinned_by = driver if int(status) == 0 else None  # else copies take longer
        self._content.copy_(source, non_blocking=True)

    def write_to(self, target: torch.Tensor) -> None:
        """Queues the copy back."""
        target.copy_(self._content, non_blocking=True)

    def free(self) -> None:
        """Unregister the pages, after the copy."""
        if self._pinned_by is not None:
            self._pinned_by.cuMemHostUnregister(self._content.data_ptr())


class SleepingMemory:
    def __init__(
        self, reserve: Callable[[int], Reservation], available_bytes: Callable[[], int], num_sharers: int = 1
    ) -> None:
        """
        reserve: bytes of the device.
        available_bytes: of host memory.
        num_sharers: processes of this machine, this one among them, that need as much host memory and do not have it
            yet when this one goes to sleep.
        """
        self._reserve, self._available_bytes, self._num_sharers = reserve, available_bytes, num_sharers
        self._weights: list[Reservation] = []
        self._caches: list[Reservation] = []
        self._copies: list[_HostCopy] = []  # of the weights, while the engine sleeps
        self._is_asleep = False

    @property
    def num_bytes(self) -> int:
        """Bytes of the device that are used while the engine is awake."""
        return sum(len(each.content) for each in (*self._weights, *self._caches))

    def zeros(self, size: Sequence[int], /, *, dtype: torch.dtype) -> torch.Tensor:
        """A cache, which is zeros again after each sleep. Raises torch.OutOfMemoryError."""
        size = torch.Size(size)
        cache = self._reserve(max(1, size.numel() * dtype.itemsize))
        self._caches.append(cache)
        return cache.content.zero_()[: size.numel() * dtype.itemsize].view(dtype).view(size)

    @torch.inference_mode()
    def keep(self, tensors: Sequence[torch.Tensor]) -> None:
        """Moves weights here, which have their contents again after each sleep. Raises torch.OutOfMemoryError.

        tensors: of one device. Views of one storage stay views of one.
        """
        for batch in _batches(storages_of(tensors)):
            weights = self._reserve(sum(aligned(storage.nbytes()) for storage, _ in batch))
            self._weights.append(weights)
            first = 0
            while batch:
                storage, users = batch.pop()
                size = storage.nbytes()
                source = torch.empty(0, dtype=torch.uint8, device=weights.content.device).set_(storage)
                weights.content[first : first + size].copy_(source)
                for tensor in users:
                    offset = first // tensor.itemsize + tensor.storage_offset()
                    tensor.set_(weights.content.untyped_storage(), int(offset), tensor.size(), tensor.stride())
                del source, storage
                first += aligned(size)
            _synchronize()

    @torch.inference_mode()
    def give_back(self) -> None:
        """Give the memory back, while no step runs. Raises MemoryError if the host has too little memory for the
        weights."""
        if self._is_asleep:
            return
        needed = self._num_sharers * sum(len(each.content) for each in self._weights)
        if needed > (available := self._available_bytes()):
            raise MemoryError(
                f"an engine that sleeps keeps its weights in host memory: they are {needed} bytes, and {available} "
                "are available; level 2 keeps nothing"
            )
        _synchronize()
        try:
            for weights in self._weights:
                self._copies.append(_HostCopy(weights.content))
        except OSError as error:
            self._drop_copies()
            raise MemoryError(f"the system has no host memory for the weights: {error.strerror}") from error
        _synchronize()
        for each in (*self._weights, *self._caches):
            each.give_back()
        self._is_asleep = True

    @torch.inference_mode()
    def take(self) -> None:
        """Raises MemoryError if the device has too little free memory, and has none of it then."""
        if not self._is_asleep:
            return
        _synchronize()
        taken: list[Reservation] = []
        try:
            for each in (*self._weights, *self._caches):
                each.take()
                taken.append(each)
        except torch.OutOfMemoryError:
            for each in taken:
                each.give_back()
            raise MemoryError(
                f"the engine needs {self.num_bytes} bytes of the device, and other programs have them"
            ) from None
        for weights, copy in zip(self._weights, self._copies, strict=True):
            copy.write_to(weights.content)
        for cache in self._caches:
            cache.content.zero_()
        self._drop_copies()
        self._is_asleep = False

    def _drop_copies(self) -> None:
        _synchronize()
        for copy in self._copies:
            copy.free()
        self._copies.clear()


def _batches(storages: list[Users]) -> Iterator[list[Users]]:
    """Batches of storages, so that few bytes exist twice while they move. `storages` is empty at the end."""
    batch: list[Users] = []
    while storages:
        batch.append(storages.pop())
        if not storages or sum(storage.nbytes() for storage, _ in batch) >= _BATCH_BYTES:
            yield batch
            batch = []


def _synchronize() -> None:
    """Waits for the device, and gives back what torch keeps of it."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
