"""Rules about `cache`: the command lines that break each one, and those that keep it.

MODEL, FILE and so on stand for paths; see test_rules.py. SMALL_CASES run on a machine that has too little.
"""

from __future__ import annotations

from .kv_transfer import FOLDER, SHARED, TCP

_STATES = "--model STATES --load-format dummy --skip-tokenizer-init"
_WITHOUT_KEYS = "--model WITHOUT-KEYS --load-format dummy --skip-tokenizer-init"
_SHARED = "--model SHARED --load-format dummy --skip-tokenizer-init"
_LATENTS = "--model LATENTS --load-format dummy --skip-tokenizer-init"
_COMPRESSED = "--model COMPRESSED --load-format dummy --skip-tokenizer-init"
CASES: dict[str, tuple[list[str], list[str]]] = {
    "R084": (
        ["--kv-cache-memory-bytes 1MiB --gpu-memory-utilization 0.8"],
        ["--kv-cache-memory-bytes 1MiB", "--kv-cache-memory-bytes 1MiB --gpu-memory-utilization 0.9"],
    ),
    "R085": (
        [
            "--num-gpu-blocks-override 64 --kv-cache-memory-bytes 1MiB",
            "--num-gpu-blocks-override 64 --gpu-memory-utilization 0.8",
        ],
        ["--num-gpu-blocks-override 64", "--num-gpu-blocks-override 64 --gpu-memory-utilization 0.9"],
    ),
    "R094": (
        ["--no-enable-prefix-caching --prefix-caching-hash-algo blake2b"],
        ["--no-enable-prefix-caching", "--no-enable-prefix-caching --prefix-caching-hash-algo sha256"],
    ),
    "R380": (
        [
            "--kv-directory /tmp/kv --no-enable-prefix-caching",
            f"{TCP} --no-enable-prefix-caching",
            "--kv-offloading-size 1 --no-enable-prefix-caching",
            f"{SHARED} {FOLDER} --no-enable-prefix-caching",
        ],
        ["--kv-directory /tmp/kv", TCP, "--no-enable-prefix-caching", "--kv-offloading-size 1"],
    ),
    "R458": (["--kv-offloading-size 0.000001"], ["--kv-offloading-size 0.01", "--kv-offloading-size 0"]),
    "R381": (
        ["--kv-directory-size 1GiB"],
        ["--kv-directory-size 1GiB --kv-directory /tmp/kv", "--kv-directory-size 10GiB"],
    ),
    "R382": (
        [
            f"{_STATES} --kv-directory /tmp/kv",
            f"{_STATES} {TCP}",
            f"{_WITHOUT_KEYS} {TCP}",
            f"{_STATES} --kv-offloading-size 1",
        ],
        ["--kv-directory /tmp/kv", TCP, _STATES, _WITHOUT_KEYS, f"{_LATENTS} {TCP} --kv-offloading-size 1"],
    ),
    "R327": (
        ["--mamba-ssm-cache-dtype bfloat16", "--mamba-cache-dtype bfloat16"],
        ["", f"{_STATES} --mamba-cache-dtype bfloat16"],
    ),
    "R328": (
        [
            f"{_STATES} --batch-invariant --mamba-ssm-cache-dtype bfloat16",
            f"{_STATES} --batch-invariant --mamba-cache-dtype bfloat16",
        ],
        [
            f"{_STATES} --mamba-ssm-cache-dtype bfloat16",
            f"{_STATES} --batch-invariant",
            "--batch-invariant --mamba-ssm-cache-dtype bfloat16",
        ],
    ),
    "R321": (
        [
            "--prefix-cache-retention-interval 32",
            f"{_STATES} --prefix-cache-retention-interval 32 --no-enable-prefix-caching",
        ],
        [
            f"{_STATES} --prefix-cache-retention-interval 32",
            f"{_STATES} --prefix-cache-retention-interval 0 --no-enable-prefix-caching",
            "--prefix-cache-retention-interval 0",
        ],
    ),
    "R322": (
        [f"{_STATES} --enable-prefix-caching --prefix-cache-retention-interval 0"],
        [
            f"{_STATES} --prefix-cache-retention-interval 0",
            f"{_STATES} --enable-prefix-caching",
            "--enable-prefix-caching --prefix-cache-retention-interval 0",
        ],
    ),
    "R098": (
        ["--no-kv-sharing-fast-prefill"],
        [f"{_SHARED} --no-kv-sharing-fast-prefill", "--kv-sharing-fast-prefill", ""],
    ),
    "R514": (
        [f"{_COMPRESSED} --block-size 64"],
        [f"{_COMPRESSED} --block-size 128", _COMPRESSED, "--block-size 8"],
    ),
    "R326": (
        ["--model WITHOUT-KEYS --load-format dummy --skip-tokenizer-init --kv-cache-memory-bytes 1GiB"],
        [
            "--model WITHOUT-KEYS --load-format dummy --skip-tokenizer-init",
            f"{_STATES} --kv-cache-memory-bytes 1GiB",
        ],
    ),
    "R097": (["--cpu-offload-gb 0.1"], ["--cpu-offload-gb 0", ""]),
    "R203": (["--kv-cache-memory-bytes 9GiB"], ["--kv-cache-memory-bytes 7GiB"]),
    "R234": (["--kv-cache-dtype fp8", "--kv-cache-dtype fp8_e4m3"], ["--kv-cache-dtype bfloat16"]),
    "R353": (
        [f"{_SHARED} --kv-cache-dtype int8"],
        ["--kv-cache-dtype int8", _SHARED],
    ),
}
GPU_CASES: dict[str, tuple[list[str], list[str]]] = {
    "R090": (
        ["--calculate-kv-scales", "--device cpu --kv-cache-dtype int8 --calculate-kv-scales"],
        ["--kv-cache-dtype fp8 --calculate-kv-scales", "--kv-cache-dtype fp8", ""],
    ),
    "R097": (["--device cpu --cpu-offload-gb 0.1"], [""]),
    "R356": (
        [f"{_LATENTS} --cpu-offload-gb 1 --offload-prefetch-step 30", f"{_LATENTS} --cpu-offload-gb 0.01"],
        [f"{_LATENTS} --cpu-offload-gb 4", f"{_LATENTS} --cpu-offload-gb 0"],
    ),
    "R357": (
        [f"{_LATENTS} --cpu-offload-gb 20"],
        [f"{_LATENTS} --cpu-offload-gb 4", f"{_LATENTS} --cpu-offload-gb 0"],
    ),
    "R457": (
        [
            "--kv-offloading-size 20",
            "--kv-offloading-size 6 --kv-transfer-config.kv-connector TcpConnector "
            "--kv-transfer-config.kv-buffer-size 3GiB",
        ],
        ["--kv-offloading-size 6", "--device cpu --kv-offloading-size 6", f"{_LATENTS} --cpu-offload-gb 4"],
    ),
    "R355": (
        [f"{_LATENTS} --kv-cache-dtype fp8 --calculate-kv-scales"],
        ["--kv-cache-dtype fp8 --calculate-kv-scales", f"{_LATENTS} --kv-cache-dtype fp8"],
    ),
    "R234": (["--device cpu --kv-cache-dtype fp8"], ["--kv-cache-dtype fp8", "--kv-cache-dtype fp8_e4m3"]),
    "R352": (
        ["--device cuda --kv-cache-dtype int8"],
        ["--device cuda --kv-cache-dtype fp8", "--device cpu --kv-cache-dtype int8"],
    ),
}
OLD_GPU_CASES: dict[str, tuple[list[str], list[str]]] = {
    "R237": (
        ["--kv-cache-memory-bytes 1kB", "--kv-cache-memory-bytes 1kB --max-model-len 64"],
        ["--kv-cache-memory-bytes 1MiB", "--num-gpu-blocks-override 1 --kv-cache-memory-bytes 1kB", ""],
    ),
    "R235": (["--device cuda --kv-cache-dtype fp8"], ["--device cuda", "--device cpu --kv-cache-dtype fp8"]),
}
INTERPRETED_CASES: dict[str, tuple[list[str], list[str]]] = {
    "R234": (["--kv-cache-dtype fp8"], ["--device cuda --kv-cache-dtype fp8"]),
}
SMALL_CASES: dict[str, tuple[list[str], list[str]]] = {}
