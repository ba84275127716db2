"""Rules about `load`: the command lines that break each one, and those that keep it.

MODEL, FILE and so on stand for paths; see test_rules.py. SMALL_CASES run on a machine that has too little.
"""

from __future__ import annotations

CASES: dict[str, tuple[list[str], list[str]]] = {}
SMALL_CASES: dict[str, tuple[list[str], list[str]]] = {}
