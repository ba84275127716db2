"""The clients' environments: one folder each with the pinned packages, created again when a version changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from .clients import Client

ROOT = Path(__file__).parents[2]
LIMIT_S = 1200


class SetupError(Exception):
    """The message is the reason, in one line."""


def prepare(client: Client, home: Path) -> Path:
    """The folder of the client's environment. Raises SetupError."""
    folder = home / client.adapter
    stamp = folder / "installed"
    wanted = "\n".join(client.packages)
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if client.runtime == "python":
            _run([sys.executable, "-m", "venv", str(folder)], folder)
            _run([str(folder / "bin" / "python"), "-m", "pip", "install", *client.packages], folder)
        else:
            (folder / "package.json").write_text('{"private": true}\n')
            _run(["npm", "install", "--no-audit", "--no-fund", "--save-exact", *client.packages], folder)
        stamp.write_text(wanted)
    return folder


def worker(client: Client, folder: Path) -> tuple[list[str], dict[str, str]]:
    """The command that runs the client's cases, and its environment variables."""
    variables = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    if client.runtime == "python":
        command = [str(folder / "bin" / "python"), "-m", "tools.clients.worker", client.adapter]
        return command, {**variables, "PYTHONPATH": str(ROOT), **client.variables}
    here = Path(__file__).parent
    for source in (here / "worker.mjs", here / "adapters" / f"{client.adapter}.mjs"):
        shutil.copy(source, folder)  # imports are resolved from the folder of the importing file
    return ["node", str(folder / "worker.mjs"), client.adapter], {**variables, **client.variables}


def runtime_version(client: Client, folder: Path) -> str:
    command = [str(folder / "bin" / "python") if client.runtime == "python" else "node", "--version"]
    version = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return version if client.runtime == "python" else f"Node {version.removeprefix('v')}"


def _run(command: list[str], folder: Path) -> None:
    print(" ".join(command), file=sys.stderr)
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(str(error)) from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        errors = [line for line in lines if "error" in line.lower()]
        raise SetupError((errors or lines or [f"exit code {done.returncode}"])[0])
