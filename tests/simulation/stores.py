"""Stores: what keeps KV blocks outside of a simulated engine. The real classes, in virtual time, with faults.

Files are real ones: a fault damages a file, replaces it by that of another block, removes it, or puts something into
the place where it is to be written. Other engines are real block servers on a simulated network: one that is alike
and has what was stored for others, and one of another fingerprint, whose blocks have the same names and other contents.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Literal, cast
from unittest.mock import patch

from stoker.engine.api import StoredBlocks
from stoker.engine.core import SchedulerSettings
from stoker.engine.core.block_store import BlockStore
from stoker.engine.kv_stores import block_files, engine_blocks
from stoker.engine.kv_stores.block_files import BlockFiles
from stoker.engine.kv_stores.engine_blocks import EngineBlocks
from stoker.engine.kv_stores.tiered_store import TieredStore

from .background import Background, LateExecutor
from .network import HOST, Network

ALIKE, NOT_ALIKE = "alike", "not alike"
FileFault = Literal["damage", "cut", "swap", "remove", "obstruct", "stall", "forget"]
FILE_FAULTS: tuple[FileFault, ...] = ("damage", "cut", "swap", "remove", "obstruct", "stall", "forget")


@dataclass(frozen=True, slots=True)
class StoreSettings:
    kind: Literal["files", "engines", "both"]
    num_blocks: int  # that files hold, and the buffer for others
    failure_rate: float  # of connections; other faults are actions of a story


class Stores:
    """`store` is that of the scheduler."""

    def __init__(
        self, name: str, wanted: StoreSettings, settings: SchedulerSettings, network: Network | None = None
    ) -> None:
        """network: of several engines."""
        random = Random(f"stores of {name}")
        self.background = Background(random)
        self.network = network or Network(random, wanted.failure_rate)
        self.faults: Counter[str] = self.network.faults
        in_memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self._folder = TemporaryDirectory(prefix="stoker-simulation-", dir=in_memory)
        self._block_bytes = 8 * settings.block_size * settings.num_groups
        self._max_bytes = wanted.num_blocks * (self._block_bytes + 4)
        self.files = self._make_files(ALIKE) if wanted.kind != "engines" else None
        self.engines = self._make_engines(ALIKE) if wanted.kind != "files" else None
        self._others: list[BlockFiles | EngineBlocks] = [self._make_files(NOT_ALIKE)] if self.files else []
        self._peers = [self._make_engines(each) for each in (ALIKE, NOT_ALIKE)] if self.engines else []
        self._others += self._peers
        self.store: BlockStore = self._chosen()

    def _chosen(self) -> BlockStore:
        return TieredStore(lasting=self.files, engines=self.engines)

    def applied_to(self, settings: SchedulerSettings) -> SchedulerSettings:
        return replace(settings, store=self.store)

    def lose(self) -> None:
        """The engine has ended: what was not yet written is lost, and its buffer."""
        self.background.lose()
        if self.engines is not None and self.engines._server is not None:
            self.engines._server.close()

    def restart(self) -> None:
        """The store of a new engine, which finds the files."""
        self.lose()
        if self.files is not None:
            for number, name in enumerate(self.files._sizes):  # in the order of their use, which takes no time here
                with contextlib.suppress(OSError):
                    os.utime(Path(self._folder.name, name), ns=(number, number))
            self.files = self._make_files(ALIKE)
        if self.engines is not None:
            self.engines = self._make_engines(ALIKE)
        self.store = self._chosen()

    def _make_files(self, fingerprint: str) -> BlockFiles:
        with patch.object(block_files, "ThreadPoolExecutor", self.background.executor):
            return BlockFiles(Path(self._folder.name), fingerprint, self._block_bytes, self._max_bytes)

    def _make_engines(self, fingerprint: str) -> EngineBlocks:
        with patch.object(engine_blocks, "ThreadPoolExecutor", self.background.executor), self.network.patched():
            return EngineBlocks(HOST, 0, fingerprint, self._block_bytes, self._max_bytes)

    def tick(self) -> None:
        with self.network.patched():
            self.background.tick()

    def close(self) -> None:
        for each in (self.store, *self._others):
            each.close()
        self._folder.cleanup()

    # ---- what others have

    def saved(self, block_hash: bytes, content: memoryview) -> None:
        """The engine of another model has a block of this name too."""
        nonsense = memoryview(bytes(byte ^ 0x5A for byte in content.tobytes()))
        for each in self._others:
            if each._fingerprint == NOT_ALIKE:
                each.save(block_hash, nonsense, is_for_others=True)

    def shared(self, hashes: Sequence[bytes]) -> list[memoryview]:
        """The contents of blocks that others can read. An engine that is alike gets them as well."""
        if self.engines is None:
            assert self.files is not None
            return self.files._read_all(list(hashes))
        contents = []
        for block_hash in hashes:
            content = self.engines._buffer.get(block_hash)
            assert content is not None, "an answer names a block that is not stored"
            self._peers[0].save(block_hash, content, is_for_others=True)
            contents.append(content)
        return contents

    def sources(self, stored: StoredBlocks) -> list[StoredBlocks]:
        """Sources that a later request may name for these."""
        if self.engines is None:
            return [stored]
        ports = [stored.port, *(each.port for each in self._peers), 999]
        return [StoredBlocks(stored.hashes, HOST, port) for port in ports]

    # ---- faults

    def fail(self, fault: FileFault, number: int) -> None:
        """number: chooses the file."""
        if fault == "stall":
            self.background.stall(30)
        elif fault == "forget":
            self._forget()
        else:
            paths = sorted(Path(self._folder.name, ALIKE).glob("*.kv"))
            if not paths:
                return
            _FAULTS[fault](paths[number % len(paths)], paths[-1])
        self.faults[f"stores: {fault}"] += 1

    def _forget(self) -> None:
        """All that was stored is gone, and the store does not know it; a buffer knows."""
        for path in Path(self._folder.name, ALIKE).glob("*.kv"):
            _remove(path, path)
        if self.engines is not None:
            self.engines._buffer._contents.clear()  # type: ignore[union-attr]
            self.engines._buffer._num_bytes = 0  # type: ignore[union-attr]

    # ---- invariants

    def check(self) -> None:
        for engines in (self.engines, *self._peers):
            if engines is not None:
                buffer: Any = engines._buffer
                assert buffer._num_bytes == sum(each.nbytes for each in buffer._contents.values())
                assert buffer._num_bytes <= self._max_bytes, "more is held for others than the buffer may hold"
        if self.files is not None:
            files = self.files
            assert files._num_bytes == sum(files._sizes.values()), "the bytes of files are miscounted"
            assert files._num_bytes <= self._max_bytes + files._waiting._num_bytes
            waiting, writer = files._waiting, cast(LateExecutor, files._writer)
            assert waiting._num_bytes == len(waiting._sizes) * self._block_bytes, "what is to be written is miscounted"
            assert len(waiting._sizes) <= writer.num_waiting, "blocks wait to be written, and nothing writes them"


def _damage(path: Path, _: Path) -> None:
    if path.is_file():
        data = bytearray(path.read_bytes())
        if data:
            data[len(data) // 2] ^= 1
        path.write_bytes(data)


def _cut(path: Path, _: Path) -> None:
    if path.is_file():
        os.truncate(path, path.stat().st_size // 2)


def _swap(path: Path, other: Path) -> None:
    if path.is_file() and other.is_file():
        path.write_bytes(other.read_bytes())


def _remove(path: Path, _: Path) -> None:
    if path.is_file():
        path.unlink()
    elif path.is_dir():
        path.rmdir()


def _obstruct(path: Path, other: Path) -> None:
    """It can neither be read nor written."""
    if path.is_file():
        path.unlink()
        path.mkdir()


_FAULTS = {"damage": _damage, "cut": _cut, "swap": _swap, "remove": _remove, "obstruct": _obstruct}
