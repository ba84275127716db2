"""MooncakeMover: the transfer engine of Mooncake reads blocks, over TCP or RDMA. arXiv:2407.00079."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Sequence
from typing import Any

from .registered_blocks import Memory, MoverMissing, not_done_yet

_CONNECTOR = "`kv_transfer.kv_connector: MooncakeConnector`"
_REFUSED = 0  # instead of a transfer
_RUNS, _DONE = 0, 1  # its state; others have failed


class MooncakeMover:
    """Implements registered_blocks.Mover."""

    def __init__(self, host: str, protocol: str) -> None:
        """host: at which others reach this process. protocol: tcp or rdma. Raises MoverMissing."""
        self._engine, self._lock = _new_engine(host, protocol), threading.Lock()
        address = f"[{host}]" if ":" in host else host
        self._own = f"{address}:{self._engine.get_rpc_port()}".encode()

    def keep_registered(self, memory: Memory) -> None:
        if self._engine.register_memory(memory.ctypes.data, memory.nbytes):
            raise OSError(f"{_CONNECTOR}: Mooncake does not register {memory.nbytes} bytes of memory")

    @property
    def own(self) -> bytes:
        return self._own

    def read(self, source: bytes, addresses: Sequence[int], contents: Memory, deadline: float) -> None:
        engine, peer, size = self._engine, source.decode(), [contents.shape[1]]
        self.keep_registered(contents)
        try:
            # A transfer for each block: of one for several, the library reports the state of the first alone.
            with self._lock:
                running = {
                    engine.batch_transfer_async_read(peer, [content.ctypes.data], [address], size)
                    for content, address in zip(contents, addresses, strict=True)
                }
            if _REFUSED in running:
                raise ConnectionError("a transfer was refused")
            while running:
                states = {each: engine.transfer_check_status(each) for each in running}
                if any(state not in (_RUNS, _DONE) for state in states.values()):
                    raise ConnectionError("a transfer has failed")
                running = {each for each, state in states.items() if state == _RUNS}
                if running:
                    not_done_yet(deadline)
        finally:
            engine.unregister_memory(contents.ctypes.data)


def _new_engine(host: str, protocol: str) -> Any:
    os.environ.setdefault("GLOG_minloglevel", "2")  # errors alone, unless it is set
    try:
        engine: Any = importlib.import_module("mooncake.engine").TransferEngine()
    except ImportError as error:  # also where a library of the system is missing
        needs = "pip install 'stoker[mooncake]', and the package libibverbs1 of the system"
        raise MoverMissing(f"{_CONNECTOR} needs Mooncake's transfer engine ({needs}): {error}") from error
    if engine.initialize(host, "P2PHANDSHAKE", protocol, ""):
        raise MoverMissing(f"{_CONNECTOR}: Mooncake does not start with {protocol} at {host}; its messages say why")
    return engine
