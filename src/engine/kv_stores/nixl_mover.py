"""NixlMover: NIXL reads blocks, over RDMA where there is any, else TCP."""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import numpy as np

from ...installation import install_command
from .registered_blocks import POLL_S, Memory, MoverMissing

_PACKAGES = ("nixl", "nixl_cu12", "nixl_cu13")
_MEMORY = "DRAM"
_MAX_ABANDONED = 4
# Of UCX, unless they are set: with its own 8 KiB a block over TCP takes 1.5 to 2 times as long.
_TCP_SEGMENTS = {"UCX_TCP_TX_SEG_SIZE": "64k", "UCX_TCP_RX_SEG_SIZE": "64k"}


class NixlMover:
    """Implements registered_blocks.Mover."""

    def __init__(self) -> None:
        """Raises MoverMissing."""
        self._agent, self._lock = _new_agent(), threading.Lock()  # an agent is for one thread at a time
        self._abandoned: deque[Memory] = deque(maxlen=_MAX_ABANDONED)  # of transfers that have failed

    def keep_registered(self, memory: Memory) -> None:
        self._register(memory)

    def _register(self, memory: Memory) -> Any:
        return self._agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], _MEMORY)

    @property
    def own(self) -> bytes:
        with self._lock:
            metadata: bytes = self._agent.get_agent_metadata()
            return metadata

    def read(self, source: bytes, addresses: Sequence[int], contents: Memory, deadline: float) -> None:
        agent = self._agent
        own = [content.ctypes.data for content in contents]
        with self._lock:
            registered, handle, name, is_done = self._register(contents), None, None, False
        try:
            with self._lock:
                name = agent.add_remote_agent(source)
                local = agent.get_xfer_descs(_descriptors(own, contents.shape[1]), _MEMORY)
                remote = agent.get_xfer_descs(_descriptors(addresses, contents.shape[1]), _MEMORY)
                handle = agent.initialize_xfer("READ", local, remote, name)
                state = agent.transfer(handle)
            while state == "PROC":
                time.sleep(POLL_S)
                if time.monotonic() > deadline:
                    raise TimeoutError("the transfer makes no progress")
                with self._lock:
                    state = agent.check_xfer_state(handle)
            if state != "DONE":
                raise ConnectionError("the transfer failed")
            is_done = True
        finally:
            if not is_done:
                self._abandoned.append(contents)  # NIXL may still write there
            with self._lock:
                if handle is not None:
                    with suppress(Exception):  # it may still run
                        agent.release_xfer_handle(handle)
                if name is not None and not is_done:  # NIXL would refuse every further transfer from this agent
                    with suppress(Exception):
                        agent.remove_remote_agent(name)
                with suppress(Exception):
                    agent.deregister_memory(registered)


def _new_agent() -> Any:
    for variable, size in _TCP_SEGMENTS.items():
        os.environ.setdefault(variable, size)
    for package in _PACKAGES:
        try:
            api = importlib.import_module(f"{package}._api")
        except ImportError:
            continue
        try:
            return api.nixl_agent(uuid4().hex, api.nixl_agent_config(backends=["UCX"]))
        except Exception as error:
            raise MoverMissing(f"`kv_transfer.kv_connector: NixlConnector`: NIXL does not start: {error}") from error
    raise MoverMissing(f"`kv_transfer.kv_connector: NixlConnector` needs NIXL: {install_command('nixl')}")


def _descriptors(addresses: Sequence[int], size: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.array([(address, size, 0) for address in addresses], np.uint64)
