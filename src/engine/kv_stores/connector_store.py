"""ConnectorStore: KV blocks that a connector of the user's own stores (connector.py).

Its calls run in two threads. What is not loaded is computed: nothing that the connector raises, returns or waits for
reaches a request. While a call is overdue, its thread is given nothing more.

Which blocks are stored is not asked beforehand, since the scheduler does not wait for a network: each prompt with
unknown full blocks costs one call of `load`, beside the steps of others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from ..api import StoredBlocks
from .call_thread import CallThread
from .checksum import SUM_BYTES, checksum
from .connector import Connector, StoreRole
from .known_blocks import KnownBlocks
from .waiting_blocks import WaitingBlocks

CALL_LIMIT_S = 10.0
logger = logging.getLogger(__name__)


class _Load:
    """Implements Fetch of core/block_store.py."""

    def __init__(self, hashes: list[bytes], is_given_up: Callable[[], bool]) -> None:
        self.hashes, self._is_given_up = hashes, is_given_up
        self._lock = threading.Lock()
        self.contents: list[memoryview] = []
        self.is_over = False

    def add(self, content: memoryview) -> bool:
        """Whether it is still waited for."""
        with self._lock:
            if not self.is_over:
                self.contents.append(content)
            return not self.is_over

    def end(self) -> None:
        with self._lock:
            self.is_over = True

    @property
    def is_done(self) -> bool:
        if not self.is_over and self._is_given_up():
            self.end()
        return self.is_over


class ConnectorStore:
    """Implements core/block_store.py."""

    def __init__(
        self,
        connector: Connector,
        name: str,
        role: StoreRole,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """name: of the connector, for messages."""
        self._connector, self._name, self._role, self._clock = connector, name, role, clock
        self.num_failures = 0
        self._lock = threading.Lock()
        self._known = KnownBlocks()  # were loaded or saved
        self._waiting = WaitingBlocks()
        self._logged: set[str] = set()
        self._is_closed = False
        self._loads = CallThread("load-blocks", CALL_LIMIT_S, clock)
        self._saves = CallThread("save-blocks", CALL_LIMIT_S, clock)
        self._overdue: set[CallThread] = set()  # counted

    def _key(self, block_hash: bytes) -> str:
        return f"{self._role.fingerprint}-{block_hash.hex()}"

    def has(self, block_hash: bytes) -> bool:
        return self._role.reads and not self._is_overdue(self._loads, "load")

    def wants(self, block_hash: bytes, *, is_for_others: bool) -> bool:
        if not self._role.writes or self._is_overdue(self._saves, "save"):
            return False
        # in this order: a block is known before it waits no longer
        return block_hash not in self._waiting and not self._known.touch(block_hash)

    def drop(self, block_hash: bytes) -> None:
        """Forget a block, which is saved again, over the one that is stored."""
        self._known.forget([block_hash])

    def is_saving(self, block_hash: bytes) -> bool:
        return block_hash in self._waiting and not self._is_overdue(self._saves, "save")

    def stored(self, hashes: Sequence[bytes]) -> StoredBlocks:
        return self._known.stored(hashes)

    def fetch(self, hashes: Sequence[bytes], source: StoredBlocks | None) -> _Load:
        load = _Load(list(hashes), partial(self._is_overdue, self._loads, "load"))
        self._loads.submit(partial(self._load, load))
        return load

    def _load(self, load: _Load) -> None:
        try:
            if load.is_over or self._is_closed or not load.hashes:
                return
            contents = self._connector.load([self._key(block_hash) for block_hash in load.hashes])
            for block_hash, content in zip(load.hashes, contents, strict=False):
                if content is None or not load.add(self._checked(block_hash, content)):
                    break
                self._loads.progress()
        except BaseException as error:  # SystemExit too, which would end this thread
            self._failed("load", error)
        finally:
            load.end()
            self._known.forget(load.hashes[len(load.contents) :])  # they are computed, and saved then
            self._known.add(load.hashes[: len(load.contents)])

    def _checked(self, block_hash: bytes, content: bytes | bytearray | memoryview) -> memoryview:
        """A copy: the connector may use its buffer again. Raises ValueError, or TypeError for what is not bytes."""
        copy = memoryview(bytearray(memoryview(content)))
        if len(copy) != self._role.block_bytes + SUM_BYTES:
            raise ValueError(f"a block of {len(copy)} bytes, {self._role.block_bytes + SUM_BYTES} were saved")
        if bytes(copy[-SUM_BYTES:]) != checksum(block_hash, copy[:-SUM_BYTES]):
            raise ValueError(f"a block that differs from what was saved as {self._key(block_hash)}")
        return copy[:-SUM_BYTES]

    def save(self, block_hash: bytes, content: memoryview, *, is_for_others: bool) -> None:
        if self.wants(block_hash, is_for_others=is_for_others) and self._waiting.add(block_hash, content.nbytes):
            self._saves.submit(partial(self._save, block_hash, content))

    def _save(self, block_hash: bytes, content: memoryview) -> None:
        try:
            self._connector.save(self._key(block_hash), b"".join((content, checksum(block_hash, content))))
            self._known.add([block_hash])
        except BaseException as error:
            self._failed("save", error)
        finally:
            self._waiting.remove([block_hash])

    def _is_overdue(self, thread: CallThread, method: str) -> bool:
        if not thread.is_overdue:
            self._overdue.discard(thread)
            return False
        if thread not in self._overdue:
            self._overdue.add(thread)
            self._failed(
                method, TimeoutError(f"no answer within {CALL_LIMIT_S:g} s; it is not called until it returns")
            )
        return True

    def _failed(self, method: str, error: BaseException) -> None:
        with self._lock:
            self.num_failures += 1
            is_new = method not in self._logged
            self._logged.add(method)
        if is_new:
            text = "`%s` of the connector %s has failed, tokens are computed; further failures are only counted"
            logger.warning(text, method, self._name, exc_info=error)

    def close(self) -> None:
        """Wait until what was saved is stored, unless a call is overdue, and close."""
        self._is_closed = True
        if not all([self._loads.close(), self._saves.close()]):
            logger.warning("a call of the connector %s does not return, so it is not closed", self._name)
            return
        last = CallThread("close-blocks", CALL_LIMIT_S, self._clock)
        last.submit(self._close)
        if not last.close():
            logger.warning("`close` of the connector %s does not return", self._name)

    def _close(self) -> None:
        try:
            self._connector.close()
        except BaseException as error:
            self._failed("close", error)
