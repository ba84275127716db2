"""LMCache servers: the real one where it is installed, and one that behaves like it, and fails as a test says."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq
from tests.free_ports import HOST, free_port

START_LIMIT_S = 240.0
SIZE = 1 << 24  # of the memory for blocks
_names = itertools.count()


def address_of(port: int) -> str:
    return f"tcp://{HOST}:{port}"


@contextlib.contextmanager
def real_server(port: int, log: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """`lmcache server`, once it answers. Skips the test where it is not installed."""
    if (command := shutil.which("lmcache")) is None:
        pytest.skip("no `lmcache` on the PATH: it needs an environment of its own, see docs/guide/lmcache.md")
    words = [
        *(command, "server", "--host", HOST, "--port", str(port), "--http-host", HOST, "--http-port", str(free_port())),
        *("--supported-transfer-mode", "engine_driven", "--shm-name", f"stoker-{port}", "--no-l1-use-lazy"),
        *("--l1-size-gb", "0.25", "--eviction-policy", "LRU", "--disable-observability", *options),
    ]
    with log.open("wb") as output:
        environment = os.environ | {"LMCACHE_TRACK_USAGE": "false", "PYTHONPATH": ""}
        process = subprocess.Popen(words, stdout=output, stderr=output, env=environment)
    try:
        until_it_answers(port, process, log)
        yield process
    finally:
        process.kill()
        process.wait()
        Path(f"/dev/shm/lmcache_l1_pool_stoker-{port}").unlink(missing_ok=True)


def until_it_answers(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(address_of(port))
        socket.send_multipart([msgpack.packb(0), msgpack.packb("noop")])
        while not socket.poll(100):
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(log.read_text()[-2000:])


class LikeLmcache:
    """Answers what this project asks of an LMCache server, and keeps blocks as that does."""

    def __init__(self, port: int = 0, *, max_blocks: int = 99, chunk_size: int = 16) -> None:
        self.silent: set[str] = set()  # operations that are not answered
        self.silent_after: dict[str, int] = {}  # number of calls, by operation
        self.answers: dict[str, Any] = {}  # by operation, instead of the right ones
        self.num_polls = 0  # after which a block is there
        self.asked: list[str] = []
        self.locked: list[bytes] = []
        self._max_blocks, self._chunk_size = max_blocks, chunk_size
        self._offsets: dict[bytes, int] = {}
        self._written: set[bytes] = set()
        self._found: dict[str, int] = {}
        self._layouts: dict[int, tuple[str, int]] = {}
        self.memory = Path(f"/dev/shm/stoker-test-{os.getpid()}-{next(_names)}")
        self.memory.write_bytes(bytes(SIZE))
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self.port = port or free_port()
        self._socket.bind(address_of(self.port))
        self._ends, self._end = self._context.socket(zmq.PAIR), self._context.socket(zmq.PAIR)
        self._ends.bind("inproc://end")
        self._end.connect("inproc://end")
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._ends, zmq.POLLIN)
        while self._ends not in dict(poller.poll()):
            client, number, name, *arguments = self._socket.recv_multipart()
            operation = msgpack.unpackb(name)
            self.asked.append(operation)
            try:
                result = getattr(self, f"_{operation}")(*map(msgpack.unpackb, arguments))
            except KeyError:
                continue  # LMCache logs what it cannot do, and does not answer
            result = self.answers.get(operation, result)
            if self.asked.count(operation) > self.silent_after.get(operation, len(self.asked)):
                self.silent.add(operation)
            if operation not in self.silent:
                self._socket.send_multipart([client, number, name] + [msgpack.packb(result)] * (result is not None))

    def _get_chunk_size(self) -> int:
        return self._chunk_size

    def _register_kv_cache_engine_driven_context(self, client: dict[str, Any]) -> dict[str, Any]:
        assert client["num_layers"] == client["num_physical_slots"] == client["world_size"] == 1
        assert (client["dtype_str"], client["use_mla"]) == ("uint8", True)
        self._layouts[client["instance_id"]] = client["model_name"], client["hidden_dim_size"]
        return {"shm_name": f"/{self.memory.name}", "pool_size": SIZE}

    def _unregister_kv_cache_engine_driven_context(self, client: int) -> None:
        del self._layouts[client]

    def _lookup(self, key: dict[str, Any], _: int) -> None:
        assert (key["worker_id"], key["num_kv_readers"]) == (None, 1)
        name = self._name(key)
        self._found[key["request_id"]] = int(name in self._written)
        self.locked += [name] * (name in self._written)

    def _query_prefetch_status(self, request: str) -> int | None:
        if self.num_polls:
            self.num_polls -= 1
            return None
        return self._found.pop(request, 0)

    def _free_lookup_locks(self, key: dict[str, Any], _: int) -> None:
        self.locked.remove(self._name(key))

    def _prepare_retrieve(self, key: dict[str, Any], client: int) -> dict[str, Any]:
        _, size = self._layouts[client]
        name = self._name(key)
        slots = [self._slot(name, size)] if name in self._written and name in self.locked else []
        return {"success": bool(slots), "data": b"", "context": {"slots": slots} if slots else {}}

    def _commit_retrieve(self, key: dict[str, Any], _: int) -> bool:
        self.locked.remove(self._name(key))
        return True

    def _prepare_store(self, key: dict[str, Any], client: int) -> dict[str, Any]:
        _, size = self._layouts[client]
        name = self._name(key)
        if name in self._offsets or len(self._offsets) == self._max_blocks:
            return {"context": {"slots": [], "chunk_indices": []}}
        self._offsets[name] = sum(4096 * -(-size // 4096) for _ in self._offsets)
        return {"context": {"slots": [self._slot(name, size)], "chunk_indices": [0]}}

    def _commit_store(self, key: dict[str, Any], client: int, content: bytes) -> bool:
        assert client in self._layouts
        assert not content
        self._written.add(self._name(key))
        return True

    def _end_session(self, request: str) -> None:
        self._found.pop(request, None)

    def _slot(self, name: bytes, size: int) -> dict[str, Any]:
        return {"offset": self._offsets[name], "length": size, "shape": [1, 1, size], "dtype": "uint8"}

    def _name(self, key: dict[str, Any]) -> bytes:
        tokens = key["token_ids"]
        assert (key["start"], key["end"], len(tokens)) == (0, self._chunk_size, self._chunk_size)
        assert all(0 <= token < 1 << 32 for token in tokens)
        name: bytes = msgpack.packb([key["model_name"], tokens])
        return name

    def lose(self, number: int) -> None:
        """The block that was stored as this one."""
        self._written.discard(list(self._offsets)[number])

    def damage(self, number: int) -> None:
        with self.memory.open("r+b") as file:
            file.seek(list(self._offsets.values())[number])
            file.write(b"x")

    def close(self) -> None:
        if self._context.closed:
            return
        self._end.send(b"")
        self._thread.join(60)
        self._context.destroy(0)
        self.memory.unlink(missing_ok=True)


def kinds() -> Sequence[Any]:
    """Parameters of tests: the real one takes seconds to start."""
    return ["alike", pytest.param("real", marks=pytest.mark.slow)]
