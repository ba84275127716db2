"""Attacks that are no requests of clients: pages of other sites, engines, readers of events, files, prefill servers."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zmq

from .catalogue import Catalogue, Scene, expect
from .server import MIB, Server, manifest
from .wire import Answer, ask, check_answer, head, posting

CATALOGUE = Catalogue("peers")
HOST = "127.0.0.1"
LATENCY_S = 1.0  # of a completion beside an attack, on an idle machine
MEMORY_MIB = 300.0
PROMPT = "A long prompt, of which several blocks are stored and read again. " * 8
ROUTES = ("/sleep?level=2", "/wake_up", "/reset_prefix_cache", "/start_profile", "/stop_profile", "/v1/files",
          "/v1/responses/resp_x/cancel", "/v1/batches/batch_x/cancel", "/v1/chat/completions", "/tokenize")  # fmt: skip


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def _serving(scene: Scene, name: str = "server", *options: str, **sections: dict[str, Any]) -> Iterator[Server]:
    server = Server(scene.folder / name, manifest(**sections), options)
    try:
        is_ready = server.wait_ready(60 * scene.slowness)
        expect(is_ready, f"the server did not become ready: {server.log[-300:]}")
        yield server
    finally:
        server.process.terminate()
        server.wait(10 * scene.slowness)
        server.close()


def _complete(server: Server, scene: Scene, prompt: str = PROMPT) -> float:
    """Seconds of a completion, which must be answered."""
    began = time.monotonic()
    data = posting("/v1/completions", {"model": "tiny", "prompt": prompt, "max_tokens": 4})
    check_answer(ask(server.address, data, limit_s=30 * scene.slowness), (200,), "a completion")
    return time.monotonic() - began


def _beside(server: Server, scene: Scene, attack: Callable[[], None], limit_s: float = LATENCY_S) -> str:
    """Completions while an attack runs, and what they took."""
    _complete(server, scene)
    before = server.usage().anonymous_mib
    server.peak_anonymous_mib = 0.0
    running = threading.Thread(target=attack, daemon=True)
    running.start()
    longest = 0.0
    for number in range(10):
        longest = max(longest, _complete(server, scene, f"{number} {PROMPT}"))
    running.join(30 * scene.slowness)
    longest = max(longest, _complete(server, scene))
    grown = max(server.peak_anonymous_mib, server.usage().anonymous_mib) - before
    expect(longest < limit_s * scene.slowness, f"a completion took {longest:.1f} s")
    expect(grown < MEMORY_MIB, f"memory grew by {grown:.0f} MiB")
    return f"completions took at most {longest:.2f} s, memory grew by {grown:.0f} MiB"


@CATALOGUE.attack(on_server=False, limit_s=120)
def requests_of_another_site(scene: Scene) -> str:
    """Sends what a browser sends for a page of any site: requests without a body and without a preflight."""
    server = {"enable_admin_routes": True, "files_dir": str(scene.folder / "files"),
              "responses_store": str(scene.folder / "responses")}  # fmt: skip
    with _serving(scene, "server", "--enable-sleep-mode", server=server) as running:
        for lines in (("origin: http://evil.example",), ("sec-fetch-site: cross-site",)):
            for route in ROUTES:
                request = head("POST", route, *lines, "content-type: text/plain", "content-length: 0")
                _refused(ask(running.address, request), route)
        answer = ask(running.address, head("GET", "/v1/models").replace(b"host: localhost", b"host: evil.example"))
        _refused(answer, "a name of another site")
        return f"{2 * len(ROUTES) + 1} refused; a completion took {_complete(running, scene):.2f} s"


def _refused(answer: Answer, what: str) -> None:
    expect(answer.status == 403, f"{what}: {answer.status}")


@CATALOGUE.attack(on_server=False, limit_s=120)
def a_peer_of_the_block_port(scene: Scene) -> str:
    """16 MB of empty lists in each of four requests, then many connections that say nothing."""
    port = _free_port()
    transfer = {"kv_connector": "TcpConnector", "kv_role": "kv_both", "kv_ip": HOST, "kv_port": port}
    lists = b"\x92\xa1x\xdd" + struct.pack("!I", 1 << 24) + b"\x90" * ((1 << 24) - 16)

    def attack() -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                with contextlib.suppress(OSError):
                    each = stack.enter_context(socket.create_connection((HOST, port), 5))
                    each.sendall(struct.pack("!I", len(lists)) + lists)
            for _ in range(1000):
                with contextlib.suppress(OSError):
                    stack.enter_context(socket.create_connection((HOST, port), 5))

    with _serving(scene, kv_transfer=transfer) as server:
        return _beside(server, scene, attack)


@CATALOGUE.attack(on_server=False, limit_s=120)
def a_reader_of_kv_events(scene: Scene) -> str:
    """A frame of 512 MiB, and 20,000 wrong requests."""
    replay = f"tcp://{HOST}:{_free_port()}"
    events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://{HOST}:{_free_port()}",
              "replay_endpoint": replay}  # fmt: skip

    def attack() -> None:
        with zmq.Context() as context:
            for frames in ([bytes(512 * MIB)], [b"wrong"] * 20_000):
                with context.socket(zmq.DEALER) as reader:
                    reader.linger = 2000
                    reader.connect(replay)
                    for frame in frames:
                        reader.send(frame)

    with _serving(scene, kv_events=events) as server:
        found = _beside(server, scene, attack)
        num_lines = server.log.count("neither")
        expect(num_lines < 10, f"{num_lines} log lines")
        return found


@CATALOGUE.attack(on_server=False, limit_s=180)
def files_in_kv_directory(scene: Scene) -> str:
    """Pipes, sparse files, empty files and folders in place of blocks."""
    folder = scene.folder / "kv"
    found = []
    for kind in ("pipe", "sparse", "empty", "folder"):
        with _serving(scene, f"before-{kind}", cache={"kv_directory": str(folder)}) as server:
            _complete(server, scene)
        _replace(folder, kind)
        with _serving(scene, f"after-{kind}", cache={"kv_directory": str(folder)}) as server:
            found.append(f"{kind}: {_beside(server, scene, lambda: None, 15.0)}")
    return "; ".join(found)


def _replace(folder: Path, kind: str) -> None:
    paths = list(folder.glob("*/*.kv"))
    expect(bool(paths), "no block was stored")
    for path in paths:
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.touch()
            os.truncate(path, 8 << 30 if kind == "sparse" else 0)


@CATALOGUE.attack(on_server=False, limit_s=180)
def a_prefill_server(scene: Scene) -> str:
    """A prefill server answers probes, and prompts with nothing, with a gigabyte, or with what becomes one."""
    found = []
    for kind in ("silent", "endless", "compressed"):
        with _prefill_server(kind) as port:
            transfer = {"kv_connector": "TcpConnector", "kv_role": "kv_consumer", "kv_ip": HOST,
                        "kv_port": _free_port(), "prefill_servers": [f"http://{HOST}:{port}"], "prefill_min_tokens": 16,
                        "prefill_timeout": "1s"}  # fmt: skip
            with _serving(scene, kind, kv_transfer=transfer) as server:
                found.append(f"{kind}: {_beside(server, scene, lambda: None, 3.0)}")
    return "; ".join(found)


@contextlib.contextmanager
def _prefill_server(kind: str) -> Iterator[int]:
    with socket.create_server((HOST, 0)) as listener:

        def answer(opened: socket.socket) -> None:
            with opened, contextlib.suppress(OSError):
                opened.settimeout(30)
                if opened.recv(1 << 16).startswith(b"GET"):
                    opened.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                    return
                if kind == "silent":
                    opened.recv(1 << 16)
                    time.sleep(30)
                    return
                encoding = "content-encoding: gzip\r\n" if kind == "compressed" else ""
                opened.sendall(f"HTTP/1.1 200 OK\r\n{encoding}content-length: {1 << 30}\r\n\r\n".encode())
                for _ in range(1 << 10):
                    opened.sendall(bytes(MIB))

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
