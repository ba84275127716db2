"""Attacks on connections and on the framing of HTTP: what arrives below a request, or never becomes one."""

from __future__ import annotations

import contextlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from .catalogue import Catalogue, Fell, Scene, expect
from .wire import answer_of, ask, check_answer, connect, exchange, head, posting, reset, statuses

CATALOGUE = Catalogue("sockets")
OPTIONS = ("--body-idle-timeout", "2s", "--body-timeout", "4s", "--send-stall-timeout", "3s")
FEW_FILES = 256
KEEP_ALIVE_S = 30.0  # documented time limit of an idle connection and of the head of a request
GET = head("GET", "/health", close=False)
STREAM = {"model": "tiny", "prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True}
attack = partial(CATALOGUE.attack, options=OPTIONS)


def _health_answers(scene: Scene, limit_s: float = 2.0) -> None:
    began = time.monotonic()
    answer = ask(scene.address, head("GET", "/health"), limit_s=30)
    seconds = time.monotonic() - began
    expect(answer.status == 200, f"/health answered {answer.status} afterwards")
    expect(seconds <= limit_s * scene.slowness, f"/health needed {seconds:.1f} s afterwards")


def _wait_idle(scene: Scene, limit_s: float = 10.0) -> None:
    """No request runs or waits."""
    until = time.monotonic() + limit_s * scene.slowness
    while True:
        text = ask(scene.address, head("GET", "/metrics")).body.decode()
        names = ("stoker_num_requests_running{", "stoker_num_requests_waiting{")
        lines = [line for line in text.splitlines() if line.startswith(names)]
        expect(len(lines) == len(names), "/metrics does not have the numbers of requests")
        if all(float(line.split()[-1]) <= 1 for line in lines):  # one may be the bystander's
            return
        expect(time.monotonic() < until, f"requests of clients that left still run: {lines}")
        time.sleep(0.1)


@CATALOGUE.attack(options=OPTIONS, max_files=FEW_FILES)
def connect_and_close_with_few_descriptors(scene: Scene) -> str:
    """Each connection asks once and closes. A descriptor kept for some seconds is an outage soon."""

    def loop(_: int) -> int:
        count, until = 0, time.monotonic() + 5
        while time.monotonic() < until:
            answer = ask(scene.address, head("GET", "/health"), limit_s=10)
            expect(answer.status == 200, f"request {count} of a loop was answered {answer.status}")
            count += 1
        return count

    def leave(_: int) -> int:
        """The client closes first, as most pools do."""
        count, until = 0, time.monotonic() + 5
        while time.monotonic() < until:
            with contextlib.closing(connect(scene.address, limit_s=10)) as opened:
                opened.sendall(GET)
                expect(b" 200 " in opened.recv(4096), f"request {count} of a loop was not answered 200")
            count += 1
        return count

    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(run, number) for number, run in enumerate([loop, loop, leave, leave])]
        return f"{sum(run.result() for run in runs)} connections"


@CATALOGUE.attack(options=OPTIONS, max_files=FEW_FILES, bystander_may_fail=True, limit_s=40)
def more_connections_than_descriptors(scene: Scene) -> str:
    held = []
    try:
        for _ in range(2 * FEW_FILES):
            with contextlib.suppress(OSError):
                held.append(connect(scene.address, limit_s=1))
        time.sleep(3)
    finally:
        for each in held:
            each.close()
    time.sleep(1)
    _health_answers(scene, 5)
    return f"{len(held)} connections"


@CATALOGUE.attack(options=("--max-connections", "300", "--max-connections-per-client", "100"))
def more_connections_than_a_client_may_have(scene: Scene) -> str:
    """Connections over the limit are answered 503 or closed; clients of other addresses do not notice."""
    held, found = [], []
    try:
        for _ in range(1000):
            each = connect(scene.address)
            held.append(each)
            with contextlib.suppress(OSError):
                each.sendall(GET)
        time.sleep(3)
        for each in held:
            each.settimeout(0.01)
            with contextlib.suppress(OSError):
                found += statuses(each.recv(4096))
    finally:
        for each in held:
            each.close()
    expect(set(found) == {200, 503}, f"answered {sorted(set(found))}")
    expect(found.count(200) <= 100, f"{found.count(200)} of 1000 connections were served")
    return f"of {len(held)} connections {found.count(200)} were served, {found.count(503)} answered 503"


@attack()
def half_open(scene: Scene) -> str:
    """The client shuts its sending side at each byte of a request and keeps listening."""
    data = posting("/v1/completions", {"model": "tiny", "prompt": "Once", "max_tokens": 2}, close=False)
    cuts = [0, 1, 5, 30, data.index(b"\r\n\r\n") + 2, data.index(b"\r\n\r\n") + 4, len(data) - 1, len(data)] * 8
    opened = [connect(scene.address) for _ in cuts]
    for each, cut in zip(opened, cuts, strict=True):
        each.sendall(data[:cut])
        each.shutdown(socket.SHUT_WR)
    for each, cut in zip(opened, cuts, strict=True):
        try:
            exchange(each, b"", limit_s=10 * scene.slowness)
        except TimeoutError:
            raise Fell(f"the server keeps a connection whose client has ended after {cut} bytes") from None
        finally:
            each.close()
    return f"{len(cuts)} connections"


@attack(limit_s=KEEP_ALIVE_S + 30)
def idle_and_slow_heads(scene: Scene) -> str:
    """Connections that say nothing, and heads that arrive byte by byte: all are closed in time."""
    idle = [connect(scene.address) for _ in range(1500)]
    slow = [connect(scene.address) for _ in range(200)]
    refused = 0
    until, number = time.monotonic() + KEEP_ALIVE_S + 3 + 5 * (scene.slowness - 1), 0
    while time.monotonic() < until:
        for each in slow:
            with contextlib.suppress(OSError):
                each.sendall(b"GET /health HTTP/1.1\r\nx-slow: "[number : number + 1] or b"a")
        number += 1
        time.sleep(1)
    for what, group in (("an idle connection", idle), ("a connection with a slow head", slow)):
        for each in group:
            each.settimeout(0.01)
            try:
                while each.recv(4096):
                    refused += 1
            except TimeoutError:
                raise Fell(f"{what} is open after {KEEP_ALIVE_S + 3:.0f} s") from None
            except OSError:
                pass
            finally:
                each.close()
    return f"{len(idle)} idle, {len(slow)} slow, {refused} got an answer"


@attack()
def slow_bodies(scene: Scene) -> str:
    data = posting("/v1/completions", {"model": "tiny", "prompt": "x" * 100})
    opened = [connect(scene.address) for _ in range(100)]
    cut = data.index(b"\r\n\r\n") + 4
    for each in opened:
        each.sendall(data[:cut])
    for position in range(cut, cut + 6):  # one byte a second: body_timeout ends it after 4 s
        time.sleep(1)
        for each in opened:
            with contextlib.suppress(OSError):
                each.sendall(data[position : position + 1])
    found = []
    for each in opened:
        with contextlib.closing(each):
            found += statuses(exchange(each, b"", limit_s=5 * scene.slowness))
    expect(set(found) == {408}, f"slow bodies were answered {sorted(set(found))}")
    return f"{len(found)} of {len(opened)} were answered 408"


@attack()
def resets_at_each_moment_of_a_stream(scene: Scene) -> str:
    data = posting("/v1/completions", STREAM)
    moments = [0, 1, 20, data.index(b"\r\n\r\n") + 4, len(data) - 1] * 6
    for cut in moments:
        opened = connect(scene.address)
        opened.sendall(data[:cut])
        reset(opened)
    for number in range(60):
        opened = connect(scene.address)
        opened.sendall(data)
        wanted = scene.random.randrange(0, 3000)
        while wanted > 0 and (piece := opened.recv(min(4096, wanted))):
            wanted -= len(piece)
        if number % 3:
            reset(opened)
        else:
            opened.close()
    _wait_idle(scene)
    return f"{len(moments) + 60} connections"


@attack()
def pipelining(scene: Scene) -> str:
    count = 200
    last = head("GET", "/nowhere")
    with contextlib.closing(connect(scene.address)) as opened:
        found = statuses(exchange(opened, GET * count + last, limit_s=20 * scene.slowness))
    expect(
        found == [200] * count + [404], f"{count} pipelined requests and one were answered {found[:5]} ... {found[-3:]}"
    )
    # A stream with requests after it, abandoned: the server must notice that the client left.
    for _ in range(10):
        with contextlib.closing(connect(scene.address)) as opened:
            opened.sendall(posting("/v1/completions", {**STREAM, "n": 2}, close=False) + GET * 300)
            opened.recv(100)
    _wait_idle(scene)
    return f"{count} answers in order; 10 abandoned streams with requests after them ended"


@attack()
def garbage(scene: Scene) -> str:
    random = scene.random
    samples = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + random.randbytes(500),  # TLS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + random.randbytes(100),
        b"GET /health HTTP/9.9\r\n\r\n",
        b"GET /health\r\n\r\n",
        b"GET  /health HTTP/1.1\r\nhost: x\r\n\r\n",
        b"\0" * 70_000,
        b"\r\n" * 50_000,
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /%00%ff%zz/../../etc/passwd HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        b"GET http://[::1:bad/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        b"CONNECT example.test:443 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        b"TRACE /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nhost: y\r\nconnection: close\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: a/?x=\r\nconnection: close\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nupgrade: h2c\r\nconnection: upgrade, http2-settings\r\n"
        b"http2-settings: AAA\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
        b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 10\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\n" + b"x: " + b"y" * 40_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\n" + b"".join(b"h%d: y\r\n" % n for n in range(1200)) + b"\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nx\0y: z\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nx: y\0z\r\n\r\n",
        *(random.randbytes(random.randrange(1, 5000)) for _ in range(40)),
    ]
    served: dict[int, int] = {}
    for sample in samples:
        with contextlib.closing(connect(scene.address)) as opened:
            received = exchange(opened, sample, limit_s=20 * scene.slowness, quiet_s=0.3)
        for status in statuses(received):
            served[status] = served.get(status, 0) + 1
            expect(status < 500 or status in (501, 505), f"{sample[:60]!r} was answered {status}")
        expect(b"Traceback" not in received, f"{sample[:60]!r} was answered with a traceback")
    return ", ".join(f"{count} x {status}" for status, count in sorted(served.items()))


# A second request follows each of them. It must not be served, because another program on the way could have
# seen it as the body of the first: the answer is an error, and the connection is closed.
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
PAIRS = {
    "length-and-chunked": b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked-and-length": b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n",
    "two-lengths": b"content-length: 0\r\ncontent-length: 40\r\n\r\n",
    "length-list": b"content-length: 0, 40\r\n\r\n",
    "length-with-sign": b"content-length: +0\r\n\r\n",
    "length-hexadecimal": b"content-length: 0x0\r\n\r\n",
    "length-with-underscore": b"content-length: 0_0\r\n\r\n",
    "chunked-twice": b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked-then-identity": b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "identity": b"transfer-encoding: identity\r\ncontent-length: 0\r\n\r\n",
    "unknown-coding": b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked-after-tab": b"transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "space-before-colon": b"content-length : 0\r\n\r\n",
    "folded-coding": b"transfer-encoding:\r\n chunked\r\ncontent-length: 0\r\n\r\n",
    "chunk-size-with-sign": b"transfer-encoding: chunked\r\n\r\n+0\r\n\r\n",
    "chunk-size-hexadecimal": b"transfer-encoding: chunked\r\n\r\n0x0\r\n\r\n",
    "chunk-size-with-space": b"transfer-encoding: chunked\r\n\r\n 0\r\n\r\n",
    "chunk-size-too-large": b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff0\r\n\r\n",
    "chunk-line-feed": b"transfer-encoding: chunked\r\n\r\n1\nx\r\n0\r\n\r\n",
    "chunk-extension-line-feed": b"transfer-encoding: chunked\r\n\r\n1;a\nx\r\n0\r\n\r\n",
    "chunk-without-end": b"transfer-encoding: chunked\r\n\r\n1\r\nxx\r\n0\r\n\r\n",
    "header-line-carriage-return": b"x: y\rcontent-length: 40\r\ncontent-length: 0\r\n\r\n",
    "no-colon": b"content-length\r\n\r\n",
}


def _smuggle(lines: bytes, scene: Scene) -> str:
    data = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n" + lines + SMUGGLED
    with contextlib.closing(connect(scene.address)) as opened:
        received = exchange(opened, data, limit_s=20 * scene.slowness, quiet_s=1.0)
    found = statuses(received)
    expect(404 not in found, f"the hidden request was served: {found}")
    expect(not found or (len(found) == 1 and 400 <= found[0] < 600 and found[0] != 500), f"it was answered {found}")
    return f"answered {found[0]}" if found else "closed or ignored"


for _name, _lines in PAIRS.items():
    CATALOGUE.add(f"smuggling-{_name}", partial(_smuggle, _lines), options=OPTIONS)


@attack()
def bare_line_feeds(scene: Scene) -> str:
    """RFC 9112 lets a server accept them; then the request must be read as its parts say."""
    data = b"POST /v1/completions HTTP/1.1\nhost: x\ncontent-length: 0\n\n" + head("GET", "/nowhere")
    with contextlib.closing(connect(scene.address)) as opened:
        found = statuses(exchange(opened, data, limit_s=20 * scene.slowness, quiet_s=1.0))
    expect(found in ([], [400], [415], [415, 404]), f"answered {found}")
    return f"answered {found}"


@attack()
def folded_lines(scene: Scene) -> str:
    """RFC 9112 lets a server unfold them; then the header before has the rest as its value."""
    lines = "x: y\r\n content-length: 40\r\ncontent-length: 0"
    data = head("POST", "/v1/completions", lines, close=False) + head("GET", "/nowhere")
    with contextlib.closing(connect(scene.address)) as opened:
        found = statuses(exchange(opened, data, limit_s=20 * scene.slowness, quiet_s=1.0))
    expect(found in ([400], [415], [415, 404]), f"answered {found}")
    return f"answered {found}"


@attack(limit_s=40)
def many_methods_paths_and_ids(scene: Scene) -> str:
    """What a client can choose must not become a label of a metric, nor stay in memory."""

    def metrics() -> int:
        return len(ask(scene.address, head("GET", "/metrics")).body)

    before = metrics()
    with contextlib.closing(connect(scene.address)) as opened:
        requests = [
            head(f"M{number}", f"/path/{number}?q={number}", f"x-request-id: {number}", f"h{number}: x", close=False)
            for number in range(900)  # a connection serves a thousand
        ]
        found = statuses(exchange(opened, b"".join(requests) + head("GET", "/health"), limit_s=30 * scene.slowness))
    grown = metrics() - before
    expect(len(found) == 901, f"{len(found)} of 901 requests on one connection were answered")
    expect(set(found[:-1]) <= {404, 405, 501}, f"answered {sorted(set(found))}")
    expect(grown < 10_000, f"/metrics grew by {grown} bytes")
    return f"/metrics grew by {grown} bytes"


@attack(memory_mib=200)
def small_chunks_and_extensions(scene: Scene) -> str:
    """A body of a million chunks, and one with a kilobyte of extension for each byte."""
    content = posting("/v1/completions", {"model": "tiny", "prompt": "y" * 100}).partition(b"\r\n\r\n")[2]
    top = head("POST", "/v1/completions", "content-type: application/json", "transfer-encoding: chunked")
    million = b"1\r\n \r\n" * 1_000_000
    extended = b"1;" + b"x" * 1000 + b"\r\n \r\n"
    end = b"".join(b"1\r\n%c\r\n" % byte for byte in content) + b"0\r\n\r\n"
    answers = [ask(scene.address, top + body + end, limit_s=60) for body in (million, extended * 10_000)]
    for answer in answers:
        check_answer(answer, {200, 400, 408, 413, 431}, "a body of small chunks")
    return f"answered {[answer.status for answer in answers]}"


@attack()
def endless_chunk_lines_and_trailers(scene: Scene) -> str:
    top = head("POST", "/v1/completions", "content-type: application/json", "transfer-encoding: chunked")
    found = []
    for end in (b"1;" + b"x" * 5_000_000, b"1\r\n{\r\n0\r\n" + b"trailer: y\r\n" * 400_000, b"0" * 5_000_000):
        found.append(ask(scene.address, top + end, limit_s=30).status)
    expect(all(status in (0, 400, 408, 413, 431) for status in found), f"answered {found}")
    return f"answered {found}"


@attack(limit_s=45)
def clients_that_stop_reading(scene: Scene) -> str:
    """Requests end after send_stall_timeout, and not only when the answer is complete."""
    before = scene.server.usage().num_fds
    large = posting("/v1/completions", {**STREAM, "max_tokens": 1900, "logprobs": 20, "n": 8}, close=False)
    documents = head("GET", "/openapi.json", close=False) * 900
    opened = []
    try:
        for data in [large] * 4 + [documents] * 10:
            each = connect(scene.address, receive_bytes=2048)
            opened.append(each)
            each.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                each.sendall(data)
        _wait_idle(scene, 25)
        until = time.monotonic() + 15 * scene.slowness
        while (now := scene.server.usage().num_fds) > before + 6:
            expect(time.monotonic() < until, f"{now - before} descriptors of clients that do not read are open")
            time.sleep(0.2)
    finally:
        for each in opened:
            each.close()
    return f"{len(opened)} connections"


@attack(limit_s=45)
def many_streams_that_leave(scene: Scene) -> str:
    for _ in range(3):
        opened = []
        for _ in range(200):
            each = connect(scene.address)
            each.sendall(posting("/v1/completions", {**STREAM, "max_tokens": 50, "n": 4}))
            opened.append(each)
        for each in opened:
            (reset if scene.random.random() < 0.5 else socket.socket.close)(each)
    _wait_idle(scene, 20)
    return "600 streams"


@attack()
def answers_to_early_refusals(scene: Scene) -> str:
    """The client still sends its large body when it is refused; it must see why."""
    body = b" " * (40 << 20)
    large = ask(scene.address, posting("/v1/completions", body), limit_s=30)
    check_answer(large, {413}, "a body over the limit")
    with contextlib.closing(connect(scene.address)) as opened:
        top = head("POST", "/v1/completions", "content-type: text/plain", f"content-length: {20 << 20}")
        wrong = answer_of(exchange(opened, top + body[: 20 << 20], limit_s=30))
    check_answer(wrong, {415}, "a body of another type")
    return "413, 415"
