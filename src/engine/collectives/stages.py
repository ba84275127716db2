"""StageLink: the connections of a pipeline stage, to the next one and from the one before, in a ring.

The last stage sends to the first one, which samples. A thread reads what arrives, so that no two stages wait for each
other to read.
"""

from __future__ import annotations

import contextlib
import math
import socket
import struct
import threading
from queue import SimpleQueue
from typing import NamedTuple

import torch

_END_S = 2.0  # for the thread to end, whose connection is closed
_HEADER = struct.Struct("<q?d")  # number of rows, whether there is a residual, balance or NaN
Hidden = tuple[torch.Tensor, torch.Tensor | None]  # hidden and residual, [N, elements of the residual stream]


class Passed(NamedTuple):
    """What a stage gets of a step from the one before."""

    hidden: torch.Tensor
    residual: torch.Tensor | None
    balance: float | None = None  # smallest balancedness of the experts of a stage so far (runner/expert_balancer.py)


class StageClosed(RuntimeError):
    def __init__(self) -> None:
        super().__init__("another stage of this model has ended")


class StageLink:
    def __init__(
        self,
        before: socket.socket,
        after: socket.socket,
        width: int,
        dtype: torch.dtype,
        device: torch.device | None = None,
    ) -> None:
        """before, after: stream sockets, of the stage before this one and of the next one.
        device: of the tensors; None for the CPU."""
        self._before, self._after = before, after
        self._width, self._dtype, self._device = width, dtype, device
        self._arrived: SimpleQueue[Passed | None] = SimpleQueue()  # None: the connection is closed
        self._reader = threading.Thread(target=self._read, name="stage-before", daemon=True)
        self._reader.start()

    def send(self, passed: Passed) -> None:
        """Send to the next stage. Raises StageClosed if it has ended."""
        hidden, residual, balance = passed
        header = _HEADER.pack(len(hidden), residual is not None, math.nan if balance is None else balance)
        try:
            self._after.sendall(header)
            for tensor in (hidden,) if residual is None else (hidden, residual):
                self._after.sendall(_memory(tensor.contiguous().cpu()))
        except OSError:
            raise StageClosed from None

    def receive(self) -> Passed:
        """The next message of the stage before, which this waits for. Raises StageClosed if that one has ended."""
        message = self._arrived.get()
        if message is None:
            self._arrived.put(None)  # for later calls
            raise StageClosed
        if self._device is None:
            return message
        hidden, residual, balance = message
        return Passed(hidden.to(self._device), None if residual is None else residual.to(self._device), balance)

    def close(self) -> None:
        """`receive` raises StageClosed from now on, on both sides.

        The thread has ended then: one that returns from torch into an interpreter that ends would abort the process.
        """
        for end in (self._before, self._after):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._reader.join(_END_S)
        for end in (self._before, self._after):
            end.close()

    def _read(self) -> None:
        try:
            while True:
                header = bytearray(_HEADER.size)
                self._read_into(memoryview(header))
                num_rows, has_residual, balance = _HEADER.unpack(header)
                num_tensors = 2 if has_residual else 1
                tensors = [torch.empty(num_rows, self._width, dtype=self._dtype) for _ in range(num_tensors)]
                for tensor in tensors:
                    self._read_into(_memory(tensor))
                residual = tensors[1] if has_residual else None
                self._arrived.put(Passed(tensors[0], residual, None if math.isnan(balance) else balance))
        except (OSError, EOFError):
            self._arrived.put(None)

    def _read_into(self, view: memoryview) -> None:
        while view:
            count = self._before.recv_into(view)
            if not count:
                raise EOFError
            view = view[count:]


def _memory(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor."""
    data: memoryview = tensor.view(torch.uint8).numpy().reshape(-1).data
    return data
