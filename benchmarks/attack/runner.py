"""Runs attacks one after another: a server for those that need one, a bystander, a limit of time, a verdict."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from .bystander import Observed, watching
from .catalogue import Attack, Fell, Scene
from .control import controlling
from .server import Server, Usage, manifest
from .verdict import MORE_FDS, Traces, Verdict, judge, slowness
from .wire import ask, posting

START_S = 120.0
CALIBRATE_S = 3.0
LEAST_S = 3.0  # of an attack, so that the bystander's p99 means something
SETTLE_S = 8.0
STOP_S = 15.0
GOLDEN = posting("/v1/completions", {"model": "tiny", "prompt": "Hello", "max_tokens": 8, "temperature": 0})
WARM_UP = [  # so that pools and helper processes of first uses are there before they are counted
    GOLDEN,
    posting("/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}),
    posting("/tokenize", {"model": "tiny", "prompt": "x" * 100_000}),
    posting("/detokenize", {"model": "tiny", "tokens": [5] * 10_000}),
]


class Runner:
    def __init__(
        self,
        seed: int,
        base: Path,
        *,
        slowness: float | None = None,
        limits: Callable[[Attack], float] = lambda attack: attack.limit_s,
    ) -> None:
        """slowness: of this machine; None measures it."""
        self._seed = seed
        self._base = base
        self._limit_s = limits
        self._server: Server | None = None
        self._made_for: tuple[tuple[str, ...], int | None] | None = None
        self._slowness = slowness or 1.0
        self._is_measured = slowness is not None
        self._stack = contextlib.ExitStack()
        self._control = self._stack.enter_context(controlling())

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._stack.close()

    def run(self, attack: Attack) -> Verdict:
        folder = Path(tempfile.mkdtemp(prefix="attack-", dir=self._base))
        began = time.monotonic()
        try:
            if not attack.on_server:
                self.close()  # it would take time from what is attacked
            verdict = self._on_server(attack, folder) if attack.on_server else self._alone(attack, folder)
        except Exception as error:  # a fault of the attack itself must not end the run of the others
            verdict = Verdict(attack.id, [f"the attack itself failed: {type(error).__name__}: {error}"])
        if not verdict.held:
            self.close()  # the next one gets a new server
        shutil.rmtree(folder, ignore_errors=True)
        verdict.seconds = round(time.monotonic() - began, 1)
        verdict.repeat = f"python -m benchmarks.attack {attack.id} --seed {self._seed}"
        return verdict

    def close(self) -> str:
        """Stops the server. Returns why that went wrong, if it did."""
        server, self._server, self._made_for = self._server, None, None
        if server is None:
            return ""
        server.process.terminate()
        code = server.wait(STOP_S * self._slowness)
        server.close()
        left = server.leftovers()
        shutil.rmtree(server.folder, ignore_errors=True)
        if code != 0:
            return f"SIGTERM ended the server with {'nothing' if code is None else f'code {code}'}"
        return f"the server left {', '.join(left[:3])}" if left else ""

    def _alone(self, attack: Attack, folder: Path) -> Verdict:
        if not self._is_measured:
            self._ready(attack)  # for the calibration
            self.close()
        note, problems = self._bounded(attack, Scene(self._random(attack), folder, self._slowness))
        return Verdict(attack.id, problems, note, slowness=self._slowness)

    def _on_server(self, attack: Attack, folder: Path) -> Verdict:
        server = self._ready(attack)
        golden, before, engine, offset = self._golden(server), server.usage(), server.engine, len(server.log)
        server.peak_anonymous_mib = 0.0
        scene = Scene(self._random(attack), folder, self._slowness, server)
        with watching(server.address, self._control) as end:
            began = time.monotonic()
            note, problems = self._bounded(attack, scene)
            time.sleep(max(0.0, LEAST_S - (time.monotonic() - began)))
            observed = end()
        if not observed.health.num and not attack.bystander_may_fail:
            problems.append("the bystander got no answer")
        after = self._settled(server, before)
        if server.process.poll() is not None:
            problems.append(f"the server ended with code {server.process.returncode}: {_last(server.log)}")
        elif server.engine != engine:
            problems.append("the engine process was started again")
        answers = (golden, self._golden(server))
        peak = max(server.peak_anonymous_mib, after.anonymous_mib)
        traces = Traces(before, after, peak, observed, server.log[offset:], answers, problems)
        slow = max(self._slowness, slowness(observed.control))
        reasons = judge(attack, traces, slow)
        return Verdict(attack.id, reasons, note, 0.0, slow, observed, before, after, peak)

    def _ready(self, attack: Attack) -> Server:
        """The server of the attack before, if it has the same options."""
        wanted = attack.options, attack.max_files
        if self._made_for != wanted:
            if problem := self.close():
                raise Fell(problem)
            folder = Path(tempfile.mkdtemp(prefix="s-", dir=self._base))
            self._server, self._made_for = Server(folder, manifest(), *wanted[:1], max_files=wanted[1]), wanted
            if not self._server.wait_ready(START_S):
                raise Fell(f"the server did not become ready: {_last(self._server.log)}")
            for data in WARM_UP:
                ask(self._server.address, data)
            self._slowness = slowness(self._calibrated().health)
            self._is_measured = True
        assert self._server is not None
        return self._server

    def _calibrated(self) -> Observed:
        assert self._server is not None
        with watching(self._server.address) as end:
            time.sleep(CALIBRATE_S)
            return end()

    def _bounded(self, attack: Attack, scene: Scene) -> tuple[str, list[str]]:
        """The note and the problems of a run that may take its limit."""
        notes: list[str] = []
        problems: list[str] = []

        def run() -> None:
            try:
                notes.append(attack.run(scene))
            except Fell as fell:
                problems.append(str(fell))
            except Exception as error:
                problems.append(f"{type(error).__name__}: {error}")

        thread = threading.Thread(target=run, daemon=True)
        limit_s = self._limit_s(attack) * self._slowness
        thread.start()
        thread.join(limit_s)
        if thread.is_alive():
            problems = [*problems, f"it did not end within {limit_s:.0f} s"]
        return "".join(notes), problems

    def _settled(self, server: Server, before: Usage) -> Usage:
        until = time.monotonic() + SETTLE_S * self._slowness
        while True:
            now = server.usage()
            if now.num_fds <= before.num_fds + MORE_FDS or time.monotonic() > until:
                return now
            time.sleep(0.1)

    def _golden(self, server: Server) -> str:
        try:
            return ask(server.address, GOLDEN).json["choices"][0]["text"]
        except (OSError, Fell, ValueError, KeyError) as error:
            return f"{type(error).__name__}: {error}"

    def _random(self, attack: Attack) -> Random:
        return Random(f"{self._seed}/{attack.id}")


def _last(log: str) -> str:
    return (log.strip().splitlines() or ["no output"])[-1][:200]
