"""Adapters of several processes of a model, which have the same copies in memory.

Rank 0 decides which: another rank reads an adapter when rank 0 asks for it, before a plan names it, and keeps it until
rank 0 has freed its own copy. A rank that had to read files in the middle of a step could only end, with all others, if
they were gone.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ..api import AdapterError, AdapterRef
from ..transport.rank_link import RankLink
from ..transport.rank_messages import AdapterRead, ForgetAdapter, RankMessage, ReadAdapter
from .followers import Followers

if TYPE_CHECKING:
    from ..lora.adapters import Adapters  # imports torch

logger = logging.getLogger(__name__)


class OthersOfRanks:
    """The OtherCopies (lora/adapters.py) of rank 0: the other ranks read and free what rank 0 reads and frees."""

    def __init__(self, others: Followers) -> None:
        self._others = others

    def read(self, ref: AdapterRef) -> None:
        self._others.send_aside(ReadAdapter(ref))

    def wait_read(self, ref: AdapterRef) -> None:
        """Returns when all have read it. Raises AdapterError, and none of them has it then; RankLost."""
        if (refused := self._others.read_adapter(ref)) is not None:
            self.forget(ref.digest)
            raise AdapterError(refused.error, code=refused.code)

    def forget(self, digest: str) -> None:
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
        except Exception as error:  # rank 0 waits for an answer
            logger.exception("reading adapter `%s` failed", ref.name)
            text = f"adapter `{ref.name}` cannot be read: {type(error).__name__}"
            answer = AdapterRead(ref.digest, text, "adapter_unreadable")
        self._link.send(answer)
