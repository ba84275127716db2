"""Rules about `cache`: the command lines that break each one, and those that keep it.

MODEL, FILE and so on stand for paths; see test_rules.py. SMALL_CASES run on a machine that has too little.
"""

from __future__ import annotations

CASES: dict[str, tuple[list[str], list[str]]] = {
    "R084": (
        ["--kv-cache-memory-bytes 1MiB --gpu-memory-utilization 0.9"],
        ["--kv-cache-memory-bytes 1MiB", "--gpu-memory-utilization 0.9"],
    ),
    "R085": (
        [
            "--num-gpu-blocks-override 64 --kv-cache-memory-bytes 1MiB",
            "--num-gpu-blocks-override 64 --gpu-memory-utilization 0.9",
        ],
        ["--num-gpu-blocks-override 64"],
    ),
    "R094": (
        ["--no-enable-prefix-caching --prefix-caching-hash-algo sha256"],
        ["--no-enable-prefix-caching", "--prefix-caching-hash-algo sha256"],
    ),
    "R203": (["--kv-cache-memory-bytes 9GiB"], ["--kv-cache-memory-bytes 7GiB"]),
}
SMALL_CASES: dict[str, tuple[list[str], list[str]]] = {}
