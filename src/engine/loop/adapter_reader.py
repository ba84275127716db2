"""AdapterReader: reads adapters in one thread while steps go on, each once for all that wait for it.

Does not know torch: the copies in memory are an AdapterStore.
"""

from __future__ import annotations

import logging
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from ..api import AdapterError, AdapterRef
from ..core.adapter_slots import CopyState
from .step_queue import RunnerUnusable, cause_of

logger = logging.getLogger(__name__)


class AdapterStore(Protocol):
    """The copies in memory: lora/adapters.py."""

    def has(self, digest: str) -> bool: ...

    def touch(self, digest: str) -> bool:
        """Returns what `has` does, and has the copy freed after others."""
        ...

    def load(self, ref: AdapterRef) -> None:
        """Read an adapter in every process of the model, unless it is in memory. Called by one thread at a time.
        Raises AdapterError."""

    def forget(self, digest: str) -> None: ...

    def hold(self, digest: str) -> None: ...

    def drop(self, digest: str) -> None: ...

    def pin(self, digest: str) -> None: ...

    def unpin(self, digest: str) -> None: ...

    def has_space(self, num_reading: int) -> bool: ...

    def make_space(self) -> None: ...


class AdapterReader:
    """Implements AdapterCopies of core/adapter_slots.py. The methods are called from one thread, that of EngineCore."""

    def __init__(self, store: AdapterStore | None = None, *, waits: bool = False) -> None:
        """
        store: None until the model is loaded, and if the engine serves no adapters.
        waits: files are read in the caller's thread, so that no plan depends on how long that takes: launched ranks
            plan the same steps, each by itself.
        """
        self.store = store
        self._waits = waits
        self._pool: ThreadPoolExecutor | None = None
        # By digest. The thread that reads takes an entry out when a read has ended, after its copy or its failure is
        # known: who looks for the copy, then here, then for a failure misses none.
        self._reading: dict[str, Future[None]] = {}
        self._failed: dict[str, AdapterError] = {}  # raised for the sequences that hold the adapter, until they end
        self._held: Counter[str] = Counter()  # live sequences by digest

    @property
    def is_reading(self) -> bool:
        """Any thread may ask."""
        return bool(self._reading)

    def load(self, ref: AdapterRef) -> Future[None]:
        """Begin to read an adapter, unless it is in memory. The future raises AdapterError."""
        if (reading := self._reading.get(ref.digest)) is not None:
            return reading
        reading = Future()
        if self.store is None:
            message = "this engine serves no adapters: `lora.enable_lora` is not set"
            reading.set_exception(AdapterError(message, code="unsupported_adapter"))
            return reading
        if self.store.touch(ref.digest):
            reading.set_result(None)
            return reading
        self._failed.pop(ref.digest, None)
        self._reading[ref.digest] = reading
        if self._waits:
            self._read(self.store, ref, reading)
        else:
            if self._pool is None:  # one thread: files are read one after the other
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="adapters")
            self._pool.submit(self._read, self.store, ref, reading)
        return reading

    def forget(self, digest: str) -> None:
        """Free the copy of an adapter as soon as no live sequence needs it; one that is being read, after that."""
        if (store := self.store) is None:
            return
        store.forget(digest)
        if (reading := self._reading.get(digest)) is not None:
            reading.add_done_callback(lambda done: store.forget(digest))

    def hold(self, ref: AdapterRef) -> None:
        store = self._own
        if not self._held[ref.digest]:
            self._failed.pop(ref.digest, None)
        self._held[ref.digest] += 1
        store.hold(ref.digest)
        self._begin(store, ref)

    def drop(self, ref: AdapterRef) -> None:
        self._held[ref.digest] -= 1
        if not self._held[ref.digest]:
            del self._held[ref.digest]
            self._failed.pop(ref.digest, None)
        self._own.drop(ref.digest)

    def pin(self, ref: AdapterRef) -> None:
        self._own.pin(ref.digest)

    def unpin(self, ref: AdapterRef) -> None:
        self._own.unpin(ref.digest)

    def ask(self, ref: AdapterRef, is_starving: bool) -> CopyState:
        store = self._own
        state = self._begin(store, ref)
        if state is CopyState.NO_SPACE and is_starving:
            store.make_space()
            state = self._begin(store, ref)
        if state is CopyState.READING and (failed := self._failed.get(ref.digest)) is not None:
            raise AdapterError(str(failed), code=failed.code)
        return state

    def close(self) -> None:
        """Wait for the file that is being read; others are not read any more."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    @property
    def _own(self) -> AdapterStore:
        assert self.store is not None, "requests with adapters arrive when the model is loaded"
        return self.store

    def _begin(self, store: AdapterStore, ref: AdapterRef) -> CopyState:
        """Begin to read an adapter if it is not in memory and there is space. READING, too, if that has failed."""
        if store.has(ref.digest):
            return CopyState.IN_MEMORY
        if ref.digest in self._reading or ref.digest in self._failed:
            return CopyState.READING
        if not store.has_space(len(self._reading)):
            return CopyState.NO_SPACE
        self.load(ref)
        return CopyState.IN_MEMORY if store.has(ref.digest) else CopyState.READING

    def _read(self, store: AdapterStore, ref: AdapterRef, reading: Future[None]) -> None:
        failure = _failure(store, ref)
        if failure is not None and self._held[ref.digest]:
            self._failed[ref.digest] = failure
        del self._reading[ref.digest]
        if failure is None:
            reading.set_result(None)
        else:
            reading.set_exception(failure)


def _failure(store: AdapterStore, ref: AdapterRef) -> AdapterError | None:
    """Load an adapter. Returns why that is not possible, without a traceback, which would keep what was read."""
    try:
        store.load(ref)
        return None
    except AdapterError as error:
        text, code = str(error), error.code
    except RunnerUnusable as error:  # it is reported where the steps fail
        text, code = str(error), "adapter_unreadable"
    except Exception as error:
        logger.exception("reading adapter `%s` failed", ref.name)
        text, code = f"adapter `{ref.name}` cannot be read: {cause_of(error)}", "adapter_unreadable"
    return AdapterError(text, code=code)
