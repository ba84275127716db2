"""Adapters of several processes of a model, which have the same copies in memory.

Rank 0 decides which: another rank reads an adapter when rank 0 asks for it, before any plan names it, and keeps it until
rank 0 has forgotten its own copy. A rank that had to read files in the middle of a step could only end, with all
others, if they were gone.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ..api import AdapterError, AdapterRef
from ..transport.rank_link import RankLink
from ..transport.rank_messages import AdapterRead, ForgetAdapter, RankMessage, ReadAdapter
from .followers import Followers

if TYPE_CHECKING:
    from ..lora.adapters import Adapters  # imports torch


class LeadingAdapters:
    """The adapters of rank 0, which the others follow. Any thread may call the methods."""

    def __init__(self, own: Adapters, others: Followers) -> None:
        self._own, self._others = own, others
        own.on_forgotten = self._forgotten

    def has(self, digest: str) -> bool:
        """See Adapters.has."""
        return self._own.has(digest)

    def load(self, ref: AdapterRef) -> None:
        """Returns when all ranks have read it. Raises AdapterError, and none has it then; RankLost."""
        if self._own.has(ref.digest):
            self._own.load(ref)  # it is the one that was used last
            return
        self._others.send_aside(ReadAdapter(ref))
        try:
            self._own.load(ref)
        except BaseException:
            self._others.read_adapter(ref)
            self._forgotten(ref.digest)
            raise
        if (refused := self._others.read_adapter(ref)) is not None:
            self.forget(ref.digest)
            raise AdapterError(refused.error, code=refused.code)

    def forget(self, digest: str) -> None:
        """See Adapters.forget."""
        self._own.forget(digest)
        self._forgotten(digest)

    def _forgotten(self, digest: str) -> None:
        self._others.send_aside(ForgetAdapter(digest))


class FollowingAdapters:
    """The adapters of another rank."""

    def __init__(self, own: Adapters, link: RankLink) -> None:
        self._own, self._link = own, link
        own.is_led = True
        # One thread, so that an adapter is forgotten after it was read.
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="adapters")
        link.take_aside(self._take)

    def _take(self, message: RankMessage) -> bool:
        match message:
            case ReadAdapter(ref):
                self._reader.submit(self._read, ref)
            case ForgetAdapter(digest):
                self._reader.submit(self._own.forget, digest)
            case _:
                return False
        return True

    def _read(self, ref: AdapterRef) -> None:
        try:
            self._own.load(ref)
            answer = AdapterRead(ref.digest)
        except AdapterError as error:
            answer = AdapterRead(ref.digest, str(error), error.code)
        self._link.send(answer)
