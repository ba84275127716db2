"""Rules about `structured_outputs`: the command lines that break each one, and those that keep it."""

from __future__ import annotations

CASES: dict[str, tuple[list[str], list[str]]] = {
    "R500": (
        ["--structured-outputs-config.backend xgrammar", "--guided-decoding-backend outlines"],
        ["", "--structured-outputs-config.backend guidance"],
    ),
}
