"""LmcacheConnection: reads and writes blocks of an LMCache server by their hashes.

LMCache finds what it stores by a model and by tokens. Here each block is a separate chunk: its "tokens" are its hash,
padded with zeros to the size of a chunk, and its model is the fingerprint. Its keys and values are bytes to LMCache,
with a checksum after them. Of the server's ways to move contents this is the one for engines that copy them
("engine-driven"), through shared memory.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import struct
import time
from collections.abc import Sequence
from itertools import count, takewhile
from typing import Any

from stoker.engine.kv_stores.checksum import SUM_BYTES, checksum

from .memory import LmcacheMemory
from .requests import LmcacheRequests, LmcacheUnavailable, field

MAX_BATCH = 32  # blocks in one exchange, locked until its end
_RENEW_S = 60.0  # the server forgets a client that is silent for an hour
_POLL_S = 0.005  # while the server reads from its second store
_TOKEN_BYTES = 4
_ONE_READER: dict[str, Any] = {"world_size": 1, "num_kv_readers": 1}
Key = dict[str, Any]
logger = logging.getLogger(__name__)


class LmcacheConnection:
    """Connection to an LMCache server, for one thread at a time."""

    def __init__(self, address: str, fingerprint: str, block_bytes: int, limit_s: float) -> None:
        """address: tcp://HOST:PORT. limit_s: see LmcacheRequests."""
        self._requests = LmcacheRequests(address, limit_s)
        self._model = f"stoker-{fingerprint}"
        self._num_bytes = block_bytes + SUM_BYTES
        self._client = secrets.randbits(62)
        self._numbers = count()
        self._chunk_size = 0
        self._memory: LmcacheMemory | None = None
        self._renew_at = 0.0  # of time.monotonic

    def register(self) -> LmcacheMemory:
        """The server's memory, once it knows this client. Raises LmcacheUnavailable."""
        if not self._requests.is_connected:
            self._requests.close()  # a server that has started again knows no client, and has another memory
        elif self._memory is not None and time.monotonic() < self._renew_at:
            return self._memory
        self._memory = None
        self._chunk_size = self._requests.call("get_chunk_size")
        if not isinstance(self._chunk_size, int):
            raise LmcacheUnavailable("its chunk size is not a number")
        client = {"instance_id": self._client, "model_name": self._model, "world_size": 1}
        # use_mla: a block is one array, instead of one of keys and one of values
        array = {"num_layers": 1, "num_physical_slots": 1, "hidden_dim_size": self._num_bytes, "use_mla": True}
        layout = array | {"block_size": self._chunk_size, "dtype_str": "uint8"}
        answer = self._requests.call("register_kv_cache_engine_driven_context", client | layout)
        self._memory = LmcacheMemory(field(answer, "shm_name"), field(answer, "pool_size"))
        self._renew_at = time.monotonic() + _RENEW_S
        return self._memory

    def read(self, hashes: Sequence[bytes]) -> list[memoryview]:
        """Contents of the first of these blocks, up to the first that the server does not have, or does not give.

        Raises LmcacheUnavailable, with the contents that were read before.
        """
        contents: list[memoryview] = []
        batch = hashes[:1]  # of most new prompts there is none: one question
        try:
            while batch:
                found = self._read(batch)
                contents += found
                if len(found) < len(batch):
                    break
                batch = hashes[len(contents) : len(contents) + MAX_BATCH]
        except OSError as error:
            self._memory = None
            raise LmcacheUnavailable(str(error), contents) from error
        return contents

    def _read(self, hashes: Sequence[bytes]) -> list[memoryview]:
        """Raises OSError."""
        memory, requests = self.register(), self._requests
        keys = [self._key(block_hash) for block_hash in hashes]
        requests.call_all("lookup", [(key | {"worker_id": None}, 1) for key in keys])  # locks what there is
        found = self._found(keys)
        num_found = len(list(takewhile(found.__contains__, map(_request, keys))))
        asked = [(key, self._client) for key in keys[:num_found]]
        answers = requests.call_all("prepare_retrieve", asked)
        contents: list[memoryview] = []
        with memory:
            for block_hash, answer in zip(hashes, answers, strict=False):
                if (content := self._content(memory, block_hash, answer)) is None:
                    break
                contents.append(content)
        requests.call_all("commit_retrieve", asked)
        after_a_gap = [(key | {"worker_id": None}, 1) for key in keys[num_found:] if _request(key) in found]
        requests.call_all("free_lookup_locks", after_a_gap)
        self._end(keys)
        return contents

    def _found(self, keys: Sequence[Key]) -> set[str]:
        """Requests whose block is in the server's memory now. Requests that take longer count as missing."""
        deadline = time.monotonic() + self._requests.limit_s / 2
        found: set[str] = set()
        missing = [_request(key) for key in keys]
        while True:
            answers = self._requests.call_all("query_prefetch_status", [(request,) for request in missing])
            states = dict(zip(missing, answers, strict=True))
            found.update(request for request, state in states.items() if state)
            missing = [request for request, state in states.items() if state is None]
            if not missing or time.monotonic() > deadline:
                return found
            time.sleep(_POLL_S)

    def _content(self, memory: LmcacheMemory, block_hash: bytes, answer: Any) -> memoryview | None:
        """Content of a block; None if the server has lost it meanwhile. Raises OSError."""
        if not field(answer, "success"):
            return None
        whole = memory.read(self._slot(answer), self._num_bytes)
        content, its_sum = whole[:-SUM_BYTES], whole[-SUM_BYTES:]
        if bytes(its_sum) == checksum(block_hash, content):
            return content
        logger.warning("a KV block of LMCache is damaged, its tokens are computed")
        return None

    def save(self, blocks: Sequence[tuple[bytes, memoryview]]) -> None:
        """Save at most MAX_BATCH blocks. The server drops what it has no room for. Raises LmcacheUnavailable."""
        try:
            self._save(blocks)
        except OSError as error:
            self._memory = None
            raise LmcacheUnavailable(str(error)) from error

    def _save(self, blocks: Sequence[tuple[bytes, memoryview]]) -> None:
        """Raises OSError."""
        memory, requests = self.register(), self._requests
        keys = [self._key(block_hash) for block_hash, _ in blocks]
        answers = requests.call_all("prepare_store", [(key, self._client) for key in keys])
        written: list[Key] = []
        with memory:
            for key, (block_hash, content), answer in zip(keys, blocks, answers, strict=True):
                if (slot := self._slot(answer)) is not None:
                    memory.write(slot, content, checksum(block_hash, content))
                    written.append(key)
        requests.call_all("commit_store", [(key, self._client, b"") for key in written])
        self._end(keys)

    def _end(self, keys: Sequence[Key]) -> None:
        """These blocks were used now, and the server forgets the requests for them. Raises LmcacheUnavailable."""
        self._requests.send("end_session", [(_request(key),) for key in keys])

    def _key(self, block_hash: bytes) -> Key:
        """Raises LmcacheUnavailable."""
        padded = block_hash.ljust(self._chunk_size * _TOKEN_BYTES, b"\0")
        tokens = [number for (number,) in struct.iter_unpack("!I", padded)]
        if len(tokens) > self._chunk_size:
            raise LmcacheUnavailable(f"its --chunk-size must be at least {len(tokens)}, not {self._chunk_size}")
        request = f"{self._client:x}-{next(self._numbers)}"
        place = {"token_ids": tokens, "start": 0, "end": self._chunk_size, "worker_id": 0, "request_id": request}
        return {"model_name": self._model} | _ONE_READER | place

    @staticmethod
    def _slot(answer: Any) -> Any:
        """Slot for a block; None if the server has the block, or no room for it. Raises LmcacheUnavailable."""
        slots = field(answer, "context", "slots")
        return slots[0] if isinstance(slots, list) and slots else None

    def close(self) -> None:
        """The server forgets this client."""
        memory, self._memory = self._memory, None
        if memory is not None:
            with contextlib.suppress(LmcacheUnavailable):
                self._requests.call("unregister_kv_cache_engine_driven_context", self._client)
        self._requests.close()


def _request(key: Key) -> str:
    """Id by which the server knows the calls for one block."""
    return str(key["request_id"])
