"""MooncakeMover: the transfer engine of Mooncake reads blocks, over TCP or RDMA. arXiv:2407.00079."""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from ...installation import install_command
from .registered_blocks import POLL_S, Memory, MoverMissing

_CONNECTOR = "`kv_transfer.kv_connector: MooncakeConnector`"
_REFUSED = 0  # instead of a transfer
_RUNS, _DONE, _LATE = 0, 1, -2  # its state; others have failed
_UNENDED = _RUNS, _LATE  # in which it may still write
_MAX_READS = 4  # that have not ended, those that were given up counted
_SLOW_POLL_S = 0.25  # of those


class MooncakeMover:
    """Implements registered_blocks.Mover.

    Each read has a thread, because Mooncake waits minutes for a process that does not answer, and cannot end a
    transfer: its thread has the memory for as long as something may be written there.
    """

    def __init__(self, host: str, protocol: str) -> None:
        """host: at which others reach this process. protocol: tcp or rdma. Raises MoverMissing."""
        self._engine, self._reads = _new_engine(host, protocol), threading.BoundedSemaphore(_MAX_READS)
        address = f"[{host}]" if ":" in host else host
        self._own = f"{address}:{self._engine.get_rpc_port()}".encode()

    def keep_registered(self, memory: Memory) -> None:
        if self._engine.register_memory(memory.ctypes.data, memory.nbytes):
            raise OSError(f"{_CONNECTOR}: Mooncake does not register {memory.nbytes} bytes of memory")

    @property
    def own(self) -> bytes:
        return self._own

    def read(self, source: bytes, addresses: Sequence[int], contents: Memory, deadline: float) -> None:
        peer = source.decode()
        if not self._reads.acquire(blocking=False):
            raise ConnectionError("earlier transfers have not ended")
        outcome: Future[None] = Future()
        arguments = peer, addresses, contents, deadline, outcome
        threading.Thread(target=self._read, args=arguments, name="mooncake-read", daemon=True).start()
        try:
            outcome.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            raise TimeoutError("the transfer makes no progress") from None

    def _read(
        self, peer: str, addresses: Sequence[int], contents: Memory, deadline: float, outcome: Future[None]
    ) -> None:
        """Goes on after `outcome`, until nothing is written to `contents`."""
        error: Exception | None = None
        try:
            self.keep_registered(contents)
            try:
                self._transfer(peer, addresses, contents, deadline, outcome)
            finally:
                self._engine.unregister_memory(contents.ctypes.data)
        except Exception as failure:
            error = failure
        self._reads.release()
        if not outcome.done():
            outcome.set_exception(error) if error is not None else outcome.set_result(None)

    def _transfer(
        self, peer: str, addresses: Sequence[int], contents: Memory, deadline: float, outcome: Future[None]
    ) -> None:
        """A transfer for each block: of one for several, only the state of the first is reported."""
        running, size = set(), [contents.shape[1]]
        for content, address in zip(contents, addresses, strict=True):
            begun = self._engine.batch_transfer_async_read(peer, [content.ctypes.data], [address], size)
            if begun == _REFUSED:
                outcome.set_exception(ConnectionError("a transfer was refused"))
                break
            running.add(begun)
        while running:
            states = {each: self._engine.transfer_check_status(each) for each in running}
            if not outcome.done() and any(state not in (_RUNS, _DONE) for state in states.values()):
                outcome.set_exception(ConnectionError("a transfer has failed"))
            running = {each for each, state in states.items() if state in _UNENDED}
            if running:
                time.sleep(POLL_S if time.monotonic() < deadline else _SLOW_POLL_S)


def _new_engine(host: str, protocol: str) -> Any:
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
    if ":" in host:
        os.environ.setdefault("MC_USE_IPV6", "1")
    try:
        engine: Any = importlib.import_module("mooncake.engine").TransferEngine()
    except ImportError as error:  # also where a library of the system is missing
        needs = f"{install_command('mooncake')}, and the package libibverbs1 of the system"
        raise MoverMissing(f"{_CONNECTOR} needs Mooncake's transfer engine ({needs}): {error}") from error
    if engine.initialize(host, "P2PHANDSHAKE", protocol, ""):
        raise MoverMissing(f"{_CONNECTOR}: Mooncake does not start with {protocol} at {host}; its messages say why")
    return engine
