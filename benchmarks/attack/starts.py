"""A start must end well: ready, or refused with a documented exit code and a sentence, in bounded time and memory."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .catalogue import Fell, Scene, expect
from .server import ROOT, Server, manifest

TINY = ROOT / "src" / "builtin" / "tiny"
MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
REFUSED = (2, 3, 4, 78)  # documented exit codes of a start that was refused
STOP_S = 15.0


@dataclass(frozen=True)
class Limits:
    seconds: float = 45.0  # until it is ready or has ended, on an idle machine
    memory_mib: float = 1500.0
    codes: tuple[int, ...] = REFUSED
    may_serve: bool = True


def copy_model(folder: Path) -> Path:
    """The files of builtin:tiny in a folder of their own."""
    target = folder / "model"
    target.mkdir()
    for name in MODEL_FILES:
        shutil.copyfile(TINY / name, target / name)
    return target


def change_json(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def start(scene: Scene, deployment: str | Path, limits: Limits = Limits(), options: tuple[str, ...] = ()) -> str:
    """Returns what became of it. Raises Fell."""
    server = Server(scene.folder, deployment, options)
    try:
        is_ready = server.wait_ready(limits.seconds * scene.slowness)
        seconds = time.monotonic() - server.began
        code = server.process.poll()
        expect(not server.is_killed_for_memory, f"it took {server.peak_anonymous_mib:.0f} MiB and was killed")
        expect(is_ready or code is not None, f"it was neither ready nor refused after {seconds:.0f} s: {_end(server)}")
        peak = server.peak_anonymous_mib
        expect(peak <= limits.memory_mib, f"it took {peak:.0f} MiB; allowed are {limits.memory_mib:.0f}")
        if is_ready and code is None:
            expect(limits.may_serve, "it was accepted and served")
            server.process.terminate()
            expect(server.wait(STOP_S * scene.slowness) == 0, "SIGTERM did not end it with code 0")
            _check_left(server)
            return f"served after {seconds:.1f} s"
        expect("Traceback" not in server.log, f"a traceback, code {code}: {_end(server)}")
        expect(code in limits.codes, f"exit code {code}: {_end(server)}")
        expect("error" in server.log, f"no error on stderr: {_end(server)}")
        _check_left(server)
        return f"code {code} after {seconds:.1f} s: {_sentence(server)}"
    finally:
        server.close()


def model_start(scene: Scene, model: Path, limits: Limits = Limits(), options: tuple[str, ...] = ()) -> str:
    return start(scene, manifest(str(model)), limits, options)


def _check_left(server: Server) -> None:
    server.process.wait()
    time.sleep(0.2)  # the kernel reports the end of a process before that of its children
    left = server.processes()
    if left:
        raise Fell(f"{len(left)} processes outlived it")
    files = server.leftovers()
    if files:
        raise Fell(f"it left temporary files: {', '.join(files[:3])}")


def _sentence(server: Server) -> str:
    lines = [line for line in server.log.splitlines() if "error" in line]
    return (lines or [""])[0][:120]


def _end(server: Server) -> str:
    return " / ".join(server.log.strip().splitlines()[-2:])[:300] or "no output"
