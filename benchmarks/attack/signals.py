"""Signals at random moments of start, load, streams and shutdown, each round with its own server.

A round is named by its number; its seed decides the moment, the signal and the process that gets it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from pathlib import Path
from random import Random

from stoker.engine.client.brief_paths import PREFIX

from .catalogue import Attack, Fell, Scene, expect
from .server import Server, Usage, manifest
from .wire import ask, connect, head, posting

FAMILY = "signals"
READY_S, STOP_S, RESTART_S, VANISH_S, ANSWER_S = 120.0, 12.0, 60.0, 5.0, 40.0  # on an idle machine
DRAIN_S = 2.0
NUM_STREAMS = 12
STREAM = {"model": "tiny", "prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "stream": True}
SHORT = posting("/v1/completions", {"model": "tiny", "prompt": "Hello", "max_tokens": 4, "temperature": 0})
MOMENTS = ("start", "compile", "ready", "streams", "shutdown")
WEIGHTS = (30, 6, 16, 30, 18)
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL)
PAUSING = signal.SIGSTOP
# Before Python's own code runs, a signal has its default action.
AT_START = {signal.SIGTERM: (0, -15), signal.SIGINT: (0, -2, 130), signal.SIGHUP: (0, -1), signal.SIGKILL: (-9,)}
WHEN_READY = {signal.SIGTERM: (0,), signal.SIGINT: (0,), signal.SIGHUP: (0,), signal.SIGKILL: (-9,)}


def attack_round(number: int) -> Attack:
    return Attack(FAMILY, str(number), _round, limit_s=300, on_server=False)


def number_of(name: str) -> int:
    """Number of an attack, 12 of `signals/12`. Raises ValueError."""
    number = name.removeprefix(f"{FAMILY}/")
    if not number.isdigit():
        raise ValueError(f"no attack is called {name!r}; the rounds are {FAMILY}/1, {FAMILY}/2 ...")
    return int(number)


def _round(scene: Scene) -> str:
    (moment,) = scene.random.choices(MOMENTS, WEIGHTS)
    port = _free_port()
    environment = {"STOKER_CACHE_DIR": str(scene.folder / "cache")} if moment == "compile" else {}
    server = Server(scene.folder, manifest(server={"port": port}), environment=environment)
    try:
        if moment in ("start", "compile"):
            note = _interrupt_start(server, scene, 7.0 if moment == "start" else 15.0)
        else:
            expect(server.wait_ready(READY_S * scene.slowness), "the server did not become ready")
            note = {"ready": _when_ready, "streams": _under_streams, "shutdown": _at_shutdown}[moment](server, scene)
        # A server that was paused beyond the deadline of its exit ends at once, as if it had been killed.
        _check_nothing_left(server, scene, port, may_leave_files="SIGSTOP" in note)
        left = [str(path) for path in (scene.folder / "cache").rglob("*") if path.suffix in (".o", ".objects")]
        expect(not left, f"files of a stopped compiler remain: {left[:3]}")
        return f"{moment}: {note}"
    except Fell as fell:
        raise Fell(f"{moment}: {fell}") from None
    finally:
        server.close()


def _interrupt_start(server: Server, scene: Scene, within_s: float) -> str:
    chosen = scene.random.choice(ENDING)
    delay = scene.random.uniform(0, within_s) * scene.slowness
    if server.wait(delay) is not None:
        raise Fell(f"the start ended by itself with code {server.process.returncode}: {_end(server)}")
    was_ready = server.url is not None
    server.process.send_signal(chosen)
    note = f"{chosen.name} after {delay:.1f} s"
    _expect_end(server, scene, chosen, note, WHEN_READY if was_ready else AT_START)
    return note


def _when_ready(server: Server, scene: Scene) -> str:
    if scene.random.random() < 0.5:
        return _survive(server, scene)
    chosen = scene.random.choice(ENDING)
    server.process.send_signal(chosen)
    _expect_end(server, scene, chosen, chosen.name, WHEN_READY)
    return chosen.name


def _under_streams(server: Server, scene: Scene) -> str:
    opened = _open_streams(server, scene.random)
    try:
        time.sleep(scene.random.uniform(0, 2))
        if scene.random.random() < 0.6:
            return "streams, " + _survive(server, scene, opened)
        chosen = scene.random.choice(ENDING)
        server.process.send_signal(chosen)
        _expect_end(server, scene, chosen, chosen.name, WHEN_READY)
        return f"{len(opened)} streams, {chosen.name}"
    finally:
        for each in opened:
            each.close()


def _at_shutdown(server: Server, scene: Scene) -> str:
    """A second signal while the first is carried out."""
    opened = _open_streams(server, scene.random)
    try:
        first, second = scene.random.choice(ENDING[:2]), scene.random.choice([*ENDING, PAUSING])
        delay = scene.random.uniform(0, DRAIN_S + 1)
        server.process.send_signal(first)
        server.wait(delay)
        note = f"{first.name}, {second.name} after {delay:.1f} s"
        if server.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                server.process.send_signal(second)
        if second is PAUSING:
            server.wait(2)
            with contextlib.suppress(ProcessLookupError):
                server.process.send_signal(signal.SIGCONT)
        code = server.wait(STOP_S * scene.slowness)
        expect(code is not None, f"{note}: it still runs after {STOP_S * scene.slowness:.0f} s")
        allowed = {0} | ({-9} if second is signal.SIGKILL else set()) | ({-1} if second is signal.SIGHUP else set())
        expect(code in allowed, f"{note}: code {code}: {_end(server)}")
        expect("Traceback" not in server.log, f"{note}: a traceback: {_end(server)}")
        return note
    finally:
        for each in opened:
            each.close()


def _survive(server: Server, scene: Scene, opened: list[socket.socket] | None = None) -> str:
    """A signal that must not end the server: to its engine, or a pause of either. Then it must answer, and end well."""
    before = server.usage()
    engine = server.engine
    expect(engine is not None, "there is no engine process")
    assert engine is not None
    kinds = ("engine SIGKILL", "engine SIGSTOP", "server SIGSTOP", "engine SIGINT", "group SIGCONT", "engine SIGTERM")
    kind = scene.random.choice(kinds)
    who, name = kind.split()
    target, number = (engine if who == "engine" else server.process.pid), signal.Signals[name]
    if who == "group":
        os.killpg(server.process.pid, number)
    else:
        os.kill(target, number)
    if number is PAUSING:
        time.sleep(scene.random.uniform(0.2, 3))
        os.kill(target, signal.SIGCONT)
    for each in opened or []:
        each.close()
    _expect_answers(server, scene, kind)
    _expect_settled(server, scene, before, kind)
    server.process.terminate()
    _expect_end(server, scene, signal.SIGTERM, f"{kind}, then SIGTERM", WHEN_READY)
    return kind


def _expect_answers(server: Server, scene: Scene, what: str) -> None:
    until, last = time.monotonic() + RESTART_S * scene.slowness, 0
    while time.monotonic() < until:
        expect(
            server.process.poll() is None,
            f"{what} ended the server with code {server.process.returncode}: {_end(server)}",
        )
        with contextlib.suppress(OSError, Fell):
            last = ask(server.address, SHORT, limit_s=ANSWER_S).status
            if last == 200:
                return
        time.sleep(0.2)
    raise Fell(f"after {what} the server answers {last or 'nothing'} for {RESTART_S * scene.slowness:.0f} s")


def _expect_settled(server: Server, scene: Scene, before: Usage, what: str) -> None:
    until = time.monotonic() + 10 * scene.slowness
    while (now := server.usage()).num_fds > before.num_fds + 8:
        expect(time.monotonic() < until, f"after {what} {now.num_fds} descriptors are open, before {before.num_fds}")
        time.sleep(0.2)


def _expect_end(
    server: Server, scene: Scene, sent: signal.Signals, what: str, codes: dict[signal.Signals, tuple[int, ...]]
) -> None:
    code = server.wait(STOP_S * scene.slowness)
    expect(code is not None, f"{what}: it still runs after {STOP_S * scene.slowness:.0f} s: {_end(server)}")
    expect(code in codes[sent], f"{what}: code {code}: {_end(server)}")
    expect("Traceback" not in server.log, f"{what}: a traceback: {_end(server)}")


def _check_nothing_left(server: Server, scene: Scene, port: int, *, may_leave_files: bool) -> None:
    """No process; no temporary file, or after a SIGKILL none after the next start; the port is free."""
    code = server.process.returncode
    until = time.monotonic() + VANISH_S * scene.slowness
    while left := server.processes():
        expect(time.monotonic() < until, f"code {code}, but {len(left)} processes are left: {_commands(left)}")
        time.sleep(0.05)
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
    except OSError as error:
        raise Fell(f"the port cannot be used again: {error}") from None
    files = server.leftovers()
    sockets = [name for name in files if name.startswith(PREFIX)]
    expect(not sockets, f"code {code}, sockets are left: {', '.join(sockets[:3])}")
    if files and (code != 0 or may_leave_files):  # it could not remove them: the next start does
        again = Server(scene.folder, manifest(server={"port": port}))
        try:
            expect(again.wait_ready(READY_S * scene.slowness), f"the next start failed: {_end(again)}")
            again.process.terminate()
            again.wait(STOP_S * scene.slowness)
            files = again.leftovers()
        finally:
            again.close()
    expect(not files, f"code {code}, temporary files are left: {', '.join(files[:3])}")


def _open_streams(server: Server, random: Random) -> list[socket.socket]:
    opened = []
    for _ in range(NUM_STREAMS):
        each = connect(server.address)
        each.sendall(posting("/v1/completions", {**STREAM, "n": random.choice([1, 1, 2])}))
        opened.append(each)
    opened[0].recv(100)
    expect(ask(server.address, head("GET", "/health")).status == 200, "/health fails while streams run")
    return opened


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _commands(pids: list[int]) -> str:
    found = []
    for pid in pids[:3]:
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[-80:])
    return "; ".join(found)


def _end(server: Server) -> str:
    return " / ".join(server.log.strip().splitlines()[-2:])[:300] or "no output"
