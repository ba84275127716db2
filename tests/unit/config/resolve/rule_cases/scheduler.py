"""Rules about `scheduler`: the command lines that break each one, and those that keep it.

MODEL, FILE and so on stand for paths; see test_rules.py. SMALL_CASES run on a machine that has too little.
"""

from __future__ import annotations

CASES: dict[str, tuple[list[str], list[str]]] = {
    "R109": (
        [
            "--model ENCODER --load-format dummy --skip-tokenizer-init --max-num-batched-tokens 256",
            "--model STEP-SCORES --load-format dummy --skip-tokenizer-init --max-num-batched-tokens 256",
        ],
        [
            "--model ENCODER --load-format dummy --skip-tokenizer-init",
            "--model ENCODER --load-format dummy --skip-tokenizer-init --max-num-batched-tokens 512",
            "--model STEP-SCORES --load-format dummy --skip-tokenizer-init",
            "--model ENCODER --load-format dummy --skip-tokenizer-init --max-num-batched-tokens 256 "
            "--max-model-len 256",
            "--max-num-batched-tokens 256",
        ],
    ),
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
    "R112": (
        [
            "--no-enable-chunked-prefill --max-num-partial-prefills 2",
            "--no-enable-chunked-prefill --long-prefill-token-threshold 100",
        ],
        ["--no-enable-chunked-prefill", "--no-enable-chunked-prefill --max-num-partial-prefills 1"],
    ),
    "R114": (
        ["--max-long-partial-prefills 3 --max-num-partial-prefills 2", "--max-long-partial-prefills 65"],
        ["--max-long-partial-prefills 2 --max-num-partial-prefills 2", "--max-num-partial-prefills 1"],
    ),
    "R116": (
        ["--long-prefill-token-threshold 513"],
        ["--long-prefill-token-threshold 512", "--long-prefill-token-threshold 0", ""],
    ),
    "R244": (
        ["--no-enable-chunked-prefill --max-prefill-share 0.5"],
        ["--no-enable-chunked-prefill", "--max-prefill-share 0.5"],
    ),
    "R245": (
        ["--max-prefill-share 0.01 --max-num-batched-tokens 512", "--max-prefill-share 0.001"],
        ["--max-prefill-share 0.5 --max-num-batched-tokens 512", "--max-prefill-share 1"],
    ),
    "R241": (
        ["--scheduler-cls mine", "--scheduler-cls mine/sched.py", "--scheduler-cls a.b:c:d"],
        ["--scheduler-cls my.sched:Mine", "--scheduler-cls my.sched.Mine", "--scheduler-cls auto"],
    ),
    "R211": (
        ["--num-gpu-blocks-override 7 --max-num-seqs 8"],
        ["--num-gpu-blocks-override 8 --max-num-seqs 8", "--num-gpu-blocks-override 7"],
    ),
}
SMALL_CASES: dict[str, tuple[list[str], list[str]]] = {}
