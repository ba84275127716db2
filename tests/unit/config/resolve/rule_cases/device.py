"""Rules about `device`: the command lines that break each one, and those that keep it.

MODEL, FILE and so on stand for paths; see test_rules.py. SMALL_CASES run on a machine that has too little.
"""

from __future__ import annotations

CASES: dict[str, tuple[list[str], list[str]]] = {
    "R210": (["--num-threads 5"], ["--num-threads 4"]),
    "R227": (["--device cuda"], ["--device cpu", "--device auto"]),
}
GPU_CASES: dict[str, tuple[list[str], list[str]]] = {
    "R286": (["--self-test"], ["--self-test --device cpu", ""]),
}
OLD_GPU_CASES: dict[str, tuple[list[str], list[str]]] = {
    "R228": (["--device cuda"], ["--device cpu", "--device auto"]),
}
INTERPRETED_CASES: dict[str, tuple[list[str], list[str]]] = {
    "R229": (["--device cuda"], ["--device cpu", "--device auto"]),
}
SMALL_CASES: dict[str, tuple[list[str], list[str]]] = {}
