"""Attacks on connections over TLS and over a Unix socket. Each starts its own server, and probes /health meanwhile."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trustme

from .catalogue import Catalogue, Scene, expect
from .server import Server, manifest
from .verdict import HEALTH_MAX_MS, MAX_LOG_LINES, MORE_FDS
from .wire import head, posting, reset, statuses

CATALOGUE = Catalogue("transports")
HANDSHAKE_S = 10.0  # documented time limit of a TLS handshake
READY_S, STOP_S, PAUSE_S = 120.0, 15.0, 0.05
NUM = 200
GET = head("GET", "/health")
STREAM = posting("/v1/completions", {"model": "tiny", "prompt": "Once", "max_tokens": 300, "ignore_eos": True,
                                     "stream": True})  # fmt: skip


@dataclass
class Door:
    """How a client reaches the server."""

    server: Server
    raw: Callable[[], socket.socket]  # connected, without a handshake
    connect: Callable[[], socket.socket]  # ready for HTTP
    milliseconds: list[float] = field(default_factory=list)  # of the probe
    failed: list[str] = field(default_factory=list)

    def health(self) -> int:
        with contextlib.closing(self.connect()) as opened:
            opened.sendall(GET)
            received = b""
            with contextlib.suppress(ssl.SSLError):
                while piece := opened.recv(4096):
                    received += piece
            return (statuses(received) or [0])[0]

    def probe(self, ended: threading.Event) -> None:
        while not ended.wait(PAUSE_S):
            began = time.monotonic()
            try:
                status: int | str = self.health()
            except OSError as error:
                status = type(error).__name__
            self.milliseconds.append(1e3 * (time.monotonic() - began))
            if status != 200:
                self.failed.append(str(status))


def _tcp(server: Server) -> socket.socket:
    opened = socket.create_connection(server.address, timeout=20)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened


def _tls(server: Server, context: ssl.SSLContext) -> socket.socket:
    return context.wrap_socket(_tcp(server), server_hostname="localhost")


def _unix(path: str) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX)
    opened.settimeout(20)
    opened.connect(path)
    return opened


def client_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@contextlib.contextmanager
def door(scene: Scene, kind: str) -> Iterator[Door]:
    """A server with TLS or on a Unix socket, probed during the block and judged after it. Raises Fell."""
    if kind == "tls":
        certificate, key = scene.folder / "cert.pem", scene.folder / "key.pem"
        issued = trustme.CA().issue_cert("localhost", key_type=trustme.KeyType.RSA)  # the slower one
        issued.private_key_pem.write_to_path(key)
        for blob in issued.cert_chain_pems:
            blob.write_to_path(certificate, append=True)
        options = ("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key))
    else:
        options = ("--uds", str(scene.folder / "s"))
    server = Server(scene.folder, manifest(), options)
    try:
        expect(server.wait_ready(READY_S * scene.slowness), f"the server did not become ready: {server.log[-200:]}")
        if kind == "tls":
            found = Door(server, partial(_tcp, server), partial(_tls, server, client_context()))
        else:
            found = Door(server, partial(_unix, options[1]), partial(_unix, options[1]))
        expect(found.health() == 200, "/health does not answer before the attack")
        before, ended = server.usage(), threading.Event()
        probe = threading.Thread(target=found.probe, args=(ended,), daemon=True)
        probe.start()
        yield found
        time.sleep(1.0)
        ended.set()
        probe.join()
        _judge(scene, found, before.num_fds)
    finally:
        server.process.terminate()
        code = server.wait(STOP_S * scene.slowness)
        server.close()
    expect(code == 0, f"SIGTERM ended the server with {code}")
    expect(kind == "tls" or not Path(options[1]).exists(), "the socket's path is left")


def _judge(scene: Scene, found: Door, num_fds: int) -> None:
    slowest = max(found.milliseconds)
    limit = HEALTH_MAX_MS * scene.slowness
    expect(slowest <= limit, f"/health max was {slowest:.0f} ms; promised are {HEALTH_MAX_MS:.0f} ms")
    expect(not found.failed, f"{len(found.failed)} of {len(found.milliseconds)} probes failed: {found.failed[:1]}")
    log = found.server.log
    expect("Traceback" not in log, f"a traceback in the log: {log[-200:]}")
    expect(len(log.splitlines()) <= MAX_LOG_LINES, f"{len(log.splitlines())} log lines: {log[-200:]}")
    until = time.monotonic() + HANDSHAKE_S * scene.slowness
    while (now := found.server.usage().num_fds) > num_fds + MORE_FDS:
        expect(time.monotonic() < until, f"{now} descriptors remain, before there were {num_fds}")
        time.sleep(0.2)


def _close(opened: list[socket.socket]) -> None:
    for each in opened:
        each.close()


def _num_closed(opened: list[socket.socket]) -> int:
    """Number of connections that the server has closed."""
    count = 0
    for each in opened:
        each.settimeout(0.001)
        try:
            while each.recv(4096):
                pass
            count += 1
        except TimeoutError:
            pass
        except OSError:
            count += 1
    return count


def _seen(found: Door, text: str) -> str:
    times = sorted(found.milliseconds)
    return f"{text}; /health p50 {times[len(times) // 2]:.0f}, max {times[-1]:.0f} ms"


def _hello() -> bytes:
    """The first bytes that a TLS client sends."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def _half_open_handshakes(scene: Scene) -> str:
    """Clients that stop after a part of the handshake: each is closed at the time limit of a handshake."""
    hello = _hello()
    cuts = [0, 1, 5, 100, len(hello) - 1, len(hello)]
    with door(scene, "tls") as found:
        opened = [found.raw() for _ in range(NUM)]
        for number, each in enumerate(opened):
            each.sendall(hello[: cuts[number % len(cuts)]])
        time.sleep((HANDSHAKE_S + 2) * scene.slowness)
        closed = _num_closed(opened)
        _close(opened)
        expect(closed == NUM, f"{NUM - closed} of {NUM} half handshakes are open after {HANDSHAKE_S:.0f} s")
    return _seen(found, f"{closed} of {NUM} closed by the server")


def _slow_handshakes(scene: Scene) -> str:
    """A byte of the handshake each 50 ms: no time limit begins again with a byte."""
    hello = _hello()
    with door(scene, "tls") as found:
        opened = [found.raw() for _ in range(50)]
        until, position = time.monotonic() + (HANDSHAKE_S + 2) * scene.slowness, 0
        while time.monotonic() < until and position < len(hello) - 1:
            for each in opened:
                with contextlib.suppress(OSError):
                    each.send(hello[position : position + 1])
            position += 1
            time.sleep(0.05)
        closed = _num_closed(opened)
        _close(opened)
        expect(closed == len(opened), f"{len(opened) - closed} slow handshakes are still open")
    return _seen(found, f"{closed} of {len(opened)} closed by the server after at most {position} bytes")


def _garbage(kind: str, scene: Scene) -> str:
    """Bytes that are neither a handshake nor HTTP; each connection is closed."""
    random = scene.random.randbytes
    pieces = [b"\x16\x03\x01\xff\xff" + random(400), b"\x80\x2e\x01\x00\x02" + bytes(50),
              b"\x15\x03\x01\x00\x02\x02\x28", random(2000), b"\x00" * 500, b"SSH-2.0-x\r\n\r\n"]  # fmt: skip
    pieces += [GET, _hello()[:200] + random(400)] if kind == "tls" else [_hello()]
    with door(scene, kind) as found:
        opened = []
        for number in range(NUM):
            opened.append(found.raw())
            with contextlib.suppress(OSError):
                opened[-1].sendall(pieces[number % len(pieces)])
                opened[-1].shutdown(socket.SHUT_WR)
        time.sleep(2 * scene.slowness)
        closed = _num_closed(opened)
        _close(opened)
        expect(closed == NUM, f"{NUM - closed} of {NUM} connections with garbage are open")
    return _seen(found, f"{closed} of {NUM} closed by the server")


def _early_close(kind: str, scene: Scene) -> str:
    """Streams whose clients reset, or close without the end of TLS; their requests end."""
    with door(scene, kind) as found:
        for number in range(60):
            opened = found.connect()
            opened.sendall(STREAM)
            if number % 3:
                opened.recv(1)
            (reset if number % 2 else _silent_close)(opened)
        time.sleep(1)
    return _seen(found, "60 streams left")


def _silent_close(opened: socket.socket) -> None:
    os.close(opened.detach())  # no close_notify


def _many_connections(kind: str, scene: Scene) -> str:
    """Opened as quickly as one client can, all at once and again and again, and held."""
    with door(scene, kind) as found:
        raw = [found.raw() for _ in range(NUM)]
        hello = _hello()
        for each in raw:  # 200 handshakes in the same moment
            each.sendall(hello if kind == "tls" else GET)
        held = [found.connect() for _ in range(NUM)]
        for _ in range(NUM):
            _silent_close(found.connect())
        _close(raw)
        _close(held)
    return _seen(found, f"{3 * NUM} connections")


def _renegotiation(scene: Scene) -> str:
    """A client of TLS 1.2 asks for a new handshake within the connection, which costs the server much more than it."""
    with door(scene, "tls") as found:
        host, port = found.server.address
        client = subprocess.run(
            ["openssl", "s_client", "-connect", f"{host}:{port}", "-tls1_2"],
            input=b"R\n" * 20, capture_output=True, timeout=30 * scene.slowness, check=False,
        )  # fmt: skip
        said = (client.stdout + client.stderr).decode(errors="replace")
        expect("RENEGOTIATING" in said, f"openssl did not ask: {said[-200:]}")
        renewed = client.stderr.partition(b"RENEGOTIATING")[2].count(b"depth=0")  # each verifies the certificate
        expect(not renewed, "the server accepted another handshake")
    return _seen(found, "refused")


CATALOGUE.add("tls-half-open-handshakes", _half_open_handshakes, on_server=False, limit_s=120)
CATALOGUE.add("tls-slow-handshakes", _slow_handshakes, on_server=False, limit_s=120)
CATALOGUE.add("tls-renegotiation", _renegotiation, on_server=False, limit_s=120)
for _kind in ("tls", "unix"):
    CATALOGUE.add(f"{_kind}-garbage", partial(_garbage, _kind), on_server=False, limit_s=120)
    CATALOGUE.add(f"{_kind}-early-close", partial(_early_close, _kind), on_server=False, limit_s=120)
    CATALOGUE.add(f"{_kind}-many-connections", partial(_many_connections, _kind), on_server=False, limit_s=120)
