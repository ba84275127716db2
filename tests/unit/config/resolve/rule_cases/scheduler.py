"""Rules about `scheduler`: the command lines that break each one, and those that keep it.

MODEL, FILE and so on stand for paths; see test_rules.py. SMALL_CASES run on a machine that has too little.
"""

from __future__ import annotations

CASES: dict[str, tuple[list[str], list[str]]] = {
    "R104": (
        ["--no-enable-chunked-prefill --max-num-batched-tokens 511"],
        ["--no-enable-chunked-prefill --max-num-batched-tokens 512", "--max-num-batched-tokens 100"],
    ),
    "R105": (
        ["--max-num-batched-tokens 63", "--max-num-seqs 9 --max-num-batched-tokens 8"],
        ["--max-num-seqs 9 --max-num-batched-tokens 9", "--max-num-seqs 3000"],
    ),
    "R110": (
        ["--hf-overrides.max_position_embeddings 40000 --no-enable-chunked-prefill"],
        ["--hf-overrides.max_position_embeddings 32768 --no-enable-chunked-prefill"],
    ),
    "R211": (
        ["--num-gpu-blocks-override 7 --max-num-seqs 8"],
        ["--num-gpu-blocks-override 8 --max-num-seqs 8", "--num-gpu-blocks-override 7"],
    ),
}
SMALL_CASES: dict[str, tuple[list[str], list[str]]] = {}
